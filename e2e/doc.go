// Package e2e judges berth from outside: its tests run whole clients and real
// processes on real etcd, break what can break, and follow etcd's own history
// meanwhile.
//
// # Nouns
//
//   - A [History] is what a watch on all of berth's keys has delivered since the
//     first revision. It shares no code with the engine but the spelling of
//     keys, reads values by itself, and checks each revision.
//   - A [Violation] is a revision at which a promise was broken.
//   - A [Hold] is one claim as its keys showed it, from the revision that put
//     them to the one that ended them; a [Wait] the same for a place in the wait queue.
//
// # What is checked at every revision
//
//   - A pool that gets a holder exists, is not paused, and holds no more than
//     its limit.
//   - A claim has all the keys that it lists, put at one revision on one lease,
//     adding up to what it claimed; or it has none.
//   - Every slot and every waiter hangs on a lease.
//   - A slot's fence grows from holder to holder.
//   - A waiter is in the wait queue of each of its pools, or in none.
//   - A dispatcher grants no waiter before one that is ahead of it and needs no more of the
//     same pools, unless it may not know that one or has a reason to skip it. No other instance
//     grants claims of a pool while some wait.
//
// A [Gap] is a time in which a dispatcher granted nothing to a waiter that fits.
//
// The tests check what only the holders know: that a fence they got
// is the one in etcd, that they learned of a loss before etcd gave their
// slots away, and that no claim waits for ever.
package e2e
