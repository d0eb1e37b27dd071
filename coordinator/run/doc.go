// Package run keeps the records of runs: queued work that is admitted under limits.
//
// A [Run] is submitted with a [Spec], waits in the queue, is admitted by the
// coordinator, started by an executor, and ends:
//
//	queued → not_started → running → succeeded | failed | canceled
//
// Everything is in etcd: the record of a run in one key, the [Limits] in one, and
// the events of a run below a prefix of its own. A [Store] changes them. Every
// change compares the revision of the record that it was made from, so of two that
// race one is made and the other sees it; and it can be asked for again after an
// answer was lost.
//
// To read along: status.go, spec.go and record.go (what a run is), limits.go and
// tag_limit.go (what is allowed), store.go (one change at a time), submit.go,
// cancel.go, execute.go (the ways of a run), due.go (when it joins the queue), event.go
// (what has happened), follow_events.go (what happens), follow.go (what happens to claims
// of runs), candidate.go (who coordinates).
package run
