// Package executor keeps the executors of runs and of step instances that were started
// through a server: it knows which attempt each of them has, and whether it still lives. It
// knows nothing of how the executors ask.
//
// # Nouns
//
//   - An [Executor] has one attempt of a run or of a step instance, named by id and fence.
//     [Executors] are those of a server.
//   - A key under active/ says that an executor lives. It is on a lease of this instance: on
//     a key reservation, or on the lease of the claim that holds the slots of the attempt.
//   - A pending start is one whose outcome is unknown, because its answer from etcd was lost.
//
// # Invariants
//
//   - An attempt exists while its key does. The key goes when the attempt is finished, its
//     time to live has passed, or its lease has ended; the coordinator then gives the run or
//     the step instance to others.
//   - The same executor name that starts again gets the same attempt.
//   - A fence that is not that of the current attempt never changes anything.
//   - An attempt is answered as valid only as long as both its lease and its
//     time to live are; its executor must begin to stop a grace before that.
//   - A start whose outcome is unknown keeps its lease until the outcome is known.
//   - While etcd does not answer, the validity of the lease decides whether an attempt goes on.
//   - A key on a lease of this instance that belongs to no executor here is deleted: every 15 s
//     what is known here is compared with etcd.
//   - A server that is started again takes over the attempts of the one before, each with its
//     time to live.
package executor
