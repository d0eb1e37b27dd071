package owner

import "time"

// shelfTime is how long what etcd has refused is put aside, so that it does not have each transaction refused.
const shelfTime = 10 * time.Second

// shelf is what etcd has refused, until it is tried again.
type shelf[T any] struct{ list []shelved[T] }

type shelved[T any] struct {
	what  T
	until time.Duration // 0 until the time is known
}

// put puts something aside.
func (s *shelf[T]) put(what T) { s.list = append(s.list, shelved[T]{what: what}) }

// take returns what is to be tried again.
func (s *shelf[T]) take(now time.Duration) (due []T) {
	kept := s.list[:0]
	for _, x := range s.list {
		if x.until == 0 {
			x.until = now + shelfTime
		}
		if x.until <= now {
			due = append(due, x.what)
		} else {
			kept = append(kept, x)
		}
	}
	clear(s.list[len(kept):])
	s.list = kept
	return due
}

// wakes returns when take returns something, as far as is known; 0 for never.
func (s *shelf[T]) wakes() (at time.Duration) {
	for _, x := range s.list {
		if at == 0 || x.until < at {
			at = x.until
		}
	}
	return at
}
