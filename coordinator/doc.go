// Package coordinator admits queued runs under limits, and publishes the steps of admitted
// runs. Of any number of candidates, one is elected leader.
//
// # Nouns
//
//   - A [Coordinator] is a candidate: see package election.
//   - A tick plans over one [Snapshot] of the known state, and applies the [Plan] in
//     chunks. It runs when something has changed, and when time alone changes the plan.
//   - The [Queue] holds the queued runs in order, so that the cost of a plan depends on
//     what has changed.
//
// Read coordinator.go and leader.go (one term), state.go and step_state.go (the known
// state), plan.go and dispatch.go (the plans, which are pure), tick.go (applying them).
//
// # Invariants
//
//   - Every write of a leader compares the revision of its election key and puts the key
//     again: see [election.Fence]. So only the leader writes, and after a write with an
//     unknown outcome, the next write, or its refusal, determines the outcome.
//   - A run changes only under a compare of its record. It is admitted only under a
//     compare of the limits as well. So a cancel, a start and a change of the limits are
//     never overlooked, even by a stale leader.
//   - The number of runs in progress is counted for each plan from the records alone. Only
//     the leader increases it.
//
// # Errors
//
// A leader that stops steps down. A leader that dies is followed when its lease expires,
// at most 10 s after its last renewal. The next leader reads the whole state from etcd. A
// record that cannot be read is logged and ignored; if it seems to be in progress, as one of
// a newer version may be, it still counts. If the limits cannot be read, the earlier ones
// stay in force.
package coordinator
