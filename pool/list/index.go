package list

import (
	"cmp"
	"slices"
	"sync"
)

// index is what is found out of a state when it is first wanted.
type index struct {
	mu sync.Mutex // guards what follows
	// byID are the claims of each id, the oldest first, and queue all demands that wait, in order; nil until they are wanted.
	byID  map[string][]*claim
	queue []*waiter
	known bool // queue
}

// outdated forgets the index: the state changes.
func (s *State) outdated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID, s.queue, s.known = nil, nil, false
}

// claimsOf returns the claims of an id, the oldest first.
func (s *State) claimsOf(id string) []*claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[string][]*claim, len(s.claims))
		for name, c := range s.claims {
			s.byID[name.id] = append(s.byID[name.id], c)
		}
		for _, all := range s.byID {
			slices.SortFunc(all, func(a, b *claim) int { return cmp.Or(cmp.Compare(a.rev, b.rev), a.main.Compare(b.main)) })
		}
	}
	return s.byID[id]
}

// waiting returns all demands that wait, in order.
func (s *State) waiting() []*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		s.queue, s.known = s.allWaiting(), true
	}
	return s.queue
}
