// Package bench measures the cost of claims on an etcd, compared with plain writes in the same
// minute, and how the cost depends on the number of hosts. `berth bench claims` reports the figures of
// claims. The project's own measurements, in e2e/bench, report those of hosts, and add the queue, steps
// and targets.
//
// # Words
//
//   - A [Case] is one load: a number of clients on a number of hosts claim slots of one
//     or two pools in a closed loop, through one API.
//   - A [Driver] carries out the claims: through the Go API, with an instance of berth
//     in this process for each host; over HTTP, with a sidecar process for each host; or as the
//     floor.
//   - The floor is the least that a program without berth would do: instead of a claim, each client
//     puts its own key, and instead of a release, deletes it, with etcd's plain client and one
//     connection for each host.
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
// A transfer is the time from the call of a release to the grant that the release made possible. In
// a pool that is full, the k-th release makes the k-th grant after the first ones possible: both
// are sorted by time and paired. With one slot this is exact; with more, the mean is exact, and the
// spread is nearly so.
//
// In the case uneven, the clients of a full pool are on hosts with very different numbers of clients.
// It reports the longest wait and, for comparison, the fair wait, which would result if the slots
// passed from client to client in turn. It also reports the longest time in which a host had no
// slot.
//
// # Hosts
//
// Many clients on many hosts claim slots of one pool, which is full or has slots for all.
// Hosts are instances in this process, or separate sidecar processes. A load ends for all clients
// at once: claims that still wait are cut, and count only for the longest wait. A round consists of
// plain writes, then one slot that passes between two hosts on an otherwise idle etcd, and then the
// load.
//
// The CPU time of etcd and of the instances is the CPU time of their processes during the measured
// part of the load, minus their CPU time during an equally long period before the first round, when
// all instances were idle. For instances in this process, it includes the clients of the load. All
// share one machine, so the throughput is lower than in a fleet, but the CPU time per claim is
// comparable. The report states how much CPU time other processes used during the loads.
//
// # What remains
//
// All keys are below a separate prefix under the configured prefix, and are deleted at the end. The
// history of etcd has grown by these writes; on an etcd that is never compacted, so has its
// database.
package bench
