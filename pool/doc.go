// Package pool has the nouns of berth's pools: specs, requests, claims and their holders, events, and what is shown of
// all of them. It does no I/O. The packages below it make claims of them.
//
//   - A pool has a [Spec]: a limit, the duration of its leases, and when slots begin to be reserved for who waits. Each
//     slot of a pool with a limit has a number.
//   - A [Request] asks for slots of one or several pools, all or none. A [Claim] is a request that was granted: in etcd
//     a handful of keys, all put in one revision and on one lease. That revision is its fencing token.
//   - A claim that must wait is a demand in the wait queue. Its rank is its priority, then its age.
//   - The dispatcher is the instance that offers slots to demands of all instances. Each instance commits its own claims.
//
// Package engine makes the claims of one instance, package revoke ends claims of any host for operators, package list
// shows everything at one revision, and package registry changes specs.
//
// # Invariants
//
//   - No number of a slot is ever held twice, and a pool holds no more than its limit.
//   - No revision shows a part of a claim.
//   - Every slot key hangs on a lease. Nothing is counted anywhere: what is used is the sum over the keys that exist.
//   - A slot key is deleted or overwritten only under a compare of that very key.
//   - The outcome of a write that ended without a response is resolved before the next write of the same half: a guard
//     makes sure that it can't happen any more.
package pool
