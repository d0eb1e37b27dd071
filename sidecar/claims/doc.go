// Package claims keeps the claims that a server makes for clients: it records the holder of each
// claim, and detects whether the holder is still alive. It does not depend on how clients send
// their requests.
//
// # Terms
//
//   - A [Holder] is one claim with its binding; [Holders] are all holders of a server.
//   - A [Binding] describes how the server detects that a holder is alive: by a ttl within which it
//     renews, by a process, by both (whichever ends first), or not at all, until it releases. A
//     [Life] is the binding that a holder requests.
//   - A [proc.Process] is the process to which a claim is bound, watched by a [proc.Watcher].
//   - [Files] keep bindings in the state directory.
//   - [Orphans] are the processes to which an earlier server bound claims.
//
// # Invariants
//
//   - A claim whose validity has ended keeps its slots until its holder reports that it has
//     stopped, its process is gone, its ttl has passed, or etcd ends its lease. For some minutes
//     after that, [Holders.Find] returns why it ended.
//   - A claim that is bound to a process keeps its slots until that process has ended, or its
//     owner releases it, even if the process can't be stopped or watched. Without a process, the
//     slots are kept for [pool.RevokeGrace] after a revocation.
//   - The server signals a process only if the user who bound it could signal it.
//   - If a client hangs up before it has read the answer, its claim is released: at once or, if the
//     request had an id, unless it is requested again within 10 s.
//   - A process is never mistaken for another one with the same number: the server watches a pidfd,
//     and stores the start time on the machine's own clock and the pid namespace.
//   - A claim is identified by its id and its fence. A request with a fence never affects a later
//     claim with the same id.
//   - The binding of a claim with a process, and its validity, are in the state directory before
//     the claim is answered ([Holders.Record]). Renewals of its lease are recorded later
//     ([Holders.RecordLeases]). Until a restarted server has taken the claim over, it stops the
//     process by this record. If a renewal was recorded too late, the process is stopped too early.
//   - A binding that can't be stored is refused, and the previous binding stays in force.
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
// The server stops the process of a claim when the validity of the claim ends. The process gets
// SIGTERM [lease.StopGrace] before that end, or at once when an operator revokes the claim, and
// SIGKILL when the grace is over. The signals go only to that process, not to its children. With
// OnlyKill, the holder stops its process itself, and the server kills the process only if it still
// runs when the grace is over.
package claims
