// Package lease keeps the etcd leases of one instance alive and says how long
// their holders may trust them.
//
// # Nouns
//
//   - A [Keeper] owns the leases that claims hang on, or waiters: one per duration, and
//     one more for each [KeysPerLease] keys. It grants, renews, judges and revokes.
//   - A [Window] is how long trust in a lease lasts without another renewal. It
//     is a pure value on a [Clock] that counts through suspend.
//   - A [Presence] is the instance's entry among the hosts, on a lease of its
//     own.
//   - A [State] is the directory that makes an instance resumable: a lock, so
//     that one process at a time owns it, and a token, which marks its leases.
//
// # Who is authoritative
//
// etcd decides when a lease ends. A keeper only knows a time before which it
// can't have ended: whoever stops by then has stopped in time. That holds as
// long as etcd's clock and this host's run at about the same speed, which is
// what the margin of a window pays for.
//
// # States of a lease
//
//	      grant, listed                    no renewal in time, or gone
//	(none) ───────────▶ trusted ─────────────────────────▶ lost (reported once)
//	Adopt │               ▲  │ ▲                             ▲
//	      ▼  first renewal│  │ │ a renewal sent later        │
//	   adopted ───────────┘  ▼ │                             │
//	      │               suspect ───────────────────────────┤
//	      └──────────────────────────────────────────────────┘
//	trusted, without keys for a while ─▶ revoked
//
// An adopted lease is one that an earlier process of the instance left. It is valid for
// as long as etcd says that it lives, counted from when it was asked, and takes no new
// keys until this process has renewed it. A suspect lease is still valid, but takes no
// new keys.
//
// # Invariants
//
//   - Trust ends at the time the last successful renewal, or the grant, was
//     sent, plus the time to live, less the margin. How long the answer took
//     never adds to it, and a trust that has ended never comes back.
//   - A lease of a keeper with a token is handed out only after its key under
//     leases/ is in etcd, on that very lease. So the list of what can be resumed
//     is complete, and ends by itself with what it lists.
//   - A keeper never revokes a lease with keys on it, [Keeper.RevokeAll]
//     excepted. A lost lease is left to run out: its holders may need that time.
//   - No renewal waits for another one.
//
// # When things fail
//
// While etcd is away, renewals are tried again and again, each with a deadline
// of its own, and trust runs down; [Survives] tells how long an absence does no
// harm. A lease that etcd no longer knows is lost at once. After a suspend
// that was longer than the window everything is lost at the first look at the
// clock. Grants that fail are tried again with growing pauses; nobody waits for
// one, an [Keeper.Acquire] that can't be served is told so and called back.
// Losing the presence lease costs being seen; no claim is harmed.
package lease
