package list

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/store"
)

const (
	// shareFor is for how long one read of pools answers further callers.
	shareFor = time.Second
	// readsTimeout bounds one read.
	readsTimeout = 5 * time.Second
	// tenth has reads for reasons of the same pools take a tenth of the time at most.
	tenth = 10
)

// allPools is the key of a read of all pools; no pool has that name.
const allPools = ""

// briefPrefix begins the key of a read for reasons, which ends with the pools, separated by commas.
const briefPrefix = "reason:"

// brief returns the pools of a read for reasons, nil for another one.
func brief(key string) []string {
	names, is := strings.CutPrefix(key, briefPrefix)
	if !is {
		return nil
	}
	return strings.Split(names, ",")
}

// reads reads pools from etcd for the callers of an instance. Callers share what is read: those at the same time, and
// those within [shareFor], unless the instance knows of a later write.
type reads struct {
	backend store.Backend
	keys    store.Keys

	mu      sync.Mutex // guards what follows
	begun   uint64     // reads so far
	latest  map[string]*sharedRead
	floor   int64  // what is older answers no caller, but for reasons
	changed int64  // what is older answers no caller at all
	shown   int64  // the latest revision that a caller was answered with
	history uint64 // that both are of
}

// sharedRead is one read. Once done is closed, state or err is set.
type sharedRead struct {
	number  uint64
	at      time.Time
	keep    time.Duration // from then on, for further callers
	history uint64
	cancel  context.CancelFunc
	brief   bool // it is for reasons, which may be as old as keep says
	callers int  // that wait for it
	done    chan struct{}
	state   *State
	err     error
}

func newReads(b store.Backend, keys store.Keys) *reads {
	return &reads{backend: b, keys: keys, latest: map[string]*sharedRead{}}
}

// atLeast has every later answer show a revision: this instance has written it, or has seen it.
func (r *reads) atLeast(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew()
	r.floor = max(r.floor, rev)
}

// change has every later answer show a revision, reasons included: a caller has changed a pool then.
func (r *reads) change(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew()
	r.changed = max(r.changed, rev)
}

// renew forgets the revisions of an earlier history. The lock is held.
func (r *reads) renew() {
	if history := r.backend.History(); history != r.history {
		r.history, r.floor, r.changed, r.shown = history, 0, 0, 0
	}
}

// latestShown returns the latest revision that a caller was answered with.
func (r *reads) latestShown() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew()
	return r.shown
}

// get returns the state of a pool with what it depends on, or of all. Fresh is set for one that is read after the call.
func (r *reads) get(ctx context.Context, pool string, fresh bool) (*State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.begun
	for {
		now := r.begunFor(ctx, pool, before, fresh)
		if err := r.wait(ctx, pool, now); err != nil {
			return nil, err
		}
		if r.answers(now, before, fresh) {
			if r.renew(); now.history == r.history {
				r.shown = max(r.shown, now.state.Revision())
			}
			return now.state, nil
		}
	}
}

// begunFor returns the read that a caller waits for, which may be over. The lock is held.
func (r *reads) begunFor(ctx context.Context, pool string, before uint64, fresh bool) *sharedRead {
	if all := r.latest[allPools]; all != nil && all.over() && r.answers(all, before, fresh) {
		return all
	}
	if now := r.latest[pool]; now != nil && (!now.over() || r.answers(now, before, fresh)) {
		return now
	}
	return r.begin(ctx, pool)
}

// wait waits until a read is over. The lock is held, but not meanwhile.
func (r *reads) wait(ctx context.Context, pool string, s *sharedRead) (err error) {
	s.callers++
	r.mu.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.mu.Lock()
	if s.callers--; s.callers == 0 && !s.over() {
		s.cancel() // no caller waits for it
		r.forget(pool, s)
	}
	if err == nil {
		err = s.err
	}
	return err
}

// over reports whether the read has ended.
func (s *sharedRead) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// answers reports whether a read that is over answers a caller. One that began after the call does, whatever it shows:
// etcd may have been restored. The lock is held.
func (r *reads) answers(s *sharedRead, before uint64, fresh bool) bool {
	switch {
	case s.err != nil:
		return false
	case s.number > before:
		return true
	case fresh || time.Since(s.at) >= s.keep || s.history != r.backend.History():
		return false
	}
	least := r.floor
	if s.brief {
		least = 0
	}
	return s.history != r.history || s.state.Revision() >= max(least, r.changed)
}

// begin begins a read. It ends without its first caller, while another waits for it. The lock is held.
func (r *reads) begin(ctx context.Context, pool string) *sharedRead {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readsTimeout)
	r.begun++
	s := &sharedRead{number: r.begun, at: time.Now(), keep: shareFor, history: r.backend.History(), cancel: cancel, brief: brief(pool) != nil, done: make(chan struct{})}
	r.latest[pool] = s
	go func() {
		defer cancel()
		s.state, s.err = r.read(ctx, pool)
		took := time.Since(s.at)
		r.mu.Lock()
		defer r.mu.Unlock()
		close(s.done)
		if s.err != nil {
			r.forget(pool, s)
			return
		}
		if s.brief {
			s.keep = max(s.keep, tenth*took)
		}
		time.AfterFunc(s.keep, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.forget(pool, s)
		})
	}()
	return s
}

// forget forgets a read unless there is a later one. The lock is held.
func (r *reads) forget(pool string, s *sharedRead) {
	if r.latest[pool] == s {
		delete(r.latest, pool)
	}
}

func (r *reads) read(ctx context.Context, pool string) (s *State, err error) {
	switch names := brief(pool); {
	case names != nil:
		s, err = readBrief(ctx, r.backend, r.keys, names)
	case pool == allPools:
		s, err = Read(ctx, r.backend, r.keys)
	default:
		s, err = ReadPool(ctx, r.backend, r.keys, pool)
	}
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	return s, nil
}
