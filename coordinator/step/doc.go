// Package step has the steps of runs: they depend on each other, and fan out into one
// instance per item.
//
// A [Spec] is the submitted form of one step. [NewGraph] validates all specs of a run
// together and returns their [Graph]: one [Shape] per step, each after the steps that it
// needs. A shape has no items; [Graph.Work] renders the work of an instance once, when the
// run is submitted.
//
// # Invariants
//
//   - A graph has no cycles, and each step comes after those that it needs.
//   - An instance is identified by the number of its step in the graph and the index of its
//     item. A step without items has one instance, of index 0.
//   - Rendering depends only on the spec, the item and [About]: not on a clock, nor on the
//     environment. It terminates: templates cannot loop, and their output is bounded.
//   - Every problem names the field, such as steps.extract.needs.
//   - The revision at which an instance was taken is the fencing token of its attempt, and
//     every end of the attempt compares it. An instance is requested again only after it has
//     ended, or was lost: so two executors never have it at the same time, and fencing
//     tokens grow.
//   - Only [Store.Retry] continues after the end of an instance, or of its run.
//
// Files: spec.go and items.go (the submitted form), template.go and recipe.go (rendering),
// graph.go (the steps and their order), record.go and store.go (the records in etcd),
// work.go (the work of an instance), take.go and finish.go (an attempt), retry.go and
// cancel.go, worker.go (workers and their modes), wait.go (why an instance waits),
// overview.go and instances.go (lists), log.go and follow.go (output).
package step
