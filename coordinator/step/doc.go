// Package step is the work inside a run: steps that need each other, and that fan out
// into one instance per item.
//
// A [Spec] is what somebody submits of one step. [NewGraph] holds all of a run's
// specs against each other and makes their [Graph]: a [Shape] per step, every step
// behind those that it needs. A shape has no items; [Graph.Work] renders what one
// instance is to do, once, when the run is submitted, and that is written down
// and never rendered again.
//
// What always holds:
//
//   - A graph that can be had, made or read back, has no cycles, and no step in it
//     needs one behind it.
//   - An instance is a step's number in the graph and the index of its item. A step
//     without items is one instance, of index 0.
//   - Rendering depends on nothing but the spec, the item and what [About] says: no
//     clock, no environment. It comes to an end: templates can't loop, and what they
//     write is bounded.
//   - Every refusal names the field, as in steps.extract.needs.
//   - The revision at which an instance was taken is the fence of its attempt, and every
//     end of the attempt compares it. An instance comes to be requested again only when it
//     has ended, or was lost: so no two executors have it at once, and fences grow.
//   - Nothing but [Store.Retry] leads on from the end of an instance, or of its run.
//
// Files: spec.go and items.go (what is submitted), template.go and recipe.go
// (rendering), graph.go (the steps and their order), record.go and store.go (what is
// kept in etcd), work.go (what an instance is to do), take.go and finish.go (an
// attempt), retry.go and cancel.go, worker.go (the workers and their modes), wait.go
// (why an instance waits), overview.go and instances.go (what is shown), log.go and
// look.go (output).
package step
