package claims

import (
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// keepEnded is for how long a holder that comes late gets the reason why its claim has
	// ended: longer than the longest default lease, within which a holder that
	// renews comes.
	keepEnded = 10 * time.Minute
	// maxEnded bounds what is kept: 1 MB or so.
	maxEnded = 4096
)

// EndedLog remembers for a while why claims have ended that are no longer held.
// Its owner locks it.
type EndedLog struct {
	byID  map[string]*endedClaim
	order []*endedClaim // oldest first; byID has the newest of an id, unless it is forgotten
}

type endedClaim struct {
	id    string
	fence store.Fence
	why   *problem.Error
	until time.Duration
	// holder and slots are those of the claim, as far as they are known.
	holder pool.Holder
	slots  map[string]int
}

// NewEndedLog returns an empty log.
func NewEndedLog() EndedLog { return EndedLog{byID: map[string]*endedClaim{}} }

// Add remembers a claim.
func (l *EndedLog) Add(id string, fence store.Fence, why *problem.Error, now time.Duration) {
	l.add(id, fence, why, now)
}

func (l *EndedLog) add(id string, fence store.Fence, why *problem.Error, now time.Duration) *endedClaim {
	c := &endedClaim{id: id, fence: fence, why: why, until: now + keepEnded}
	l.byID[id] = c
	l.order = append(l.order, c)
	for oldest := l.order[0]; len(l.order) > maxEnded || l.byID[oldest.id] != oldest || now >= oldest.until; oldest = l.order[0] {
		if l.byID[oldest.id] == oldest {
			delete(l.byID, oldest.id)
		}
		l.order = l.order[1:]
	}
	return c
}

func (l *EndedLog) stale(id string, now time.Duration) bool {
	c, ok := l.byID[id]
	return !ok || now >= c.until
}

// Why returns why a claim has ended, nil if that is not known (any more).
func (l *EndedLog) Why(id string, now time.Duration) *problem.Error {
	if l.stale(id, now) {
		return nil
	}
	return l.byID[id].why
}

// has reports whether the claim with a fence is known to have ended.
func (l *EndedLog) has(id string, fence store.Fence, now time.Duration) bool {
	return !l.stale(id, now) && l.byID[id].fence == fence
}

// Forget forgets a claim whose id is used again.
func (l *EndedLog) Forget(id string) { delete(l.byID, id) }
