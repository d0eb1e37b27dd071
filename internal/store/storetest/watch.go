package storetest

import (
	"context"
	"fmt"

	"github.com/berthhq/berth/internal/store"
)

// maxRevisions is how many revisions one message of a watch holds at most: what
// etcd sends at once to a watch that catches up.
const maxRevisions = 1000

// watch is a watch of a [Backend].
type watch struct {
	backend  *Backend
	ctx      context.Context
	cancel   context.CancelFunc
	messages chan store.WatchMessage
	poll     chan struct{} // coalesces: something changed

	// Guarded by the hub's mu.
	follower *Follower
	cluster  uint64 // that it is of; 0 if that was not known yet
	progress bool   // was asked for
	broken   error  // ends the watch
}

// Watch follows every key of a range from revision from on.
func (b *Backend) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{
		backend:  b,
		ctx:      ctx,
		cancel:   cancel,
		messages: make(chan store.WatchMessage),
		poll:     make(chan struct{}, 1),
	}
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	w.follower, w.cluster = b.hub.etcd.Follow(keys, from), b.cluster
	if b.closed {
		cancel()
		close(w.messages)
		return w
	}
	b.watches[w] = struct{}{}
	b.wg.Go(w.run)
	return w
}

// started is that of every watch of a [Backend]: it sees everything from its first moment on.
var started = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Started is closed.
func (w *watch) Started() <-chan struct{} { return started }

// Messages ends when the watch does.
func (w *watch) Messages() <-chan store.WatchMessage { return w.messages }

// RequestProgress is lost while watches are frozen or etcd is down.
func (w *watch) RequestProgress() {
	w.backend.hub.mu.Lock()
	defer w.backend.hub.mu.Unlock()
	if !w.backend.silent() {
		w.progress = true
		w.wake()
	}
}

// Abandon ends the watch.
func (w *watch) Abandon() { w.cancel() }

func (w *watch) run() {
	defer w.end()
	var next delivery
	for {
		next = w.prepare(next)
		out := w.messages
		if !next.open {
			out = nil
		}
		select {
		case out <- next.message:
			if next.message.Err != nil {
				return
			}
			next = delivery{}
		case <-w.poll:
		case <-w.ctx.Done():
			return
		}
	}
}

// delivery is what a watch delivers next, if taken, and whether it may now.
type delivery struct {
	message     store.WatchMessage
	taken, open bool
}

// prepare takes the next message unless next holds one, and judges whether it
// may go out.
func (w *watch) prepare(next delivery) delivery {
	h := w.backend.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.broken != nil {
		failed := store.WatchMessage{Err: fmt.Errorf("watch: %w", w.broken)}
		return delivery{failed, true, true}
	}
	if w.backend.silent() {
		w.progress, next.open = false, false
		return next
	}
	if err := w.backend.belongs(w.cluster); err != nil {
		return delivery{store.WatchMessage{Err: fmt.Errorf("watch: %w", err)}, true, true}
	}
	if !next.taken {
		next.message, next.taken = w.follower.Next(maxRevisions)
	}
	if !next.taken && w.progress {
		w.progress = false
		next.message, next.taken = w.follower.Progress()
	}
	next.open = next.taken
	return next
}

func (w *watch) end() {
	w.cancel()
	w.backend.hub.mu.Lock()
	defer w.backend.hub.mu.Unlock()
	delete(w.backend.watches, w)
	close(w.messages)
}

// wake never blocks.
func (w *watch) wake() {
	select {
	case w.poll <- struct{}{}:
	default:
	}
}

// wake has all watches poll; hub.mu is held.
func (b *Backend) wake() {
	for w := range b.watches {
		w.wake()
	}
}

// silent reports whether watches deliver nothing; hub.mu is held.
func (b *Backend) silent() bool { return b.frozen || b.down }
