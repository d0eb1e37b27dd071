// Package owner makes and ends the claims of one instance. It is a state machine: it is shown what is asked for and
// what etcd has answered, and returns the next transaction and what has become of claims. It has no clock,
// connection or goroutine.
//
// A claim is made directly, where nobody waits: the instance chooses slots from what it remembers of their pools, and
// commits them under compares of the specs, of the slots and of the key that exists while claims wait for a
// pool. All claims and releases that arrive while a transaction is under way share the next one. It has all compares at
// its root. If one of them fails, the same is sent once more with a child for each claim and release, so that
// each succeeds or fails by itself, and what the others need to know is read where one fails.
//
// Claims that have to wait are refused: a wait queue is not part of this package yet.
//
// A claim that finds a release of the same slots in its transaction takes over the keys: one put instead of a put and a
// delete, and no race.
package owner
