// Package election elects a leader among the processes that campaign for the same
// office: the coordinator, or the process that runs a source.
//
// # Nouns
//
//   - A [Campaign] is one process' part in an election. Its key is attached to the
//     presence lease of the process, so it disappears with the process.
//   - A [Candidate] is the record under that key. The candidate whose key was created
//     first leads. The revision at which the key was created is its term.
//   - A [Fence] makes the writes of a leader conditional on its key.
//
// # Invariants
//
//   - Terms increase from one leader to the next.
//   - A write under a [Fence] succeeds only while the key of the leader exists. Two
//     processes may both consider themselves the leader for a moment, but only one of
//     them can write.
//   - A candidate that this version cannot read counts as a candidate all the same.
//
// If another etcd cluster replaces that of a term, the term ends, and its context refuses all
// requests. The campaign goes on in the other cluster with a new lease.
//
// A campaign that ends revokes its lease, so that the next candidate leads at once. If
// the process is killed, the next candidate leads when the lease has expired.
package election
