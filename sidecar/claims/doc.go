// Package claims keeps the claims that a server has made for others: it knows who holds
// each claim, and whether that holder still lives. It knows nothing of how the holders ask.
//
// # Nouns
//
//   - A [Holder] is one claim with its binding; [Holders] are those of a server.
//   - A [Binding] says how the server knows that a holder lives: by a time to live within
//     which it renews, by a process, by both, whichever ends first, or by nothing, until it
//     releases. A [Life] is what the holder asks for.
//   - A [proc.Process] is one that a claim is bound to, watched by a [proc.Watcher].
//   - [Files] keep bindings in the state directory.
//   - [Orphans] are the processes that an earlier server has bound claims to.
//
// # Invariants
//
//   - A claim whose validity has ended keeps its slots until its holder says that it has
//     stopped, its process is gone, its time to live has passed, or etcd ends its lease.
//     For some minutes after that [Holders.Find] says why it has ended.
//   - A claim that is bound to a process keeps its slots until that process has ended, or its
//     owner releases it, even if the process can't be stopped or watched. Without a process,
//     they are kept for [pool.RevokeGrace] after a revocation.
//   - A process is signaled only as the user who bound it could signal it.
//   - A claim whose client hung up before it had read the answer is released: at once or, if
//     the request had an id, unless it is requested again within 10 s.
//   - A process is the very process that was named: what is watched is a pidfd, and what is
//     remembered is the time of its start on the machine's own clock, and its pid namespace.
//   - A claim is its id and its fence. What names a fence never touches a later claim of the
//     id.
//   - The binding of a claim with a process is in the state directory before the claim is
//     answered ([Holders.Record]), with how long it is valid; so are renewals of its lease
//     ([Holders.RecordLeases]). A server that is started again stops the process by that
//     until it has taken the claim over. What is recorded late ends early.
//   - A binding that can't be kept is refused, and the one before stays in force.
//
// # States of a holder
//
//	      Add             Release, its process ended, stopped by the server
//	(none) ───▶ held ───────────────────────────────────▶ released
//	              │                                          ▲
//	              │ lease not renewed, revoked, ttl passed   │ Release, its process
//	              ▼                                          │ ended, ttl passed
//	            ended (claim_lost or claim_revoked) ─────────┘
//
// # Stopping a process
//
// A process that a claim is bound to is stopped when the validity of the claim ends: it
// gets SIGTERM [lease.StopGrace] before the end, or at once when an operator revokes the
// claim, and SIGKILL when that grace is over. The signals go to that process alone, not to
// its children. With OnlyKill the holder stops its process itself, and the server only
// kills what still runs when the grace is over.
package claims
