// Package bench measures what claims cost on an etcd, compared with plain writes in the
// same minute, and how that depends on the number of hosts. `berth bench claims` and `berth bench
// hosts` report the figures. The project's own measurements, in e2e/bench, add the queue,
// steps and targets.
//
// # Words
//
//   - A [Case] is one load: a number of clients on a number of hosts claim slots of one
//     or two pools in a closed loop, through one API.
//   - A [Driver] carries out the claims: through the Go API, with an instance of berth
//     in this process for each host; over HTTP, with a sidecar in a process of its own
//     for each host; or as the floor.
//   - The floor is the least that a program without berth would do: each client puts a
//     key of its own in place of a claim, and deletes it in place of a release, with
//     etcd's plain client and one connection for each host.
//   - A round is the reference of a case and then the case itself, each for the same
//     short time. The report has the median of the ratios of the rounds: a machine that
//     slows down for a while slows down both.
//   - A cycle is one claim from the request to the end of the release. All figures are
//     computed from the cycles, after the load.
//
// # How figures are measured
//
// The first part of each load warms up and is not counted. A hold is a sleep, which
// takes somewhat longer than requested; slots count as used from the grant to the call
// of the release, and the actual hold is reported too.
//
// A transfer is the time from the call of a release to the grant that it made
// possible. In a pool that is full, the k-th release makes the k-th grant after
// the first ones possible: both are sorted by time and paired. With one slot this
// is exact; with more, the mean is exact, and the spread is nearly so.
//
// In the case uneven, the clients of a full pool are on hosts with very different numbers of clients.
// It reports the longest wait next to the fair one, in which the slots pass from client to client in
// turn, and the longest time in which a host had no slot.
//
// # Hosts
//
// Many clients on many hosts claim slots of one pool, which is full or has slots for all.
// Hosts are instances in this process, or sidecars in processes of their own. A load ends
// for all clients at once: claims that still wait are cut, and count for the longest wait
// only. A round is plain writes, then one slot that passes between two hosts on an otherwise
// idle etcd, then the load.
//
// The processor time of etcd and of the instances is that of their processes in the time
// that counts, less what they took in the same time before the first round, when all
// instances were idle. Instances in this process include the clients of the load. All share
// one machine, and so the throughput is less than that of a fleet; the processor time of
// each claim is not. The report has what other processes used meanwhile.
//
// # What remains
//
// All keys are below a prefix of their own under the configured prefix, and are deleted
// at the end. The history of etcd has grown by what was written: on an etcd that is
// never compacted, so has its database.
package bench
