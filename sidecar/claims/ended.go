package claims

import (
	"slices"
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

// EndedLog stores for [keepEnded] why claims ended: of each id and owner the last one. It is not safe
// for concurrent use.
type EndedLog struct {
	byID   map[string][]*endedClaim // of each owner one, the newest last
	order  []*endedClaim            // oldest first
	counts map[string]int           // by identity
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
func NewEndedLog() EndedLog {
	return EndedLog{byID: map[string][]*endedClaim{}, counts: map[string]int{}}
}

// Add stores why what an identity had ended; by is empty if the identity is not known.
func (l *EndedLog) Add(id string, fence store.Fence, by string, why *problem.Error, now time.Duration) {
	l.add(&endedClaim{id: id, fence: fence, why: why, holder: pool.Holder{ClaimedBy: by}}, now)
}

// add stores the end of a claim, in place of the last one of the same id and owner. An identity has
// at most half of the entries, so that it can't remove those of all others.
func (l *EndedLog) add(c *endedClaim, now time.Duration) {
	c.until = now + keepEnded
	l.forget(c.id, c.holder)
	by := c.holder.ClaimedBy
	if by != "" && l.counts[by] >= maxEnded/2 {
		l.remove(l.order[slices.IndexFunc(l.order, func(e *endedClaim) bool { return e.holder.ClaimedBy == by })])
	}
	for len(l.order) > 0 && (len(l.order) >= maxEnded || now >= l.order[0].until) {
		l.remove(l.order[0])
	}
	l.byID[c.id] = append(l.byID[c.id], c)
	l.order = append(l.order, c)
	l.counts[by]++
}

func (l *EndedLog) remove(c *endedClaim) {
	is := func(e *endedClaim) bool { return e == c }
	if l.order[0] == c {
		l.order = l.order[1:]
	} else {
		l.order = slices.DeleteFunc(l.order, is)
	}
	if l.byID[c.id] = slices.DeleteFunc(l.byID[c.id], is); len(l.byID[c.id]) == 0 {
		delete(l.byID, c.id)
	}
	by := c.holder.ClaimedBy
	if l.counts[by]--; l.counts[by] == 0 {
		delete(l.counts, by)
	}
}

// last returns the last entry of an id for which is returns true, or nil if there is none, or it is
// too long ago.
func (l *EndedLog) last(id string, now time.Duration, is func(*endedClaim) bool) *endedClaim {
	for _, e := range slices.Backward(l.byID[id]) {
		if now < e.until && is(e) {
			return e
		}
	}
	return nil
}

// Why returns why a claim ended, or nil if that is unknown or too long ago.
func (l *EndedLog) Why(id string, now time.Duration) *problem.Error {
	if e := l.last(id, now, func(*endedClaim) bool { return true }); e != nil {
		return e.why
	}
	return nil
}

// has reports whether the log has the end of the claim with a fence.
func (l *EndedLog) has(id string, fence store.Fence, now time.Duration) bool {
	return l.last(id, now, func(e *endedClaim) bool { return e.fence == fence }) != nil
}

// forget removes the entry of a claim whose id its owner uses again.
func (l *EndedLog) forget(id string, of pool.Holder) {
	if e := l.last(id, 0, func(e *endedClaim) bool { return SameOwner(e.holder, of) }); e != nil {
		l.remove(e)
	}
}
