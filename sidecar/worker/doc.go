// Package worker takes published step instances and runs them, up to its concurrency.
//
// # How it works
//
// One goroutine, the loop, owns the state: the published instances of the worker's queues
// in their order, and the instances that the worker has. It decides with [pick] which to
// take next. Other goroutines take, run and finish them, and post the results to the loop.
//
// An instance is taken in one transaction together with the slots that it needs. So an
// instance that is published twice starts once, an instance of a canceled run never
// starts, and no instance occupies a worker while it waits for a slot. Instances whose
// slots are not free wait in the wait queues of the pools, like any claim, while others
// are taken.
//
// Places go to instances in the order of the queues, with or without slots: see [deal]. Only an
// instance whose slots are not free is passed. The place of an instance that ends goes to the
// next one in the same transaction if both need slots or neither does, and otherwise when the
// end is written.
//
// # What survives
//
// A worker that is killed leaves its instances to the next process of its name: their
// leases continue, and so do their commands, each under its own supervisor (see package
// child). If no process takes over in time, the commands are stopped before their leases
// expire, and the coordinator has the instances tried again elsewhere.
//
// The output of commands goes to files, which are kept for a while after their end. Then
// the end of the output is written to etcd; before, only while it is followed: see
// [followers].
//
// The worker has a folder for each instance, written before it is taken, from which the
// next process takes over.
package worker
