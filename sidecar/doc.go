// Package sidecar is the HTTP server of berth: the process that a host's jobs call.
//
// # Nouns
//
//   - A [Server] is one instance of berth (see package berth) behind HTTP, on a unix socket,
//     on TCP, or both. It claims for others. Package server listens, guards and reads
//     requests; package api has the wire types; package client calls it.
//   - A holder has a claim, and an executor has an attempt of a run or of a step instance.
//     Packages claims and executor state their invariants.
//   - A session is what exists once etcd has answered: the client of the instance, the
//     holders, the executors, and the stores. Handlers get it; until then they are not called.
//   - A [HealthServer] serves the health and the metrics of a process that is no sidecar.
//
// # Invariants
//
//   - Before etcd has answered, /healthz reports that the process is alive, /readyz reports
//     what is missing, and everything under /v1 is refused with 503.
//   - valid_for counts from the sending of the request that it answers. It never ends later
//     than the lease or the ttl, by any clock that is at most 2 % wrong, however long the
//     request has waited. A holder that has stopped by then has stopped before the slots can
//     be granted to others. A holder that renews each third of the ttl never comes near the
//     grace.
//   - A request for a claim is among the waits until its claim is among the holders: so a
//     release finds it at any time.
//   - A claim is its id and its fence. A request with the same id finds the claim only if the
//     requests are equal, the client token included.
//   - A heartbeat is answered from the record as it is then. While etcd does not answer, the
//     validity of the lease decides.
//
// # When things fail
//
// While etcd does not answer, claims wait, reads are answered from what was last known, and
// validity runs out; what can't be answered is etcd_unavailable. A server that is killed and
// started again within the leases takes its claims and runs over: processes are watched again,
// ttls begin again. A client that hangs up while it waits leaves the wait queue; one that
// hangs up later leaves a claim that ends as its binding says.
//
// A stop waits for claims to be released and for runs to be finished. Then it notifies the
// holders and executors that are left (409 claim_lost, run_lost), gives them
// [lease.StopGrace] to stop, and releases their slots.
//
// # Who may ask
//
// The unix socket is guarded by the permissions of its file, and needs no token. TCP on a
// loopback address may be used by every user of the host, or with a token; any other address
// needs TLS, and tokens or client certificates. Requests of other sites in a browser are refused, reads included, and
// so are Host names that the server does not know.
package sidecar
