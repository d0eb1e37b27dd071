package sidecar

import "sync"

// streamBuffer is how many events a stream may be behind before it is told that
// it has missed some.
const streamBuffer = 256

// message is an event, ready to be sent.
type message struct {
	id    string // what to go on from; empty for none
	event string
	data  []byte
}

// stream is what one reader gets. Empty filters let everything pass.
type stream struct {
	claim, pool string
	wake        chan struct{} // coalesces: there is something to take

	// mu guards what follows.
	mu       sync.Mutex
	queue    []message
	lagged   bool
	stopping bool // to be told
	ended    bool // nothing follows
}

// take returns what there is for the reader: messages in order, then whether
// some were left out after them, whether the server is stopping, and whether
// this is the end.
func (s *stream) take() (queue []message, lagged, stopping, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, lagged, stopping = s.queue, s.lagged, s.stopping
	s.queue, s.lagged, s.stopping = nil, false, false
	return queue, lagged, stopping, s.ended
}

func (s *stream) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) push(m message) {
	s.change(func() {
		if len(s.queue) >= streamBuffer {
			s.lagged = true
			return
		}
		s.queue = append(s.queue, m)
	})
}

func (s *stream) lag()  { s.change(func() { s.lagged = true }) }
func (s *stream) stop() { s.change(func() { s.stopping = true }) }
func (s *stream) end()  { s.change(func() { s.ended = true }) }
