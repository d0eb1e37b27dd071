// Package run keeps the records of runs: queued work that is admitted under limits.
//
// A [Run] is submitted with a [Spec], waits in the queue, is admitted by the
// coordinator, started by an executor, and ends:
//
//	queued → not_started → running → succeeded | failed | canceled
//
// The record of a run has one key in etcd, the [Limits] have one, and the events of a run
// have a prefix. A [Store] changes them. Every change compares the revision of the record,
// so of two concurrent changes only one commits, and a change can be repeated after a lost
// response.
//
// Read status.go, spec.go and record.go (what a run is), limits.go, store.go and change.go
// (one change at a time), submit.go, transition.go, event.go and follow.go, journal.go,
// candidate.go (the election of the coordinator).
package run
