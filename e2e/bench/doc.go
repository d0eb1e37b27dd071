//go:build linux

// Bench measures claims, claims on many hosts, the queue and steps on an etcd, compared with plain writes in the same
// minute, and compares the results with the project's targets. `make bench` starts it. Users
// measure claims with `berth bench claims`, which shares internal/bench with it.
//
// # Words
//
//   - Case, floor, round, reference and driver are as in internal/bench.
//   - A [row] holds the results of a case. Those of hosts are rows of internal/bench, and have no targets. It is planned with its case, and its figures are filled
//     in when the case is measured.
//   - A [target] is a bound for a figure, and a [verdict] says whether it was reached.
//   - A backlog is a long queue of runs that all wait.
//
// # The queue
//
// Runs are submitted in a closed loop. The floor is one put for each run, of a separate key with a
// value as large as the record. Both are deleted between rounds.
//
// An admission is measured on an idle system: a coordinator in this process leads and
// its limits allow more runs, an executor watches all runs on its own connection, and a client
// submits one run at a time, with a pause between. The time begins with the response to the
// submission, and ends when the executor has seen the run admitted. The put of the reference
// follows right after another write, as for transfers.
//
// Almost all runs of a backlog are subject to different limits, and all runs are blocked. Plans are
// made over it in memory, as a leader makes them in a tick. The memory of a leader is measured with
// the same backlog in etcd: the leader runs in this process, and the figure is by how much the
// process has grown, after garbage collection, when the reason of each run is recorded.
//
// # Steps
//
// A load is a run whose steps do nothing, and ends when no step is left and no slot is
// held. Its time is that from the response to the submission until the last worker
// knows that its last step was written; requests to etcd are counted from before the
// submission, so that all of a step's life is included. Part of a load runs before and
// does not count.
//
// The coordinator and the workers run in this process, each with its own connections and host name.
// They start no processes and create no folders for steps. The reference of a case is the same
// steps without tasks, on the same workers: the difference is the cost of limits. The reference of
// the baseline is the floor of claims.
//
// The cost of a step with different numbers of workers on its queue is measured twice: with more
// steps than places (busy), where workers receive many events at a time, and with a few slow steps
// at a time (paced), where most workers are woken for each step. Only CPU time is compared between
// numbers of workers, without that of idle processes, because one machine does the work of all
// workers.
//
// The time to take a step begins with the time in its record, which is in whole
// milliseconds: half of one is subtracted. The time to complete one does not include
// the release of its slot, which comes after; the slot is not free before.
//
// Attempts at such steps can't fail. If an instance is lost, it is tried again and reported.
//
// # What it leaves behind
//
// As internal/bench, and the leases of events are revoked.
package main
