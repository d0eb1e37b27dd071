package pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// Space holds the free capacity of some pools after all their waiters, for a planner
// whose work does not wait in the queue itself. It is a value: taking from it takes
// nothing from the pools.
type Space struct {
	pools map[string]spacePool
}

// spacePool is one pool.
type spacePool struct {
	limit, used int
	// free is what the waiters leave; below 0 while more is reserved than there is.
	free     int
	reserved bool
	// queued is set while only the dispatcher of the pool grants, for a planner whose work does not wait
	// in the queue.
	queued bool
	// reserveAfter is the pool's.
	reserveAfter                time.Duration
	open, known, paused, broken bool
}

// NewSpace returns the space of pools without waiters.
func NewSpace(pools ...Status) *Space {
	s := &Space{pools: map[string]spacePool{}}
	for _, p := range pools {
		capacity := admit.Capacity{Limit: p.Limit, Used: p.Claimed}
		s.pools[p.Name] = spacePool{
			limit: p.Limit, used: p.Claimed, free: admit.FreeSlots([]admit.Capacity{capacity})[0], reserveAfter: p.ReserveAfter,
			open: !p.Paused && p.Limit != Closed && !p.Deleted && p.Problem == "", known: !p.Deleted,
			paused: p.Paused, broken: p.Problem != "",
		}
	}
	return s
}

// Clone returns a space of its own.
func (s *Space) Clone() *Space { return &Space{pools: maps.Clone(s.pools)} }

// Has reports whether there is a pool of that name.
func (s *Space) Has(name string) bool { return s.pools[name].known }

// Fits reports whether a claim fits now.
func (s *Space) Fits(slots map[string]int) bool {
	for name, n := range slots {
		if r := s.pools[name]; !r.open || r.queued || r.free < n {
			return false
		}
	}
	return true
}

// Take takes the slots of a claim.
func (s *Space) Take(slots map[string]int) { s.add(slots, true) }

// Reserve keeps what a claim needs that does not fit: what is free now goes to
// nobody behind it. Only the first in a pool reserves, and only what can be had; else
// it is false. These are the rules of [admit.Admit].
func (s *Space) Reserve(slots map[string]int) bool {
	for name, n := range slots {
		if r := s.pools[name]; r.reserved || !r.open || r.limit != Unlimited && n > r.limit {
			return false
		}
	}
	s.add(slots, false)
	return true
}

func (s *Space) add(slots map[string]int, used bool) {
	for name, n := range slots {
		r := s.pools[name]
		r.free -= n
		if used {
			r.used += n
		} else {
			r.reserved = true
		}
		s.pools[name] = r
	}
}

// ReserveAfter is from what age on a claim reserves: the shortest of its pools',
// [NeverReserve] if none has one.
func (s *Space) ReserveAfter(slots map[string]int) time.Duration {
	shortest := NeverReserve
	for name := range slots {
		if d := s.pools[name].reserveAfter; d >= 0 && (shortest < 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}

// Why returns what keeps a claim of these slots from being granted, in the words of
// [Reason].
func (s *Space) Why(slots map[string]int) string {
	var pools []shortage
	behind := ""
	for _, need := range needsOf(slots) {
		r := s.pools[need.Pool]
		missing := short(r.limit, r.used, need.N)
		switch {
		case missing > 0 || !r.open:
			pools = append(pools, shortage{
				Shortage: Shortage{
					Pool: need.Pool, Wanted: need.N, Limit: r.limit, Claimed: r.used, Paused: r.paused, Short: missing,
				},
				unknown: !r.known, unreadable: r.broken,
			})
		case r.free < need.N && behind == "":
			behind = need.Pool
		}
	}
	if text := shortageText(pools); text != "" || behind == "" {
		return text
	}
	return "others wait for pool '" + behind + "' before it"
}

// Notes returns texts that explain what keeps a claim of these slots from being granted,
// the most specific first. None has a number that changes while the same pools are short,
// so a caller that has recorded one need not record another while it is among them. First
// is set for a claim that has reserved what it needs.
func (s *Space) Notes(slots map[string]int, first bool) (texts []string) {
	var pools []shortage
	var behind []string
	fixed, full := false, true // one of them grants nothing as it is; all of those that are short
	for _, need := range needsOf(slots) {
		r := s.pools[need.Pool]
		if first {
			r.free += need.N
		}
		missing := short(r.limit, r.used, need.N)
		if missing > 0 || !r.open {
			pools = append(pools, shortage{
				Shortage: Shortage{
					Pool: need.Pool, Wanted: need.N, Limit: r.limit, Claimed: r.limit, Paused: r.paused, Short: missing,
				},
				unknown: !r.known, unreadable: r.broken,
			})
			fixed = fixed || !r.open || exceedsLimit(r.limit, need.N)
			full = full && r.used >= r.limit
		}
		if r.queued || r.limit != Unlimited && r.free < min(need.N, r.limit-r.used) {
			behind = append(behind, "others wait for pool '"+need.Pool+"' before it")
		}
	}
	if len(pools) > 0 {
		if fixed || full {
			texts = append(texts, shortageText(pools))
		}
		if fixed {
			return texts
		}
		if narrow := narrowText(pools); !slices.Contains(texts, narrow) {
			texts = append(texts, narrow)
		}
	}
	return append(texts, behind...)
}

// narrowText describes pools with too few free slots, without the number that is taken.
// A pool of which a single slot is wanted is full.
func narrowText(pools []shortage) string {
	var all []string
	for _, s := range pools {
		text := fmt.Sprintf("(%d slots, %d wanted)", s.Limit, s.Wanted)
		if s.Wanted == 1 {
			text = fmt.Sprintf("(%d/%d slots)", s.Limit, s.Limit)
		}
		all = append(all, fmt.Sprintf("'%s' %s", s.Pool, text))
	}
	switch {
	case len(all) > 1:
		return "pools full: " + strings.Join(all, ", ")
	case pools[0].Wanted == 1:
		return shortageText(pools)
	}
	return fmt.Sprintf("pool '%s' has too few free slots (%d slots, %d wanted)", pools[0].Pool, pools[0].Limit, pools[0].Wanted)
}

// Space returns the space of all pools. Waiters of an instance that does not answer count until
// their lease ends: only instances that watch the pools know of it.
func (r *Reader) Space() *Space { return r.space(own{}) }

// space returns what the waiters leave of all pools.
func (r *Reader) space(o own) *Space {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view
	s := NewSpace(v.statuses()...)
	queue := v.queue(o)
	waiting := make([]*admit.Waiter, len(queue))
	for i, q := range queue {
		waiting[i] = &admit.Waiter{Needs: v.poolNeeds(q.Pools), Reserve: q.Reserve, Yielded: q.passed}
	}
	capacities := v.capacities()
	d := admit.Admit(capacities, waiting)
	for name, r := range s.pools {
		p := v.pools[name]
		r.open = capacities[p.number].Open && r.limit != Closed
		r.free, r.reserved = d.Free[p.number], d.Reserved[p.number]
		s.pools[name] = r
	}
	return s
}

// Follower is the state of all pools as a feed delivers it, for a planner that needs it all
// the time.
type Follower struct {
	feed    *store.Feed
	changed chan struct{}

	mu     sync.Mutex // guards what follows
	reader *Reader
	// revision up to which it is known.
	revision int64
	at       time.Time // when the feed delivered something last; zero before
}

// NewFollower returns a follower that knows nothing until [Follower.Run].
func NewFollower(b store.Backend, keys store.Keys, log hclog.Logger) *Follower {
	return &Follower{
		feed: store.NewFeed(b, keys.Pools(), log, func() {}), changed: make(chan struct{}, 1),
		reader: newReader(store.Snapshot{}, keys),
	}
}

// Run follows the pools until ctx ends, and returns its error.
func (f *Follower) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range f.feed.Messages() {
			f.take(m)
		}
	}()
	err := f.feed.Run(ctx)
	<-done
	return err
}

func (f *Follower) take(m store.FeedMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = time.Now()
	if f.revision = m.Revision; m.Snapshot != nil {
		f.reader.view.load(*m.Snapshot)
	} else {
		f.reader.view.apply(m.Events)
		for _, p := range f.reader.view.order {
			p.reached(m.Revision)
		}
	}
	f.reader.view.acted, f.reader.view.ended = nil, nil // what has happened is of no use here
	if m.Snapshot != nil || len(m.Events) > 0 {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Changed returns a channel that signals that pools have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Space returns the space of all pools, and which of some claims are held, on any host, with
// their fences. What is newer than the revision it does not know. While etcd has reported
// nothing for 2 s, it is an EtcdUnavailable problem.
func (f *Follower) Space(claims []string) (s *Space, held map[string]int64, revision int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() || time.Since(f.at) >= store.StaleAfter {
		err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet")
	} else {
		s = f.reader.Space()
		for name, p := range s.pools {
			p.queued = f.reader.view.pools[name].queued.rev > 0
			s.pools[name] = p
		}
	}
	held = map[string]int64{}
	for _, id := range claims {
		for _, cv := range f.reader.view.claimsOf(id) {
			held[id] = cv.rev
		}
	}
	return s, held, f.revision, err
}
