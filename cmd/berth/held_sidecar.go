package main

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
)

// sidecarHeld is a claim at a sidecar. It is renewed all the time, be it to live
// or to learn how long it can be trusted, and its end is listened for. What an
// answer says of trust counts from the request's sending: so a sidecar that was
// stopped, or restarted, is believed no longer than it should be.
type sidecarHeld struct {
	holder *sidecarHolder
	id     string
	first  *sidecar.Claim

	stop  context.CancelFunc
	tasks sync.WaitGroup
	over  chan struct{} // closed when the claim has ended

	// mu guards what follows.
	mu     sync.Mutex
	claim  *sidecar.Claim // the answer that is trusted longest
	reason error          // why it has ended
}

func watchClaim(h *sidecarHolder, claim *sidecar.Claim) held {
	ctx, cancel := context.WithCancel(context.Background())
	c := &sidecarHeld{holder: h, id: claim.ID, first: claim, claim: claim, stop: cancel, over: make(chan struct{})}
	c.tasks.Go(func() { c.renewAll(ctx) })
	c.tasks.Go(func() { c.listen(ctx) })
	return c
}

// Renewals of a claim are sent so many times within its lease, so that what is
// known of its trust is never much older than the sidecar's own renewal; but no
// faster than the one, and no slower than the other.
const (
	renewalsPerLease           = 6
	minRenewPause, maxRenewAge = 250 * time.Millisecond, 10 * time.Second
	// renewTry bounds the wait for one answer, of a sidecar on the same machine.
	renewTry = 2 * time.Second
)

// renewAll renews the claim until ctx ends, or the claim does.
func (c *sidecarHeld) renewAll(ctx context.Context) {
	every := min(max(time.Duration(c.first.LeaseDuration)/renewalsPerLease, minRenewPause), maxRenewAge)
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.over:
			return
		case <-ctx.Done():
			return
		}
		err := c.renew(ctx, sidecar.RenewRequest{})
		if timer.Reset(every); err != nil {
			timer.Reset(awayPause)
		}
	}
}

// renew renews the claim once.
func (c *sidecarHeld) renew(ctx context.Context, r sidecar.RenewRequest) error {
	ctx, cancel := context.WithTimeout(ctx, renewTry)
	defer cancel()
	r.Fence = c.first.Fence // the id may be another's by now
	claim, err := c.holder.client.Renew(ctx, c.id, r)
	switch {
	case err == nil:
		c.trusted(claim)
	case isOver(err):
		c.end(err)
	case ctx.Err() == nil:
		c.holder.log.Debug("the claim could not be renewed", "claim", c.id, "error", err)
	}
	return err
}

// isOver tells whether an error says that a claim is not held any more.
func isOver(err error) bool {
	switch problem.CodeOf(err) {
	case problem.ClaimLost, problem.ClaimRevoked, problem.ClaimNotFound, problem.NotHolder:
		return true
	}
	return false
}

// listen waits for the end of the claim.
func (c *sidecarHeld) listen(ctx context.Context) {
	switch err := c.holder.client.Watch(ctx, c.id); {
	case ctx.Err() != nil:
	case err == nil:
		c.end(problem.New(problem.ClaimNotFound, "claim %q was released", c.id))
	case isOver(err):
		c.end(err)
	default: // its trust is known without that
		c.holder.log.Warn("the sidecar does not tell of the end of claims", "claim", c.id, "error", err)
	}
}

func (c *sidecarHeld) trusted(claim *sidecar.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, _ := c.claim.Trust()
	if now, _ := claim.Trust(); now > was {
		c.claim = claim
	}
}

func (c *sidecarHeld) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil {
		c.reason = err
		close(c.over)
	}
}

func (c *sidecarHeld) fence() int64 { return c.first.Fence }

func (c *sidecarHeld) trust() (left, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claim.Trust()
}

// refresh asks the sidecar, which may have kept the claim all the while.
func (c *sidecarHeld) refresh(ctx context.Context) {
	_ = c.renew(ctx, sidecar.RenewRequest{}) // without an answer nothing is learnt
}

func (c *sidecarHeld) ended() <-chan struct{} { return c.over }

func (c *sidecarHeld) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// whyKilled asks the sidecar, which kills the process of a claim that exec has
// not stopped in time, or waits for what it said last before it went away.
func (c *sidecarHeld) whyKilled() error {
	if !c.holder.local {
		return nil // it can't
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewTry)
	defer cancel()
	for c.renew(ctx, sidecar.RenewRequest{}) != nil {
		if err := c.err(); problem.CodeOf(err).Exit() == problem.ExitLost {
			return err
		} else if err != nil {
			return nil // it was released because its process has ended
		}
		select {
		case <-c.over:
		case <-time.After(awayPause):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// bind has the sidecar watch the process itself, and kill it should exec not come
// to stop it. Where it can't, because it is asked over TCP, the claim lives as
// long as it is renewed.
func (c *sidecarHeld) bind(ctx context.Context, pid int) error {
	if !c.holder.local {
		return nil
	}
	for pause := awayPause; ; {
		err := c.renew(ctx, sidecar.RenewRequest{PID: pid, OnlyKill: true})
		switch {
		case problem.CodeOf(err) == problem.StateUnwritable:
			if pause == awayPause { // once
				c.holder.log.Warn("the claim stays tied to exec, and is tied to the command when the sidecar can write that down", "claim", c.id, "error", err)
			}
			pause = maxRenewAge
		case err == nil, !isAway(err):
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release gives the claim back, trying until ctx ends.
func (c *sidecarHeld) release(ctx context.Context) error {
	c.stop()
	c.tasks.Wait()
	for {
		err := c.holder.client.ReleaseFence(ctx, c.id, c.first.Fence)
		if err == nil || !isAway(err) {
			return err
		}
		select {
		case <-time.After(awayPause):
		case <-ctx.Done():
			return err
		}
	}
}
