package engine

import "sync"

// inbox is what the loop has to do. Any goroutine may put a function into it; it never blocks.
type inbox struct {
	mu     sync.Mutex // guards list and closed
	list   []func()
	closed bool
	poked  chan struct{}
}

func newInbox() *inbox { return &inbox{poked: make(chan struct{}, 1)} }

// put has the loop run f. It is false if the loop has ended.
func (b *inbox) put(f func()) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.list = append(b.list, f)
	b.mu.Unlock()
	select {
	case b.poked <- struct{}{}:
	default: // the loop looks soon
	}
	return true
}

// run runs what was put, and reports whether there was anything.
func (b *inbox) run() bool {
	b.mu.Lock()
	all := b.list
	b.list = nil
	b.mu.Unlock()
	for _, f := range all {
		f()
	}
	return len(all) > 0
}

// close refuses what is put from now on. What was put and not run never is.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}
