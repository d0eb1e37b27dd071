package claims

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

const (
	// checkEvery is the interval at which ttls, and the validity of claims with processes, are
	// checked. The margin of a lease is at least two intervals.
	checkEvery = grace.CheckInterval
	// killAhead is how long before the end of the grace a process is killed, so that a late check
	// is still in time.
	killAhead = grace.Kill
	// killAgain is the pause before SIGKILL is sent again.
	killAgain = time.Second
)

// Run checks the holders until ctx ends.
func (hs *Holders) Run(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			hs.check()
		case <-ctx.Done():
			return
		}
	}
}

// check performs all actions that are due:
//
//  1. If the duration of a lease that was taken over is now known, the ttl that depends on it
//     begins.
//  2. If a ttl has passed, its claim ends and is released.
//  3. If a grant was never read, its claim is released, unless it was requested again.
//  4. A process gets SIGTERM when the rest of its claim's validity is the time that it may take to
//     stop, and SIGKILL when that time is over.
func (hs *Holders) check() {
	now := hs.clock.Now()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.byID {
		if h.lease == 0 && h.why == nil {
			hs.extend(h)
		}
		if h.unseen != nil && !h.releasing {
			hs.find(h)
		}
		if h.unreadAt > 0 && now >= h.unreadAt && !h.releasing {
			hs.releaseUnread(h)
		}
		if h.expires > 0 && now >= h.expires && !h.releasing {
			hs.expire(h)
		}
		if h.proc != nil && !h.releasing {
			hs.checkValid(h, now)
		}
	}
}

// expire ends a claim that was not renewed in time.
func (hs *Holders) expire(h *Holder) {
	if h.why == nil {
		ttl := h.ttl()
		hs.gone.Log(hs.log, hclog.Info, "ttl", "a claim was not renewed within its ttl", keyClaim, h.claim.ID, keyDuration, ttl)
		hs.invalidate(h, problem.New(problem.ClaimLost, "claim %q is lost: it was not renewed within its ttl of %s", h.claim.ID, ttl))
	}
	if h.proc == nil && h.unseen == nil { // a process has to end first
		hs.releaseAsync(h)
	}
}

// checkValid stops the process of a claim early enough that it is gone before the lease can end.
// From then on, the claim counts as lost, even if its lease is renewed later.
func (hs *Holders) checkValid(h *Holder, now time.Duration) {
	if h.why == nil {
		if left, grace := h.claim.ValidFor(); grace > 0 && left <= grace {
			h.killAt = now + left
			hs.invalidate(h, problem.New(problem.ClaimLost, "claim %q is lost: its lease could not be renewed in time for its process to stop", h.claim.ID))
		}
	} else if now >= h.killAt {
		h.killAt = now + killAgain
		hs.signal(h, syscall.SIGKILL)
	}
}

// stop stops the process of a claim that has ended or is about to end. If the holder stops its
// process itself, stop only kills it when the grace is over.
func (hs *Holders) stop(h *Holder) {
	if h.killAt == 0 {
		h.killAt = hs.clock.Now() + lease.StopGrace(max(h.lease, pool.MinLeaseDuration)) - killAhead
	}
	hs.log.Warn("a claim has ended, stopping its process", keyClaim, h.claim.ID, keyPID, h.proc.ID().PID, keyReason, h.why)
	if !h.bind.onlyKill {
		hs.signal(h, syscall.SIGTERM)
	}
}

// errUnproven is why a process is not signaled: a user with write access to etcd could name any
// process.
var errUnproven = errors.New("that the claim is bound to it is not recorded in the state directory")

func (hs *Holders) signal(h *Holder, sig syscall.Signal) {
	err := errUnproven
	if !h.bind.unproven {
		err = h.proc.Signal(sig, h.bind.uid)
	}
	if err == nil {
		hs.metrics.stopped.WithLabelValues(sig.String()).Inc()
		return
	}
	if h.unstopped != err.Error() { // it is tried again and again
		h.unstopped = err.Error()
		hs.log.Error("a process whose claim has ended can't be stopped; its slots stay claimed until it ends, or its lease does",
			keyClaim, h.claim.ID, keyPID, h.proc.ID().PID, keyError, err)
	}
}

// Resume takes over the claims of an earlier process, each with its last stored binding.
func (hs *Holders) Resume(claims []*instance.Claim) {
	for _, c := range claims {
		hs.resumeOne(c)
	}
}

func (hs *Holders) resumeOne(c *instance.Claim) {
	bind, saved, unseen := hs.files.load(c.ID, c.Fence())
	if !saved {
		var err error
		if bind, err = decodeBinding(c.Bind()); err != nil {
			hs.log.Error("what a claim is bound to can't be read; it must be renewed within its lease duration", keyClaim, c.ID, keyError, err)
			bind, unseen = byLease, err
		}
		// A process is recorded in a file before its claim is answered: see [Holders.Record].
		bind.unproven = unseen == nil && hs.files.dir != "" && bind.proc.PID != 0
	}
	var process *proc.Process
	ended := false
	if bind.proc.PID != 0 {
		var err error
		process, err = hs.procs.Find(bind.proc)
		switch {
		case errors.Is(err, proc.ErrNoProcess):
			ended = true
			hs.log.Info("the process of a claim that was taken over is gone", keyClaim, c.ID, keyPID, bind.proc.PID, keyError, err)
		case err != nil:
			hs.log.Error("the process of a claim that was taken over can't be watched; the claim must be renewed within its ttl or lease duration",
				keyClaim, c.ID, keyPID, bind.proc.PID, keyError, err)
			unseen = err
		}
	}
	h := hs.Add(c, bind, process)
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.saved, h.known = saved, true
	if process == nil && unseen != nil && !ended {
		h.unseen = unseen
		c.Supervise(true)
		hs.extend(h)
	}
	if _, ok := c.Validity(); ok && process != nil {
		if err := hs.save(h, bind); err != nil {
			hs.log.Warn("the validity of a claim that was taken over can't be recorded", keyClaim, c.ID, keyError, err)
		}
	}
	if left, _ := c.ValidFor(); left == 0 {
		h.killAt = hs.clock.Now() // the time to stop has passed while no sidecar ran
	}
	if ended {
		hs.releaseAsync(h)
	}
}

// find tries again to watch the process of a holder, and removes the holder once its slots are
// free.
func (hs *Holders) find(h *Holder) {
	switch {
	case h.claim.Freed():
		hs.releaseAsync(h)
		return
	case h.bind.proc.PID == 0:
		return
	}
	process, err := hs.procs.Find(h.bind.proc)
	switch {
	case errors.Is(err, proc.ErrNoProcess):
		hs.releaseAsync(h)
	case err == nil:
		hs.watch(h, process)
		if h.why != nil {
			hs.stop(h)
		}
		hs.extend(h)
	}
}

// Count returns the number of claims.
func (hs *Holders) Count() int {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return len(hs.byID)
}

// CountProcesses returns the number of claims with a process.
func (hs *Holders) CountProcesses() int {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	n := 0
	for _, h := range hs.byID {
		if h.proc != nil {
			n++
		}
	}
	return n
}

// InvalidateAll ends the validity of all claims.
func (hs *Holders) InvalidateAll(why *problem.Error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.byID {
		hs.invalidate(h, why)
	}
}

// Leave drops all claims without releasing them, and waits for releases in progress. The next
// server takes the claims over.
func (hs *Holders) Leave() {
	hs.abandon()
	hs.mu.Lock()
	hs.closed = true
	for _, h := range hs.byID {
		h.gone = true
		h.unhook()
		h.proc.Close()
	}
	clear(hs.byID)
	hs.mu.Unlock()
	hs.tasks.Wait()
}
