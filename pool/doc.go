// Package pool keeps pools of slots in etcd, claims on them, and the wait queue.
//
// # Nouns
//
//   - A pool has a [Spec]: a limit, the duration of its leases, and when waiters
//     begin to reserve. Its slots are shared out over at most 50 slot groups.
//   - A claim takes slots of one or several pools, all or none. In etcd it is a
//     handful of slot keys, all put in one revision and on one lease. That
//     revision is its fence.
//   - A waiter is a claim that did not fit, with its place in the wait queue: an
//     [Order] that is the same in all its pools. It names the lease on which its
//     owner has reserved keys for its slots.
//   - The dispatcher of a pool is the instance that grants its waiters, those of
//     other instances too, while there are any.
//   - A notice tells an instance that a dispatcher has granted one of its claims.
//     The instance deletes it: that acknowledges the grant.
//   - An [Engine] makes claims for one instance. A [Revoker] revokes claims of any
//     host, a [Reader] shows everything at one revision, and package registry changes
//     specs. What an engine lists comes from a Reader that its callers share, and not
//     from the view that claims are made from.
//
// # How a claim is made
//
// An engine keeps a view of the pools that it uses, each read or watched as far as
// it acts on it: see [scope]. A goroutine owns the view, and collects operations
// while a transaction is in flight. Then it plans the next: it runs Admit over the
// claims that it may grant, picks slot keys for the grants, and commits under
// compares that fail if anything was put into what it touched since its view. So the
// view may be old: that costs a retry, never a slot.
//
// While no claim waits for a pool, each engine grants its own claims. The first
// waiter puts the pool's key `queued`, under which direct grants fail, and its
// engine becomes the dispatcher. From then on other engines only write waiters.
// The dispatcher runs Admit over the whole queue. A grant to another instance
// deletes the waiter, and puts the slots and a notice on the lease that the waiter
// names. When the queue is empty, the dispatcher deletes `queued` and its own key.
// A claim of several pools is granted by the dispatcher of the first one by name.
//
// Files, in the order of a claim: engine.go (the loop), core.go (the state machine),
// plan.go (what to send next), dispatch.go (which instance grants), package admit (which
// waiters may be granted), placer.go (on which keys), batch.go and builder.go (one
// transaction of many), answer.go (its outcome), notice.go (grants to and from other
// instances), view.go (what is known). Slots that stay with an instance: retain.go (granted
// again without a write), keep.go (together with other writes).
//
// # Invariants
//
//   - After every transaction that adds holders, a pool holds no more than its
//     limit.
//   - No revision shows a part of a claim.
//   - Every slot key hangs on a lease. Nothing is counted anywhere: what is used
//     is the sum over the keys that exist.
//   - A slot key is deleted or overwritten only under a compare of that very key.
//   - A grant compares that no claim waits for its pools, or that its author is the
//     dispatcher. One that takes slots which its instance has already compares their key.
//   - A waiter is granted once: a grant compares the revision of its key, and deletes
//     it.
//   - The outcome of a write that ended without a response is resolved before the
//     next write: the guard makes sure that it can't happen any more, and the view
//     shows whether it did, or the keys that it has put on the lease of kept slots.
//
// # When things fail
//
// A watch that falls silent for 2 s grants nothing until it has been replaced.
// While etcd is away, claims that are held stay held for as long as their leases
// are valid, and waiters wait. A full etcd still takes releases. A value that
// can't be read closes the pool it belongs to, and names its key.
//
// A dispatcher that has not put its key for 1.5 to 2 s is replaced by an instance
// whose claims wait. An instance has at most 4 notices in a pool. If it leaves one for 2 s, all
// its waiters are passed until it has deleted it. A grant to an instance that has
// written nothing for 1 s is conditional: its slots are on a lease of the dispatcher, and
// it is withdrawn after 2 s unless the instance confirms it by putting them on its own.
package pool
