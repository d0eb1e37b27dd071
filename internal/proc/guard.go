package proc

import (
	"time"

	"github.com/berthhq/berth/internal/grace"
)

// CheckEvery is the longest time between two checks of a [Guard]. The margin of a
// validity window allows for one check that comes this late.
const CheckEvery = grace.CheckInterval

// Guard decides when a process must get SIGTERM and when SIGKILL, so that it has ended
// when its validity ends. It has no clock: times are those of a clock that counts through
// suspend, such as [lease.BootClock]. Check must be called at least each [CheckEvery].
type Guard struct {
	// Grace is how long the process may take to stop after SIGTERM.
	Grace time.Duration
	// Until is when its validity ends. It may be changed until the process is stopped.
	Until time.Duration

	stopping   bool
	terminated bool          // Terminate was returned, or Kill
	killAt     time.Duration // set while stopping
}

// Order is what a [Guard] requires.
type Order int

const (
	// CarryOn requires nothing.
	CarryOn Order = iota
	// Terminate requires SIGTERM.
	Terminate
	// Kill requires SIGKILL.
	Kill
)

// Stop begins to stop the process, unless that has begun. The next check orders it.
func (g *Guard) Stop(now time.Duration) {
	if !g.stopping {
		g.stopping, g.killAt = true, min(now+g.Grace, g.Until)
	}
}

// Stopping reports whether the process is being stopped.
func (g *Guard) Stopping() bool { return g.stopping }

// Terminated reports whether the process was signaled to stop.
func (g *Guard) Terminated() bool { return g.terminated }

// SkipTerminate makes the next order after a stop a kill: the process has had SIGTERM.
func (g *Guard) SkipTerminate() { g.terminated = true }

// Check returns what to do now. It begins to stop the process when no more than the grace
// is left of its validity. Validity that is extended later does not change that.
func (g *Guard) Check(now time.Duration) Order {
	switch {
	case g.stopping:
		g.killAt = min(g.killAt, g.Until)
	case g.Until-now > g.Grace:
		return CarryOn
	default:
		g.Stop(now)
	}
	switch {
	case now >= g.killAt:
		g.terminated = true
		return Kill
	case !g.terminated:
		g.terminated = true
		return Terminate
	}
	return CarryOn
}

// Next returns how long the next check can wait.
func (g *Guard) Next(now time.Duration) time.Duration {
	at := now + CheckEvery
	switch {
	case g.stopping && now >= g.killAt: // being killed: see soon whether it has ended
		at = now + CheckEvery/10
	case g.stopping:
		at = min(at, g.killAt)
	default:
		at = min(at, g.Until-g.Grace)
	}
	return max(at-now, time.Millisecond)
}
