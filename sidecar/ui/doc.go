// Package ui is the pages for people who look: pools, queue, runs and hosts, rendered by the
// server, and the few actions that an operator takes from them.
//
// # Nouns
//
// A page is an address, a template, and a view: a function that reads what the page shows now.
// The frame is what is around every page: the layout, the functions that templates use, and who
// looks and whether they may act. A page's template defines "main", which has the page's only h1;
// templates named <page>_*.html are parts of it, those named part_*.html of every page.
// static/<page>.css, if there is one, is linked from that page.
//
// # What always holds
//
//   - Nothing that a user can set is interpreted: html/template escapes it, and a
//     Content-Security-Policy lets nothing run, and no style apply, that is not in the binary.
//   - Pages work without a script. It only keeps them new: a page's own address, asked for as
//     text/event-stream, tells the page's main part whenever it differs from what was told before.
//     So that time's passing is no difference, what is rendered for a stream has exact times, and
//     the script makes them relative.
//   - What can be expanded, filtered and paged is in the address, and done by the server: a page
//     is as large as what is shown, not as what there is.
//   - Looking costs etcd little: views read memory where there is a watched copy, and are bounded
//     where they read etcd.
//   - Whoever may read the HTTP API may look. Who may act has shown the token, or looks at
//     berth dev; every action is a POST that a page of ours has sent.
//
// # When things fail
//
// While etcd does not answer, a page tells so with status 503, since when, and what to do, and
// shows what there is as soon as it answers. A view's other problems are told with their status.
// A browser that is cut off from the server keeps what it shows, says that it is not new, and
// tries again.
package ui
