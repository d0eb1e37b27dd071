// Package enginetest has the behaviors that every claim engine must have, as tests that run against a constructor.
//
// # Nouns
//
//   - [Engine], [Registry], [Reader] and [Follower] are the surface of an engine: what the Go API, the sidecar, the
//     coordinator, workers and commands call. A test uses nothing else of it.
//   - An [Opener] makes them, and damages keys of its own layout where a test needs that.
//   - A behavior is one test. Its name is a sentence that is true of the engine.
//
// # What behaviors depend on
//
// Behaviors run on a stand-in for etcd under a fake clock. Those that need neither faults nor time run on a real etcd
// as well, under a prefix of their own. They depend on no key or value of an engine, but on what is the same for every
// layout: leases, guards, revocations, presence, and the order of fencing tokens. What is held or waits is read
// through the surface.
//
// After each behavior on the stand-in, the invariants are verified at every revision that it has made, through the
// engine's own [Reader], unless the behavior damages keys or restores etcd.
//
// A behavior that an engine is known not to have is in [Opener.Known], with the reason, and is skipped for that engine.
//
// # Promises that are pinned elsewhere
//
//   - That instances start at different slots, and which slots a claim takes: package slots, which decides it.
//   - The rights of users of etcd: the tests of commands, on an etcd with authentication.
//   - Client tokens, the owner of a claim, and the events of steps: packages sidecar and worker.
//   - Costs and times: the benchmarks, and the campaign of faults.
package enginetest
