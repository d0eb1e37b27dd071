// Package worker takes published step instances and runs them, up to so many at a
// time.
//
// # How it works
//
// One goroutine owns what is known: the published instances of the worker's queues, in
// their order, and those that it has. It decides, with [pick], which to take next;
// goroutines beside it take, run and finish, and tell it what came of that.
//
// An instance is taken in one transaction, together with the slots that it needs, so
// that a double publication starts once, a canceled run never, and none sits on a
// worker waiting for a slot. What needs slots that are not free stands in line for
// them, as any claim does, while others are taken.
//
// # What outlives what
//
// A worker that is killed leaves its instances to the next process of its name: their
// leases live on, and so do their commands, each under a supervisor of its own (see
// package child). If no process comes in time, the commands are stopped before their
// leases can end, and the coordinator has the instances tried again elsewhere.
//
// What commands write goes to files, which are kept for a while when they have ended; the
// end of it is put into etcd then. Before, it is put there only while somebody looks: see
// [looks].
//
// The folder of the worker holds one folder for each instance that it has, written
// before it is taken: what it finds there tells the next process what to do.
package worker
