// Package owner makes and ends the claims of one instance. It is a state machine: it is shown what is asked for and
// what etcd has answered, and returns the next transactions and what has become of claims. It has no clock,
// connection or goroutine.
//
// Where no claim waits, a claim is made directly: the instance chooses slots from what it remembers of their pools, and
// commits them under compares of the specs, of the slots and of the key that exists while claims wait for a pool. A claim
// that finds a release of the same slots in its transaction takes over the keys: one put instead of a put and a delete,
// and no race.
//
// A claim that finds a pool full, or others waiting for it, becomes a demand: a place in the wait queue, in etcd. The
// dispatcher, one instance of all, offers slots to demands. An offer is advice: the owner of the demand commits it, on its
// own lease, under the compares of a direct claim and that the offer was not taken back.
//
// A caller may have other keys written with the slots of a claim, or with their release, under its own conditions: all in
// one revision, or nothing. A claim that another instance holds is taken over by putting its keys again, on a lease of this one.
//
// A claim that does not wait passes no other: while its pools are pending it is taken only if a survey of them, with all
// claims that wait, says that it fits behind these. In the same way an owner takes slots for its own demands where no
// dispatcher offers any.
//
// The writer of an instance has two halves. One takes and releases slots: all claims and releases that arrive while a
// transaction is under way share the next one. It has all compares at its root. If one of them fails, the same is sent
// once more with a child for each part, so that each succeeds or fails by itself, and what the others need to know
// is read where one fails. The other half puts demands, so that a claim that has to wait need not wait for
// a commit that is under way.
package owner
