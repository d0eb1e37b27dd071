// Package coordinator admits queued runs under limits. Of any number of candidates
// one leads; the others wait for its end.
//
// # Nouns
//
//   - A [run.Candidate] stands with a key on the presence lease of its instance. The one
//     whose key was created first leads; the revision of its creation is its term.
//   - A tick plans over one [Snapshot] of all that is known, and carries the [Plan]
//     out in chunks. It comes when something has changed, and when time alone changes
//     the plan.
//   - The [Queue] holds the queued runs in order, so that a plan costs by what has
//     changed.
//
// To read along: election.go (who leads), leader.go (one term), state.go (what is
// known), plan.go (what is to be done: pure), tick.go and chunk.go (doing it).
//
// # Invariants
//
//   - Every write of a leader compares the revision of its election key and puts the
//     key anew. So none is made without the leadership, and after a write without an
//     answer the next one, or its refusal, tells what that one did: see [fence].
//   - A run changes only under a compare of its record, and is admitted only under a
//     compare of the limits besides. So a cancel, a start and a change of the limits
//     are never overlooked, however old the leader's view is.
//   - How many runs are in progress is counted anew for each plan, from the records
//     alone. Only the leader makes that number grow.
//
// # When things fail
//
// A leader that stops steps down; one that dies is followed when its lease ends,
// 10 s after its last renewal at the latest. Nothing has to be handed over: the next
// one reads all there is. A record that can't be read is named in the log and left
// out; if it seems to be in progress, as one of a newer version may, it counts all the
// same. Limits that can't be read leave those from before in force.
package coordinator
