package sidecar

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/lease"
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
	c.SetHolder(h.claim.Holder)
	c.PID = h.bind.proc.pid
	if h.releasing {
		c.State = StateReleasing
	}
	ttl := h.bind.ttlOf(h.lease)
	if ttl > 0 || !h.bind.lease {
		c.TTL = DurationOf(ttl)
	}
	left, grace := h.claim.ValidFor()
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
