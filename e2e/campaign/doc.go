//go:build linux

// Campaign runs berth for minutes or hours while everything around it fails, and
// judges from outside whether the promises of docs/explanation/guarantees.md are kept.
//
// # Nouns
//
//   - A [cluster] is three members of etcd, each a process of its own.
//   - A [host] has a sidecar, a worker, a candidate for the coordinator's part and a
//     [load], each a process of its own that is started again when it ends.
//   - A [network] connects them and can lose, delay and drop what they send: namespaces
//     that a switch in this process connects, or relays on loopback where namespaces are
//     not permitted.
//   - A [load] claims through the Go API, over HTTP on a unix socket and over TCP with a
//     token, starts berth exec, and submits runs with steps. A [job] is the command of
//     an exec or a step.
//   - A [record] is what a job reports while it holds its slots: over a socket of the
//     referee that no fault of the network touches, with the time of the boot clock.
//   - A [stay] is the time in which a job was certainly active, from its first record to
//     its last.
//   - A [neighbor] is a user without rights on the socket of one sidecar, in a process of its own. Two of
//     them make claims as they should, and take turns at sending what may hurt the other: an [attack].
//     The [neighborhood] judges whether they do. Only root can run them.
//   - The dispatcher is the instance that offers slots to all claims that wait, by a key of etcd. A fault
//     may take it away; [moves] judges for how long the queue stands still then.
//   - A [fault] is something that fails, for a time. A [phase] has several at once. The
//     plan is a function of the seed alone.
//   - The [referee] judges each revision of etcd by the rules of package e2e, and stays
//     against limits and fencing tokens. It shares no code with berth but the spelling of
//     keys.
//
// # Course
//
// A phase has its faults, all faults are healed, and the load rests. Then all that was
// asked for must be served within a bounded time, no slot is held, no claim waits, pools have
// no keys but their specs, and berth verify finds nothing. The next phase follows. A
// violation ends the process with exit code 1, and the directory that it names keeps the
// logs and what the referee saw.
package main
