package main

import (
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
)

// guard decides when a child must be told to stop and when it must be killed,
// so that it is gone before the lease of its claim can end. It is to be asked
// at least every [lookEvery]; the margin of a trust window pays for that.
//
// It keeps no clock: times are those of a clock that counts through suspend.
type guard struct {
	why    error         // why the child has to stop; nil while it may run
	killAt time.Duration // when it must be killed, once it has to stop

	// Trust lasts at least until then, and its holder gets this long to stop:
	// from the last look at a claim that was held.
	until, grace time.Duration
}

// lookEvery is how often the clock is looked at.
const lookEvery = grace.Look

// order is what a guard wants done.
type order int

const (
	carryOn order = iota
	terminate
	kill
)

// errTrustRunsOut is why a child has to stop whose claim is not renewed.
var errTrustRunsOut = problem.New(problem.ClaimLost, "the claim could not be renewed in time")

// look takes what is known of the claim now: how long it can still be trusted,
// how long its holder may take to stop, and why it has ended, if it has.
func (g *guard) look(now, left, grace time.Duration, ended error) order {
	switch {
	case g.why != nil:
		if now < g.killAt {
			return carryOn // it was told
		}
		return kill
	case ended != nil:
		// What was known at the last look still holds: renewals only add to it.
		g.stop(ended, min(now+g.grace, g.until))
	case left <= grace:
		g.stop(errTrustRunsOut, now+left)
	default:
		g.until, g.grace = now+left, grace
		return carryOn
	}
	if now >= g.killAt {
		return kill
	}
	return terminate
}

func (g *guard) stop(why error, killAt time.Duration) { g.why, g.killAt = why, killAt }
