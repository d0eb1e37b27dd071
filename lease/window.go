package lease

import (
	"time"

	"github.com/berthhq/berth/internal/grace"
)

const (
	// minMargin and marginPart make the margin of a window: 2 % covers clocks
	// that run at different speeds, 500 ms what is fixed: two checks of the
	// clock, [tickEvery] apart, or one check and the end of a killed process.
	minMargin  = grace.Kill
	marginPart = 50
)

// Window is how long a lease is valid unless it is renewed again. It is a value: a
// renewal makes another window.
type Window struct {
	// Sent is when the grant or the last successful renewal was sent, on a
	// [Clock]. The lease can't have been restarted earlier, so it can't end
	// before Sent+TTL.
	Sent time.Duration
	// TTL is the time to live that etcd answered.
	TTL time.Duration
	// Margin is given up for safety; see [Margin].
	Margin time.Duration
}

// NewWindow returns the window of a lease whose grant or renewal was sent at
// the time sent and answered with ttl.
func NewWindow(sent, ttl time.Duration) Window {
	return Window{Sent: sent, TTL: ttl, Margin: Margin(ttl)}
}

// Margin is what a window gives up at its end: 2 % of the time to live, and no
// less than 500 ms.
func Margin(ttl time.Duration) time.Duration { return max(minMargin, ttl/marginPart) }

// Until returns when the validity ends: holders must have stopped by then.
func (w Window) Until() time.Duration { return w.Sent + w.TTL - w.Margin }

// StopAt returns when a holder that takes [StopGrace] to stop must be signaled, so
// that it can be killed at Until and still be gone before the lease can end. With
// a check of the clock every 250 ms: signaled by StopAt + 250 ms, killed by Until +
// 250 ms, and the lease ends at Until + Margin or later.
func (w Window) StopAt() time.Duration { return w.Until() - StopGrace(w.TTL) }

// Remaining returns how long the lease is still valid at now; never less than 0.
func (w Window) Remaining(now time.Duration) time.Duration { return max(0, w.Until()-now) }

// Valid reports whether the lease is still valid at now.
func (w Window) Valid(now time.Duration) bool { return now < w.Until() }

// StopGrace is how long a holder gets between the signal to stop and being
// killed: a sixth of the lease's time to live, at most 10 s.
func StopGrace(ttl time.Duration) time.Duration { return min(ttl/6, grace.Stop) }

// Survives is about how long etcd may be away without a holder being stopped
// that needs grace to stop (0 for one that stops at once).
//
// At worst, etcd goes away just before a renewal was due. The one before was
// sent a third of the time to live ago, so two thirds are left, of which the
// holder needs its grace and the window its margin. It is "about", because etcd
// must be back for the next try to reach it: tries are sent at most 2.3 s apart,
// 1.1 s for the shortest leases.
func Survives(ttl, grace time.Duration) time.Duration {
	return max(0, ttl-ttl/renewals-grace-Margin(ttl))
}
