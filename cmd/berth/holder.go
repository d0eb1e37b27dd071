package main

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// holder is where exec keeps its claim.
type holder interface {
	// lease is how long the leases of a pool's claims live.
	lease(ctx context.Context, pool string) (time.Duration, error)
	// claim takes the slots, waiting as long as the request says. If ctx ends
	// first, nothing is taken and nothing waits. After an error of [isAway] the same
	// request finds its claim, or its place in the wait queue.
	claim(ctx context.Context, r pool.Request) (held, error)
	// why tells why a claim waits. An unknown claim is a problem.
	why(ctx context.Context, id string) (pool.Reason, error)
	// close gives up what is left, within a few seconds.
	close() error
}

// held is a claim that a [holder] has.
type held interface {
	fence() int64
	// trust tells how long the claim can be believed to be held unless it is
	// renewed again, and how long its holder may take to stop.
	trust() (left, grace time.Duration)
	// refresh learns the trust anew, after this process has stood still.
	refresh(ctx context.Context)
	// ended is closed when the claim was lost or revoked; err then says so.
	ended() <-chan struct{}
	err() error
	// whyKilled tells, when the process was killed, why whoever keeps the claim has
	// done it: because the claim was lost or revoked, and exec did not stop the
	// process. It is nil where that was somebody else.
	whyKilled() error
	// bind tells which process holds the claim from now on.
	bind(ctx context.Context, pid int) error
	// release gives the slots back.
	release(ctx context.Context) error
}

// minExecLease is the shortest lease that leaves time to stop a child: below it
// a change of etcd's leader alone would kill what it protects.
const minExecLease = 10 * time.Second

// checkLeases refuses pools whose leases are too short for exec. A pool that is
// not there is left to the claim.
func checkLeases(ctx context.Context, h holder, slots map[string]int) error {
	for _, name := range sortedNames(slots) {
		d, err := h.lease(ctx, name)
		switch {
		case problem.CodeOf(err) == problem.PoolNotFound:
		case err != nil:
			return err
		case d < minExecLease:
			return problem.New(problem.Invalid,
				"pool '%s' has leases of %s, and exec needs %s to stop its command in time; 'berth pools set %s --lease-duration %s' changes that",
				name, text.Duration(d), text.Duration(minExecLease), name, text.Duration(minExecLease))
		}
	}
	return nil
}
