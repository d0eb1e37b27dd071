// Package lease renews the etcd leases of one instance and states how long they
// are valid.
//
// # Nouns
//
//   - A [Keeper] owns the leases of claims, or of waiters: one per duration, and
//     one more for each [KeysPerLease] keys. It grants, renews, judges and revokes.
//   - A [Window] is how long a lease is valid without another renewal. It
//     is a pure value on a [Clock] that counts through suspend.
//   - A [Presence] is the instance's entry among the hosts, on a lease of its
//     own.
//   - A [State] is the directory that makes an instance resumable: a lock, so
//     that one process at a time owns it, and a token, which marks its leases.
//
// # Who is authoritative
//
// etcd decides when a lease ends. A keeper only knows a time before which it
// can't have ended: a holder that stops by then has stopped in time. That holds as
// long as etcd's clock and this host's run at about the same speed, which is
// what the margin of a window pays for.
//
// # States of a lease
//
//	      grant, listed                    no renewal in time, or gone
//	(none) ───────────▶  valid  ─────────────────────────▶ lost (reported once)
//	Adopt │               ▲  │ ▲                             ▲
//	      ▼  first renewal│  │ │ a renewal sent later        │
//	   adopted ───────────┘  ▼ │                             │
//	      │               suspect ───────────────────────────┤
//	      └──────────────────────────────────────────────────┘
//	valid, without keys for a while ─▶ revoked
//
// An adopted lease is one of an earlier process of the instance. It is valid for
// as long as etcd says that it lives, counted from when it was asked, and takes no new
// keys until this process has renewed it. A suspect lease is still valid, but takes no
// new keys.
//
// # Invariants
//
//   - Validity ends at the time the last successful renewal, or the grant, was
//     sent, plus the time to live, less the margin. How long the answer took
//     never adds to it, and a validity that has ended never returns.
//   - A lease of a keeper with a token is used only after its key under
//     leases/ is in etcd, on that very lease. So the list of what can be resumed
//     is complete, and ends by itself with what it lists.
//   - A keeper never revokes a lease with keys on it, [Keeper.RevokeAll]
//     excepted. A lost lease is left to run out: its holders may need that time.
//   - No renewal waits for another one.
//
// # When things fail
//
// While etcd is away, renewals are tried again and again, each with a deadline
// of its own, and validity runs out; [Survives] is how long an absence does no
// harm. A lease that etcd no longer knows is lost at once. After a suspend
// that was longer than the window everything is lost at the next check of the
// clock. Grants that fail are tried again with growing pauses. Callers do not
// block on a grant: a [Keeper.Acquire] that can't be served returns false, and
// OnReady is called later. Losing the presence lease only hides the instance; no
// claim is harmed.
package lease
