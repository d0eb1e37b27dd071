// Package bench measures what claims and queued runs cost, on the etcd it is
// pointed at, beside what etcd itself costs in the same minute.
//
// # Words
//
//   - A [Suite] is what a benchmark is about: claims, the queue, or steps.
//   - A [Case] of claims is one load: so many clients on so many hosts claim slots of so
//     many pools in a closed loop, through one door.
//   - A door is a way to claim: the Go API, with an instance of berth in this
//     process for each host; HTTP, with a sidecar in a process of its own for
//     each host; or the floor.
//   - The floor is what a program without berth would do at the least: each
//     client puts a key of its own in place of a claim, and deletes it in place
//     of a release, with etcd's plain client and one connection for each host.
//   - A round is the reference of a case and then the case itself, each for the
//     same short time. What is reported is the median of the ratios of the
//     rounds: a machine that slows down for a while slows down both.
//   - A cycle is one claim from the asking to the end of the release. All figures
//     are computed from the cycles, after the load.
//   - A [Target] is what a figure is to reach.
//
// # What is measured how
//
// The first part of each load warms up and is not counted. A hold is a sleep,
// which takes somewhat longer than asked; slots count as used from the grant to
// the call of the release, and the real hold is reported beside.
//
// A hand-over is the time from the call of a release to the grant that it made
// possible. In a pool that is full, the k-th release makes the k-th grant after
// the first ones possible: both are sorted by time and paired. With one slot this
// is exact; with more, the mean is exact, and the spread is nearly so.
//
// # The queue
//
// Runs are submitted in a closed loop. The floor is one put for each, of a key of
// its own and as large as the record; both are deleted between rounds.
//
// An admission is measured out of idleness: a coordinator in this process leads and
// has room, an executor watches all runs on a connection of its own, and a client
// submits one run at a time, with a pause between. What counts begins with the
// answer to the submission, and ends when the executor has seen the run admitted.
// The put beside it is one at once after another write, as for hand-overs.
//
// A crowd is a long queue under many limits: nearly no two of its runs meet the same
// ones, and all are held up. Plans are made over it in memory, as a leader makes
// them in a tick. What a leader takes is measured with the same crowd in etcd: it
// runs in this process, and what counts is by how much the process has grown, after
// garbage was collected, once the reason of each run is noted.
//
// # Steps
//
// A load is a run whose steps do nothing, and ends when none is left and no slot is
// held. Its time is that from the answer to the submission until the last worker knows
// that its last step was written; what etcd was asked is counted from before the
// submission, so that all of a step's life is in it. Part of a load is run before and
// does not count.
//
// Coordinator and workers run in this process, on connections and under host names of
// their own, and start no processes and make no folders for steps. The reference of a
// case is the same steps without tasks, on the same workers: what is left is what limits
// cost. That of the baseline is the floor of claims.
//
// The time to take a step begins with the time in its record, which is in whole
// milliseconds: half of one is taken off. The time to complete one does not have the
// release of its slot in it, which comes after; the slot is not free before.
//
// Attempts of such steps can't fail. Those that end otherwise, because an instance was
// lost, are tried again and reported.
//
// # What it leaves behind
//
// Everything is below a prefix of its own under the prefix it is given, which
// is deleted at the end, with the leases of what was logged about runs. The history of
// etcd has grown by what was written: on an etcd that nobody compacts, so has its
// database.
package bench
