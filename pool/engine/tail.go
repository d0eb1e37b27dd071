package engine

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/store"
)

const (
	// reopenAfter and mostReopen are how long a tail waits before it opens its watch again: doubled each time.
	reopenAfter = 50 * time.Millisecond
	mostReopen  = time.Second
)

// message is what a watch has delivered.
type message = store.WatchMessage

// tail watches keys from the present on. Each time its watch is open, the loop reads what was there before, so that nothing
// is missed: a watch that began at an older revision would be served by etcd after up to 100 ms.
type tail struct {
	e      *Engine
	keys   store.KeyRange
	opened func()
	shown  func(message)
	watch  store.Watch // nil while there is none
	cancel context.CancelFunc
}

// newTail returns a tail that is not open. Its functions are called by the loop.
func newTail(e *Engine, keys store.KeyRange, opened func(), shown func(message)) *tail {
	return &tail{e: e, keys: keys, opened: opened, shown: shown}
}

// open begins to watch.
func (t *tail) open(ctx context.Context) {
	ctx, t.cancel = context.WithCancel(ctx)
	t.e.tasks.Go(func() { t.run(ctx) })
}

// close ends it. Nothing is shown afterwards.
func (t *tail) close() { t.cancel() }

// progress asks for a message that tells how far the watch has come.
func (t *tail) progress() {
	if t.watch != nil {
		t.watch.RequestProgress()
	}
}

// reopen ends a watch that is silent: another one is opened.
func (t *tail) reopen() {
	if t.watch != nil {
		t.watch.Abandon()
		t.watch = nil
	}
}

// run watches until ctx ends.
func (t *tail) run(ctx context.Context) {
	for pause := reopenAfter; ; pause = min(2*pause, mostReopen) {
		history := t.e.cfg.Backend.History()
		w := t.e.cfg.Backend.Watch(ctx, t.keys, 0)
		t.post(ctx, history, func() { t.watch = w })
		select {
		case <-w.Started():
			t.post(ctx, history, t.opened)
		case <-ctx.Done():
		}
		for m := range w.Messages() {
			if m.Err != nil {
				break
			}
			pause = reopenAfter
			t.post(ctx, history, func() { t.shown(m) })
		}
		w.Abandon()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// post has the loop run f, unless the tail was closed, or the watch is of a history of etcd that is no more.
func (t *tail) post(ctx context.Context, history uint64, f func()) {
	t.e.inbox.put(func() {
		if ctx.Err() == nil && history == t.e.cfg.Backend.History() {
			f()
		}
	})
}
