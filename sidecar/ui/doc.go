// Package ui is the pages for operators: pools, queue, runs, hosts and actions, rendered by
// the server.
//
// # Nouns
//
// A page is an address, a template, and a view: a function that reads what the page shows now.
// The frame is the rest of every page: the layout, the functions that templates use, and who
// the visitor is and what they may do. A page's template defines "main", which has the page's
// only h1; templates named <page>_*.html are parts of it, those named part_*.html of every page.
// static/<page>.css, if it exists, is linked from that page. An action is what an operator does on
// a page: first a page says what will happen, then a form confirms it.
//
// # Invariants
//
//   - What pages say of pools, claims, runs, steps and hosts are the records and words of package
//     inspect, and actions are its verbs, so that they are recorded.
//   - Nothing that a user can set is interpreted: html/template escapes it, and a
//     Content-Security-Policy lets no script run, and no style apply, that is not in the binary.
//   - Pages work without a script. The script only updates them: a page's own address, requested as
//     text/event-stream, sends the page's main part whenever it differs from what was sent before.
//     So that passing time makes no difference, a stream has exact times, and the script makes them
//     relative.
//   - What is expanded, filtered and paged is in the address, and done by the server: a page is as
//     large as what it shows, not as what exists. Each such address has an entry in the history of
//     the browser.
//   - A page costs etcd little: pages share what they read, from watched copies or from etcd, and
//     are bounded where they read for themselves.
//   - Who may read the HTTP API may read the pages. A page offers the actions that its visitor may
//     carry out: for that it asks the operator that carries them out. Every action is a POST that a
//     page of this server sent.
//
// # Failures
//
// While etcd is unavailable, a page says so with status 503, since when, and what to do, and shows
// its state again as soon as etcd answers. Other problems of a view have their own status. A
// browser that is cut off from the server keeps what it shows, says that it may be old, and tries
// again.
package ui
