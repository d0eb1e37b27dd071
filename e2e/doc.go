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
//     its limit. What is taken has numbers below the limit, and no number is held twice.
//   - A claim has all the keys that it lists, put at one revision on one lease,
//     adding up to what it claimed; or it has none.
//   - Every slot, every demand and every id hangs on a lease.
//   - The fencing token of a claim is above those of all that have held its numbers before.
//   - A demand is in each of its pools, or in none.
//   - A pool that is pending gives slots only by an offer, by an advance offer for what its owner gives back, to the
//     dispatcher itself, or to a claim that shows that it had its turn.
//   - No offer, and no such turn, passes a claim of a higher rank that needs no more of the same
//     pools, unless the dispatcher may not know that one or has a reason to leave it out.
//
// A [Gap] is a time in which a claim that waits and fits was not granted.
//
// The tests check what only the holders know: that a fence they got
// is the one in etcd, that they learned of a loss before etcd gave their
// slots away, and that no claim waits for ever.
package e2e
