package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// deadline is when a test gives up on something that must come. It is long
// enough for a very slow machine, and nothing is proved by reaching it.
const deadline = 60 * time.Second

// witness follows etcd's history of all keys from the first revision on, with a
// connection of its own, and judges it as it comes.
type witness struct {
	t       testing.TB
	backend store.Backend
	prefix  string
	stop    context.CancelFunc
	ended   chan struct{}
	// onEvent is called with each event before it is judged, and must not call
	// the witness.
	onEvent func(*History, *mvccpb.Event)
	// state is reported when something does not come; nil reports nothing more.
	state func() any

	mu      sync.Mutex // guards what follows
	history *History
	at      int64         // everything up to here was delivered
	changed chan struct{} // closed and replaced with each delivery
	broken  error         // why the history can't be followed to its end
}

// watch begins to follow, until the end of the test. At the end there must be no
// violation.
func watch(t testing.TB, backend store.Backend, opts ...func(*witness)) *witness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &witness{
		t: t, backend: backend, prefix: keys.Prefix(), stop: cancel, ended: make(chan struct{}),
		history: NewHistory(keys), changed: make(chan struct{}), onEvent: func(*History, *mvccpb.Event) {},
	}
	for _, o := range opts {
		o(w)
	}
	go func() {
		defer close(w.ended)
		w.follow(ctx)
	}()
	t.Cleanup(w.close)
	return w
}

// close ends the following and tells what was found.
func (w *witness) close() {
	w.stop()
	<-w.ended
	if w.broken != nil {
		w.t.Errorf("the history could not be followed to its end: %v", w.broken)
	}
	for i, v := range w.history.Violations() {
		if i == 20 {
			w.t.Errorf("and %d more", len(w.history.Violations())-i)
			break
		}
		w.t.Error(v)
	}
}

// follow watches, over and over where a watch ends before the test does.
func (w *witness) follow(ctx context.Context) {
	for next := int64(1); ctx.Err() == nil; {
		watch := w.backend.Watch(ctx, store.Prefix(w.prefix), next)
		next = w.read(ctx, watch, next)
		watch.Abandon()
		if w.broken != nil {
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// read takes what a watch delivers until it ends or falls silent, and returns
// where to go on.
func (w *witness) read(ctx context.Context, watch store.Watch, next int64) int64 {
	ask := time.NewTicker(200 * time.Millisecond)
	defer ask.Stop()
	silent := time.NewTimer(store.StaleAfter)
	defer silent.Stop()
	for {
		select {
		case m, ok := <-watch.Messages():
			switch {
			case !ok:
				return next
			case errors.Is(m.Err, store.ErrCompacted):
				w.mu.Lock()
				w.broken = m.Err
				w.mu.Unlock()
				return next
			case m.Err != nil:
				return next
			}
			w.deliver(m)
			next = max(next, m.Revision+1)
			silent.Reset(store.StaleAfter)
		case <-ask.C:
			watch.RequestProgress()
		case <-silent.C:
			return next // its member may be dead
		case <-ctx.Done():
			return next
		}
	}
}

func (w *witness) deliver(m store.WatchMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range m.Events {
		w.onEvent(w.history, ev)
	}
	w.history.Apply(m.Events...)
	w.at = max(w.at, m.Revision)
	close(w.changed)
	w.changed = make(chan struct{})
}

// look reads the history once it has come up to now: what a caller was answered before
// is in it.
func (w *witness) look(f func(*History)) {
	w.t.Helper()
	w.now()
	w.glance(f)
}

// glance reads the history as far as it is known, also while etcd does not answer.
func (w *witness) glance(f func(*History)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.history)
}

// until waits until the history is as wanted.
func (w *witness) until(what string, wanted func(*History) bool) {
	w.t.Helper()
	w.wait(what, func() bool { return wanted(w.history) })
}

func (w *witness) wait(what string, done func() bool) {
	w.t.Helper()
	late := time.NewTimer(deadline)
	defer late.Stop()
	for {
		w.mu.Lock()
		ok, changed := done(), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-w.ended:
			w.t.Fatalf("the history has ended before %s", what)
		case <-late.C:
			if w.state != nil {
				w.glance(func(*History) { w.t.Log(w.state()) })
			}
			w.t.Fatalf("after %s still not: %s", deadline, what)
		}
	}
}

// now is etcd's revision, once the history has come up to it.
func (w *witness) now() int64 {
	w.t.Helper()
	var rev int64
	eventually(w.t, "etcd answers a read", func(ctx context.Context) bool {
		resp, err := w.backend.Range(ctx, &pb.RangeRequest{Key: []byte(w.prefix), CountOnly: true})
		if err == nil {
			rev = resp.Header.Revision
		}
		return err == nil
	})
	w.wait("the history comes up to now", func() bool { return w.at >= rev })
	return rev
}

// pause waits between two tries.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// eventually tries until it is done. Each try gets 2 s.
func eventually(t testing.TB, what string, try func(context.Context) bool) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < deadline; pause(t.Context(), 10*time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		done := try(ctx)
		cancel()
		if done {
			return
		}
	}
	t.Fatalf("after %s still not: %s", deadline, what)
}
