package dispatch

import (
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// markEvery is how often the sign of life is put while there are demands, and markSoon within what time of the first
	// one.
	markEvery = time.Second
	markSoon  = 250 * time.Millisecond
	// currentFor is for how long a view counts as current.
	currentFor = 1500 * time.Millisecond
)

// mark is the dispatcher's sign of life.
type mark struct {
	lease store.LeaseID
	// put is when it was put last, and demands whether it said that there are any.
	put     time.Duration
	demands bool
	placed  bool
	seen    time.Duration // when the view was current
}

// current records that the view is current.
func (m *mark) current(now time.Duration) { m.seen = now }

// stale reports whether the view may not be current.
func (m *mark) stale(now time.Duration) bool { return now-m.seen > currentFor }

// due returns when the sign of life is to be put, also if it can be put with other keys.
func (m *mark) due(demands bool) time.Duration {
	switch {
	case !m.placed || demands != m.demands:
		return 0
	case !demands:
		return never
	}
	return m.put + markEvery
}

// idle reports whether it has said for a second that there are no demands, and the view is current.
func (m *mark) idle(now time.Duration) bool {
	return m.placed && !m.demands && now-m.put >= markEvery && !m.stale(now)
}

// next returns the one that is put at a time.
func (m *mark) next(demands bool, now time.Duration) wire.Mark {
	m.put, m.demands, m.placed = now, demands, true
	return wire.Mark{Demands: demands}
}

// failed records that the last put may not have been carried out.
func (m *mark) failed() { m.placed = false }

// Stale reports whether the watch has shown nothing for so long that all is to be read again, by Restart and a new
// watch.
func (d *Dispatcher) Stale(now time.Duration) bool { return d.mark.stale(now) }
