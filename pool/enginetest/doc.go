// Package enginetest has the behaviors of the engine that its callers rely on, as tests.
//
// # Nouns
//
//   - A behavior is one test. Its name is a sentence that is true of the engine.
//   - A world is an etcd with instances on it, for one behavior. It uses of them what the Go API, the sidecar, the
//     coordinator, workers and commands use, and nothing else.
//
// # What behaviors depend on
//
// Behaviors run on a stand-in for etcd under a fake clock. Those that need neither faults nor time run on a real etcd
// as well, under a prefix of their own. But for those that damage keys, they depend on no key or value, and on what is the
// same for every layout: leases, guards, revocations, presence, and the order of fencing tokens. What is held or waits is
// read as callers read it.
//
// After each behavior on the stand-in, the invariants are verified at every revision that it has made, unless the
// behavior damages keys or restores etcd.
//
// # Promises that are pinned elsewhere
//
//   - That instances start at different slots, and which slots a claim takes: package slots, which decides it.
//   - The rights of users of etcd: the tests of commands, on an etcd with authentication.
//   - Client tokens, the owner of a claim, and the events of steps: packages sidecar and worker.
//   - Costs and times: the benchmarks, and the campaign of faults.
package enginetest
