package child

import (
	"time"

	"github.com/berthhq/berth/internal/proc"
)

// guard is a [proc.Guard] with a timeout, which knows why it stops the command.
type guard struct {
	proc.Guard
	timeoutAt time.Duration // 0: never
	why       Stop          // NotStopped while stopping: the command has ended, and left others
}

// stop begins to stop the command, unless that has begun.
func (g *guard) stop(now time.Duration, why Stop) {
	if !g.Stopping() {
		g.why = why
		g.Stop(now)
	}
}

// check returns what to do now.
func (g *guard) check(now time.Duration) proc.Order {
	switch {
	case g.Until-now <= g.Grace:
		g.stop(now, ByExpiry)
	case g.timeoutAt > 0 && now >= g.timeoutAt:
		g.stop(now, ByTimeout)
	}
	return g.Check(now)
}

// next returns how long the next check can wait.
func (g *guard) next(now time.Duration) time.Duration {
	wait := g.Next(now)
	if g.timeoutAt > 0 && !g.Stopping() {
		wait = min(wait, max(g.timeoutAt-now, time.Millisecond))
	}
	return wait
}
