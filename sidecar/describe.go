package sidecar

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// poolsOf names the pools of a claim.
func poolsOf(slots map[string]int) []string { return slices.Sorted(maps.Keys(slots)) }

// clockError is the part of a time by which two clocks may differ that measure it: see
// docs/guarantees.md.
const clockError = 50

// validFor returns for how many milliseconds from the sending of a request its sender
// may rely on what is valid for some time from now on. The request was begun then, so
// what was waited since counts, less what the sender's clock may have missed of it.
func validFor(begun, now time.Time, left time.Duration) int64 {
	waited := max(0, now.Sub(begun))
	return (waited - waited/clockError + left).Milliseconds()
}

// answer tells a holder about its claim. The request that it answers was begun
// then: what is valid counts from there.
func (hs *holders) answer(h *holder, begun time.Time) Claim {
	now := time.Now() // before what is left from then on: this process may stand still between
	hs.mu.Lock()
	defer hs.mu.Unlock()
	c := Claim{
		ID: h.claim.ID, State: StateHeld, Pools: h.claim.Slots, Priority: h.claim.Priority,
		Fence: h.claim.Fence(), ClaimedAt: h.claim.ClaimedAt, LeaseDuration: Duration(h.lease),
	}
	c.setHolder(h.claim.Holder)
	c.PID = h.bind.proc.pid
	if h.releasing {
		c.State = StateReleasing
	}
	ttl := h.bind.ttlOf(h.lease)
	if ttl > 0 || !h.bind.lease {
		c.TTL = DurationOf(ttl)
	}
	left, grace := h.claim.Trust()
	if h.expires > 0 {
		left = min(left, max(0, h.expires-hs.clock.Now()))
	}
	if c.TrustedFor = new(int64); left <= 0 || h.releasing {
		return c
	}
	if ttl > 0 {
		grace = min(grace, lease.StopGrace(ttl)) // or it would have to stop as soon as it holds
	}
	c.TrustedUntil = now.Add(left)
	*c.TrustedFor = validFor(begun, now, left)
	c.Grace = grace.Milliseconds()
	return c
}

// setHolder tells who holds a claim, or waits for it.
func (c *Claim) setHolder(h pool.Holder) {
	c.Host, c.Instance = h.Host, h.Instance
	c.RunID, c.StepKey, c.PID, c.Labels = h.Run, h.Step, h.PID, h.Labels
}

// claimOfHolder tells of a claim that is held anywhere.
func claimOfHolder(h pool.HolderStatus) Claim {
	c := Claim{
		ID: h.Claim, State: StateHeld, Pools: h.Pools, Priority: h.Priority,
		Fence: h.Fence, ClaimedAt: h.Since,
	}
	if c.Pools == nil { // its main key can't be read
		c.Pools = Slots{}
	}
	c.setHolder(h.Holder)
	c.ofRun = executes(h.Bind)
	return c
}

// claimOfWaiter tells of a claim that waits anywhere.
func claimOfWaiter(w pool.WaiterStatus) Claim {
	c := Claim{
		ID: w.Claim, State: StateWaiting, Pools: w.Pools, Priority: w.Priority,
		QueuedAt: w.Since, Position: w.Position, Reason: w.Reason,
	}
	c.setHolder(w.Holder)
	return c
}

func poolOf(s pool.Status) Pool {
	return Pool{
		Name: s.Name, Limit: s.Limit, Claimed: s.Claimed, Waiting: s.Waiting,
		LeaseDuration: Duration(s.LeaseDuration), ReserveAfter: Duration(s.ReserveAfter), Paused: s.Paused,
		Survives: survives(s.LeaseDuration), Deleted: s.Deleted, Problem: s.Problem,
	}
}

// survives is about how long etcd may be away without a holder being stopped.
func survives(leaseDuration time.Duration) Duration {
	return Duration(lease.Survives(leaseDuration, lease.StopGrace(leaseDuration)).Truncate(time.Millisecond))
}

// holderOf tells of a holder of a pool. What is left of its lease is told by
// another.
func holderOf(h pool.HolderStatus) Holder {
	return Holder{
		Claim: h.Claim, Host: h.Host, Instance: h.Instance, RunID: h.Run, StepKey: h.Step,
		PID: h.PID, Labels: h.Labels, Slots: h.Slots, Since: h.Since, Fence: h.Fence,
	}
}

func waiterOf(w pool.WaiterStatus) Waiter {
	return Waiter{
		Claim: w.Claim, Host: w.Host, Instance: w.Instance, RunID: w.Run, StepKey: w.Step,
		PID: w.PID, Labels: w.Labels, Slots: w.Slots, Position: w.Position, Priority: w.Priority,
		Since: w.Since, Reason: w.Reason,
	}
}
