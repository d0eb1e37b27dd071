package enginetest

import (
	"context"
	"sync"

	"github.com/berthhq/berth/internal/store"
)

// silencer is a backend whose watches can fall silent, while later ones work: as when one connection is stuck.
type silencer struct {
	store.Backend
	mu  sync.Mutex
	now chan struct{} // closed when the watches that were opened so far fall silent
}

// silence has a host use such a backend.
func silence(to **silencer) func(*setup) {
	return func(s *setup) {
		*to = &silencer{Backend: s.Backend, now: make(chan struct{})}
		s.Backend = *to
	}
}

// fall silences all watches that are open.
func (s *silencer) fall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.now)
	s.now = make(chan struct{})
}

// Watch opens a watch.
func (s *silencer) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	s.mu.Lock()
	silent := s.now
	s.mu.Unlock()
	w := &silentWatch{Watch: s.Backend.Watch(ctx, keys, from), messages: make(chan store.WatchMessage)}
	go w.pass(ctx, silent)
	return w
}

// silentWatch is a watch that may fall silent.
type silentWatch struct {
	store.Watch
	messages chan store.WatchMessage
}

func (w *silentWatch) Messages() <-chan store.WatchMessage { return w.messages }

// pass passes messages on until the watch ends; once it is silent, it drops them.
func (w *silentWatch) pass(ctx context.Context, silent <-chan struct{}) {
	defer close(w.messages)
	for m := range w.Watch.Messages() {
		select {
		case <-silent:
			continue
		default:
		}
		select {
		case w.messages <- m:
		case <-silent:
		case <-ctx.Done():
		}
	}
}
