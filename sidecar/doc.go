// Package sidecar is the HTTP door of berth: the process that a host's jobs talk
// to, and a client for it.
//
// # Nouns
//
//   - A [Server] is one instance of berth (see package berth) behind HTTP, on a
//     unix socket, on TCP, or both. It claims for others, and is their witness:
//     it knows who holds each claim and whether that holder still lives.
//   - A holder is one claim with its binding. A binding says how the server knows
//     that the holder lives: by a time to live (ttl) within which it renews, by a
//     process (pid), by both, whichever ends first, or by nothing, until it
//     releases.
//   - An executor is who runs a run that it has started through a server, and one
//     attempt of it: it says by heartbeats that it lives. The server keeps a key in
//     etcd for it, active/<host>/<run>, on a lease of its own; the coordinator takes
//     a run whose key is gone from its executor. Executors of step instances are the
//     same with another key, active/<host>/<run>/<step>/<index>. One that is told that
//     its run or instance was canceled keeps its slots until it has finished, or its
//     ttl has passed.
//   - A [HealthServer] is the same door for a process that is no sidecar, with nothing
//     behind it but the health of the process and its metrics.
//   - A [Problem] is what every error is answered as: problem+json with a stable
//     code. The codes and their statuses are those of internal/problem.
//   - A [Client] speaks to a server. Its errors are problems again.
//
// # Invariants
//
//   - Before etcd has answered, /healthz says that the process lives, /readyz
//     says what is missing, and everything under /v1 is refused with 503.
//   - trusted_for counts from the sending of the request that it answers, and
//     never lasts longer than the lease, nor than the ttl, by any clock that is at
//     most 2 % wrong, however long the request has waited. Whoever has stopped by
//     then has stopped before anybody else can have the slots. Whoever renews each
//     third of the ttl never comes near the grace.
//   - A request for a claim is among the waits until its claim is among the holders:
//     so a release finds it at any time.
//   - A claim is held while somebody may know of it: one whose client was gone before it
//     had read the answer is given back, at once or, if the request had an id, unless
//     somebody asks again within 10 s.
//   - A claim whose trust has ended keeps its slots until its holder says that it
//     has stopped (DELETE), its process is gone, its ttl has passed, or etcd ends
//     its lease. For some minutes after that it is answered with why.
//   - A process that a claim is bound to is the very process that was named:
//     what is watched is a pidfd, and what is remembered is the time of its start on
//     the machine's own clock, and its pid namespace. Only one that is sure to have
//     ended frees its slots after a restart.
//   - A claim is its id and its fence. Who asks with the id again finds it only by
//     the same request, of which the asker is a part; a renewal or a release that
//     names the fence never touches a later claim of the id.
//   - A binding survives the server: it is recorded with the claim in etcd, and
//     later changes of it in the state directory. One that can't be kept there is
//     refused, and what was in force before stays.
//   - The binding of a claim with a process is in the state directory before the claim
//     is answered, with how long it is valid; so are renewals of its lease. A server that
//     is started again stops the process by that until it has taken the claim over. What
//     is recorded late ends early, so a full disk never lets a process run for too long.
//   - A heartbeat is answered from the run's record as it is then: a run that was
//     canceled, or that somebody else has, is told so at once. While etcd does not
//     answer, trust in the lease decides.
//   - The key of an attempt is deleted only under a compare of the revision at which
//     it was put, which is the attempt's fence.
//   - A start of which the answer was lost is looked after until it is known to be
//     made, or can't be any more.
//
// # States of a holder
//
//	      POST            DELETE, its process ended, stopped by the server
//	(none) ───▶ held ───────────────────────────────────▶ released
//	              │                                          ▲
//	              │ lease not renewed, revoked, ttl passed   │ DELETE, its process
//	              ▼                                          │ ended, ttl passed
//	            ended (409 claim_lost or claim_revoked) ─────┘
//
// With executors it is as with holders that have a ttl: one that is not heard of
// within it has lost the run, and one whose lease was lost is told with its next
// heartbeat. A stop waits for runs to be finished, tells the executors that are
// left (409 run_lost), gives them [lease.StopGrace] to stop or to finish, and then
// gives their runs up.
//
// # Stopping a process
//
// A process that a claim is bound to is stopped when trust in the claim ends: it
// gets SIGTERM when trust is about to end ([lease.StopGrace] before), or at once
// when an operator takes the claim back, and SIGKILL when that grace is over. The
// signals go to that process alone, not to its children. A holder that stops its
// process itself says so (only_kill), so that nothing is told to stop twice: then
// the server only kills what still runs when the grace is over.
//
// # When things fail
//
// While etcd is away, claims wait, reads answer from what was last known, and
// trust runs down; what can't be answered is etcd_unavailable. A server that is
// killed and started again within the leases takes its claims and runs over:
// processes are watched again, ttls begin anew. A state file that can't be read is told in
// the log, and the binding recorded in etcd counts. A client that hangs up while
// it waits leaves the line; one that hangs up later leaves a claim that ends as
// its binding says.
//
// # Who may ask
//
// The unix socket is guarded by its file: whoever may open it may use it, without
// a token. TCP on a loopback address may be used by everybody on the host, or
// with a token by whoever has it; any other address needs TLS and a token. Pages
// of other sites in a browser are refused, reads included, and so are names for
// the server that it does not know.
package sidecar
