package claims

import (
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// keepEnded is how long a late holder gets the reason why its claim ended. It is longer than
	// the default lease duration, within which a holder renews.
	keepEnded = 10 * time.Minute
	// maxEnded is the largest number of entries, which use about 1 MB.
	maxEnded = 4096
)

// EndedLog stores for [keepEnded] why claims ended. It is not safe for concurrent use.
type EndedLog struct {
	byID  map[string]*endedClaim
	order []*endedClaim // oldest first; byID has the newest of an id, unless it is forgotten
}

type endedClaim struct {
	id    string
	fence store.Fence
	why   *problem.Error
	until time.Duration
	// holder and slots belong to the claim, if they are known.
	holder pool.Holder
	slots  map[string]int
}

// NewEndedLog returns an empty log.
func NewEndedLog() EndedLog { return EndedLog{byID: map[string]*endedClaim{}} }

// Add stores why a claim ended.
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

// Why returns why a claim ended, or nil if that is unknown or too long ago.
func (l *EndedLog) Why(id string, now time.Duration) *problem.Error {
	if l.stale(id, now) {
		return nil
	}
	return l.byID[id].why
}

// has reports whether the log has the end of the claim with a fence.
func (l *EndedLog) has(id string, fence store.Fence, now time.Duration) bool {
	return !l.stale(id, now) && l.byID[id].fence == fence
}

// Forget removes the entry of a claim whose id is used again.
func (l *EndedLog) Forget(id string) { delete(l.byID, id) }
