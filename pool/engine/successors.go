package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
)

const (
	// successorPatience is how long a request that does not wait is kept for a claim of its id to end.
	successorPatience = 5 * time.Second
	// keepPlace is how long a claim that nobody asks for any longer keeps its place in the wait queue, and maxPlaces bounds
	// how many do: an identity has at most as many as are free for others.
	keepPlace = 10 * time.Second
	maxPlaces = 10_000
)

// successor is a request with the id of a claim that is ending: it is asked for when that has ended.
type successor struct {
	claim *owner.Claim
	asking
	until time.Duration // 0 if it waits for longer
}

// successors are such requests, by the claims that are ending.
type successors map[*entry][]successor

// add has a request wait for the end of a claim.
func (s successors) add(e *entry, c *owner.Claim, a asking, now time.Duration) {
	x := successor{claim: c, asking: a}
	if !a.waits {
		x.until = now + successorPatience
	}
	s[e] = append(s[e], x)
}

// leave ends a request. It is false if that is not one of them.
func (s successors) leave(e *entry, reply chan<- outcome) bool {
	i := slices.IndexFunc(s[e], func(x successor) bool { return x.reply == reply })
	if i >= 0 {
		s[e] = slices.Delete(s[e], i, i+1)
	}
	return i >= 0
}

// take returns the requests that may be asked for now, as a claim has ended.
func (s successors) take(e *entry) []successor {
	all := s[e]
	delete(s, e)
	return all
}

// act refuses those that do not wait, if a claim takes long to end, and returns when that is due next; 0 is never.
func (s successors) act(now time.Duration) (next time.Duration) {
	for e, all := range s {
		s[e] = slices.DeleteFunc(all, func(x successor) bool {
			switch due := x.until > 0 && now >= x.until; {
			case due:
				x.reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q belongs to a claim that is still being released: try again later, or use another id", e.request.ID)}
				return true
			case x.until > 0 && (next == 0 || x.until < next):
				next = x.until
			}
			return false
		})
	}
	return next
}

// place is the place in the wait queue of a claim that nobody asks for any longer.
type place struct {
	request *pool.Request
	owner.Place
	until time.Duration
}

// places are kept for the same requests again, by who has asked for the claims and their ids: nobody else ends one.
type places map[string]map[placeKey]place

type placeKey struct{ id, bind string }

func placeOf(r *pool.Request) (by string, of placeKey) {
	return r.Holder.ClaimedBy, placeKey{r.ID, r.Holder.Bind}
}

// keep keeps the place of a claim, if it has one.
func (p places) keep(e *entry, now time.Duration) {
	if at, ok := e.claim.Place(); ok {
		p.add(place{e.request, at, now + keepPlace})
	}
}

// add adds a place, unless who has asked for it has as many as are free.
func (p places) add(x place) {
	free := maxPlaces
	for _, all := range p {
		free -= len(all)
	}
	by, of := placeOf(x.request)
	if len(p[by]) >= free {
		return
	}
	if p[by] == nil {
		p[by] = map[placeKey]place{}
	}
	p[by][of] = x
}

// back returns a claim in the place that was kept for it, or as it is.
func (p places) back(c *owner.Claim, now time.Duration) *owner.Claim {
	r := c.Request()
	by, of := placeOf(r)
	kept, ok := p[by][of]
	delete(p[by], of)
	if ok && now < kept.until && kept.request.SameAs(r) {
		return owner.NewClaimIn(kept.Place, r)
	}
	return c
}

// age forgets places that were kept long enough.
func (p places) age(now time.Duration) {
	for by, all := range p {
		maps.DeleteFunc(all, func(_ placeKey, kept place) bool { return now >= kept.until })
		if len(all) == 0 {
			delete(p, by)
		}
	}
}
