package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/pool/admit"
)

// Space holds the free capacity of some pools after all their waiters, for a planner
// whose work does not wait in the queue itself. It is a value: taking from it takes
// nothing from the pools.
type Space struct {
	pools map[string]spacePool
}

// spacePool is one pool. What was taken from the space is among its claimed slots.
type spacePool struct {
	Status
	// free is what the waiters leave; below 0 while more is reserved than there is.
	free     int
	reserved bool
}

// NewSpace returns the space of pools without waiters.
func NewSpace(pools ...Status) *Space {
	s := &Space{pools: map[string]spacePool{}}
	for _, p := range pools {
		capacity := admit.Capacity{Limit: p.Limit, Used: p.Claimed}
		s.pools[p.Name] = spacePool{Status: p, free: admit.FreeSlots([]admit.Capacity{capacity})[0]}
	}
	return s
}

// of returns a pool. There is none of a name that is not known.
func (s *Space) of(name string) spacePool {
	p, known := s.pools[name]
	p.Deleted = p.Deleted || !known
	return p
}

// Leave records what waiters leave of a pool: its free slots, below 0 if more is reserved than there is, and whether one
// of them has reserved in it.
func (s *Space) Leave(name string, free int, reserved bool) {
	r := s.of(name)
	r.free, r.reserved = free, reserved
	s.pools[name] = r
}

// Clone returns a space of its own.
func (s *Space) Clone() *Space { return &Space{pools: maps.Clone(s.pools)} }

// Has reports whether there is a pool of that name.
func (s *Space) Has(name string) bool { return !s.of(name).Deleted }

// Fits reports whether a claim fits now.
func (s *Space) Fits(slots map[string]int) bool {
	for name, n := range slots {
		if r := s.of(name); !r.open() || r.free < n {
			return false
		}
	}
	return true
}

// Take takes the slots of a claim.
func (s *Space) Take(slots map[string]int) { s.add(slots, true) }

// Reserve keeps what a claim needs that does not fit: what is free now goes to
// nobody behind it. Only the first in a pool reserves, and only what can be had; else
// it is false. These are the rules of [admit.Walk].
func (s *Space) Reserve(slots map[string]int) bool {
	for name, n := range slots {
		if r := s.of(name); r.reserved || !r.open() || r.Limit != Unlimited && n > r.Limit {
			return false
		}
	}
	s.add(slots, false)
	return true
}

func (s *Space) add(slots map[string]int, used bool) {
	for name, n := range slots {
		r := s.of(name)
		r.free -= n
		if used {
			r.Claimed += n
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
		if d := s.of(name).ReserveAfter; d >= 0 && (shortest < 0 || d < shortest) {
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
		r := s.of(need.Pool)
		short, blocks := r.shortage(need)
		switch {
		case blocks:
			pools = append(pools, short)
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
		r := s.of(need.Pool)
		if first {
			r.free += need.N
		}
		if short, blocks := r.shortage(need); blocks {
			short.Claimed = r.Limit
			pools = append(pools, short)
			fixed = fixed || !r.open() || exceedsLimit(r.Limit, need.N)
			full = full && r.Claimed >= r.Limit
		}
		if r.Limit != Unlimited && r.free < min(need.N, r.Limit-r.Claimed) {
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
