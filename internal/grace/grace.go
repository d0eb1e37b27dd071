// Package grace holds the times that berth gives a process to stop, and those by which it
// has to be gone. They depend on each other, so they are here and nowhere else.
//
// A process is stopped in this order: its claim ends, its supervisor is notified,
// it gets SIGTERM, and [Stop] later SIGKILL. Its slots may be another's only when the last
// SIGKILL has taken effect. Before the end of a lease, that is ensured by counting back
// from it: see lease.Window. Otherwise the slots are kept for longer than all of that can
// take: [Revoke].
package grace

import "time"

const (
	// CheckInterval is how often supervisors of processes check the clock. Timers stop
	// while the machine is suspended, so only a check of the clock is reliable.
	CheckInterval = 250 * time.Millisecond

	// Kill is how long after a process is to be killed it is gone: one check that comes
	// late, and as long again for the signal to take effect. It is what the margin of
	// every lease leaves at least.
	Kill = 2 * CheckInterval

	// Stop is the longest time between SIGTERM and SIGKILL, however long the lease: more
	// would cost more of etcd's absence than it is worth. The grace of exec, of workers
	// (--stop-grace) and of processes that a sidecar watches is a sixth of the lease, and
	// no more than this.
	Stop = 10 * time.Second

	// Notice is how long it takes at most until the end of a claim is known to its
	// supervisor. In the same process, and from a sidecar to its exec, that is a
	// moment; a stream of events that has just broken is open again within 3 s.
	Notice = 4500 * time.Millisecond

	// Revoke is how long after a revocation the slots are kept for a holder that does not
	// report that it has stopped.
	Revoke = Notice + Stop + Kill
)
