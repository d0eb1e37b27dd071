package child

import (
	"time"

	"github.com/berthhq/berth/internal/grace"
)

// lookEvery is how often the clock and the trust are looked at.
const lookEvery = grace.Look

// guard decides when a command must be told to stop and when it must be killed, so
// that it is gone when trust ends. It keeps no clock: times are the boot clock's.
type guard struct {
	grace     time.Duration
	timeoutAt time.Duration // 0: never

	stopping bool
	why      Stop          // NotStopped while stopping: the command has ended, and left others
	told     bool          // an order was given
	killAt   time.Duration // set while stopping
}

// order is what a guard wants done.
type order int

const (
	carryOn order = iota
	terminate
	kill
)

// stop begins the stopping, unless it has begun. The next look orders it.
func (g *guard) stop(now, until time.Duration, why Stop) {
	if g.stopping {
		return
	}
	g.stopping, g.why, g.killAt = true, why, min(now+g.grace, until)
}

// look takes the time, and until when the command may run, and says what to do.
// Once it must stop nothing changes that, a longer trust included.
func (g *guard) look(now, until time.Duration) order {
	switch {
	case g.stopping:
		g.killAt = min(g.killAt, until)
	case until-now <= g.grace:
		g.stop(now, until, ByTrust)
	case g.timeoutAt > 0 && now >= g.timeoutAt:
		g.stop(now, until, ByTimeout)
	default:
		return carryOn
	}
	switch {
	case now >= g.killAt:
		g.told = true
		return kill
	case !g.told:
		g.told = true
		return terminate
	}
	return carryOn
}

// next is how long the next look can wait.
func (g *guard) next(now, until time.Duration) time.Duration {
	at := now + lookEvery
	switch {
	case g.stopping && now >= g.killAt: // it is being killed: see soon how that goes
		at = now + lookEvery/10
	case g.stopping:
		at = min(at, g.killAt)
	default:
		at = min(at, until-g.grace)
		if g.timeoutAt > 0 {
			at = min(at, g.timeoutAt)
		}
	}
	return max(at-now, time.Millisecond)
}
