package pool

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// shareFor is for how long one read of the pools answers further callers.
	shareFor = time.Second
	// readsTimeout bounds one read.
	readsTimeout = 5 * time.Second
	// maxRelated is how many pools are read one by one along with a pool; of more, all are.
	maxRelated = 8
)

// allPools is the key of a read of all pools; no pool has that name.
const allPools = ""

// reads reads pools from etcd for the callers of an instance. Callers share what is read:
// those at the same time, and those within [shareFor], unless the instance knows of a later
// write.
type reads struct {
	backend store.Backend
	keys    store.Keys

	mu      sync.Mutex // guards what follows
	begun   uint64     // reads so far
	latest  map[string]*sharedRead
	floor   int64  // what is older answers no caller
	shown   int64  // the latest revision that a caller was answered with
	history uint64 // that both are of
}

// sharedRead is one read. Once done is closed, reader or err is set.
type sharedRead struct {
	number  uint64
	at      time.Time
	history uint64
	cancel  context.CancelFunc
	callers int // that wait for it
	done    chan struct{}
	reader  *Reader
	err     error
}

func newReads(b store.Backend, keys store.Keys) *reads {
	return &reads{backend: b, keys: keys, latest: map[string]*sharedRead{}}
}

// atLeast has every later answer show a revision: this instance has written it, or has seen
// it.
func (r *reads) atLeast(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew()
	r.floor = max(r.floor, rev)
}

// renew forgets the revisions of an earlier history. The lock is held.
func (r *reads) renew() {
	if history := r.backend.History(); history != r.history {
		r.history, r.floor, r.shown = history, 0, 0
	}
}

// latestShown returns the latest revision that a caller was answered with.
func (r *reads) latestShown() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew()
	return r.shown
}

// get returns the state of a pool, or of all. Fresh is set for one that is read after the call.
func (r *reads) get(ctx context.Context, pool string, fresh bool) (*Reader, error) {
	r.mu.Lock()
	before := r.begun
	for {
		now := r.latest[pool]
		if all := r.latest[allPools]; all != nil && all.over() && r.good(all, before, fresh) {
			now = all
		}
		if now == nil || now.over() && !r.good(now, before, fresh) {
			now = r.begin(ctx, pool)
		}
		now.callers++
		r.mu.Unlock()
		var err error
		select {
		case <-now.done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		r.mu.Lock()
		if now.callers--; now.callers == 0 && !now.over() {
			now.cancel() // no caller waits for it
			r.forget(pool, now)
		}
		if err == nil {
			err = now.err
		}
		if err != nil {
			r.mu.Unlock()
			return nil, err
		}
		if r.good(now, before, fresh) {
			if r.renew(); now.history == r.history {
				r.shown = max(r.shown, now.reader.Revision())
			}
			r.mu.Unlock()
			return now.reader, nil
		}
	}
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

// good reports whether a read that is over answers a caller. One that began after the call
// does, whatever it shows: etcd may have been restored.
func (r *reads) good(s *sharedRead, before uint64, fresh bool) bool {
	switch {
	case s.err != nil:
		return false
	case s.number > before:
		return true
	case fresh || time.Since(s.at) >= shareFor || s.history != r.backend.History():
		return false
	}
	return s.history != r.history || s.reader.Revision() >= r.floor
}

// begin begins a read. It ends without its first caller, while another waits for it.
func (r *reads) begin(ctx context.Context, pool string) *sharedRead {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readsTimeout)
	r.begun++
	s := &sharedRead{number: r.begun, at: time.Now(), history: r.backend.History(), cancel: cancel, done: make(chan struct{})}
	r.latest[pool] = s
	go func() {
		defer cancel()
		s.reader, s.err = r.read(ctx, pool)
		r.mu.Lock()
		defer r.mu.Unlock()
		close(s.done)
		if s.err != nil {
			r.forget(pool, s)
			return
		}
		time.AfterFunc(shareFor, func() {
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

func (r *reads) read(ctx context.Context, pool string) (*Reader, error) {
	reader, err := r.readOne(ctx, pool)
	if reader == nil && err == nil {
		reader, err = Read(ctx, r.backend, r.keys)
	}
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	reader.snapshot.KVs = nil // the view has what is shown
	return reader, nil
}

// readOne reads a pool, and at the same revision those that its claims and waiters are in
// too. It returns nil if all are to be read instead.
func (r *reads) readOne(ctx context.Context, pool string) (*Reader, error) {
	if pool == allPools {
		return nil, nil
	}
	s, err := store.ReadAll(ctx, r.backend, r.keys.Pool(pool))
	if err != nil {
		return nil, err
	}
	reader := newReader(s, r.keys)
	related := reader.view.related(pool)
	if len(related) > maxRelated {
		return nil, nil
	}
	reader.only = map[string]bool{pool: true}
	for _, name := range related {
		other, err := store.ReadAt(ctx, r.backend, r.keys.Pool(name), s.Revision)
		if errors.Is(err, store.ErrCompacted) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, kv := range other.KVs {
			reader.view.put(kv, s.Revision)
		}
		reader.only[name] = true
	}
	return reader, nil
}

// related returns the other pools that the claims and waiters of a pool are in.
func (v *view) related(pool string) []string {
	names := map[string]bool{}
	for _, cv := range v.allClaims() {
		names[cv.main.pool] = true
	}
	for _, w := range v.waiters {
		for name := range w.value.Pools {
			names[name] = true
		}
	}
	delete(names, pool)
	return sortedKeys(names)
}

// has reports whether the pools were read that some waiters of a pool are in.
func (r *Reader) has(pool string, waiting []inQueue) bool {
	for _, q := range waiting {
		if _, ok := q.Pools[pool]; !ok || r.only == nil {
			continue
		}
		for name := range q.Pools {
			if !r.only[name] {
				return false
			}
		}
	}
	return true
}

// Pools returns all pools by name. Like the other readings of an engine, it shows what this
// instance has written, what it knows of its claims, and what others have written at least a
// second ago: see [Fresh].
func (e *Engine) Pools(ctx context.Context) ([]Status, error) {
	o, err := e.own(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.read(ctx, allPools, false)
	if err != nil {
		return nil, err
	}
	pools := r.Pools()
	for i := range pools {
		pools[i].Retained = o.retained[pools[i].Name]
	}
	return pools, nil
}

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (e *Engine) Pool(ctx context.Context, name string) (Detail, error) {
	o, err := e.own(ctx)
	if err != nil {
		return Detail{}, err
	}
	d, err := e.pool(ctx, name, o, false)
	if problem.CodeOf(err) == problem.PoolNotFound {
		return e.pool(ctx, name, o, true) // it may have been created just now
	}
	return d, err
}

func (e *Engine) pool(ctx context.Context, name string, o own, fresh bool) (Detail, error) {
	r, err := e.read(ctx, name, fresh)
	if err == nil && !r.has(name, o.waiting) {
		r, err = e.read(ctx, allPools, fresh)
	}
	if err != nil {
		return Detail{}, err
	}
	return r.pool(name, o)
}

// Claims returns all claims that hold slots, of all hosts, first come first, and
// all that wait, in the order of the wait queue.
func (e *Engine) Claims(ctx context.Context) ([]HolderStatus, []WaiterStatus, error) {
	o, err := e.own(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.read(ctx, allPools, false)
	if err != nil {
		return nil, nil, err
	}
	holders, waiters := r.claims(o)
	return holders, waiters, nil
}

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is
// a ClaimNotFound problem.
func (e *Engine) Why(ctx context.Context, id string) (Why, error) {
	o, err := e.own(ctx)
	if err != nil {
		return Why{}, err
	}
	if pool := o.poolOf(id); pool != "" { // its own pools are enough
		r, err := e.read(ctx, pool, false)
		if err != nil {
			return Why{}, err
		}
		if r.has(pool, o.waiting) {
			return r.why(id, o)
		}
	}
	w, err := e.why(ctx, id, o, false)
	if problem.CodeOf(err) == problem.ClaimNotFound {
		return e.why(ctx, id, o, true)
	}
	return w, err
}

func (e *Engine) why(ctx context.Context, id string, o own, fresh bool) (Why, error) {
	r, err := e.read(ctx, allPools, fresh)
	if err != nil {
		return Why{}, err
	}
	return r.why(id, o)
}

// Space returns the space of all pools.
func (e *Engine) Space(ctx context.Context) (*Space, error) {
	o, err := e.own(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.read(ctx, allPools, false)
	if err != nil {
		return nil, err
	}
	return r.space(o), nil
}

// own returns what the engine knows of its claims beyond etcd, and has later answers show the
// rest. It is asked before etcd is read: a claim that etcd does not show then is in one of
// both.
func (e *Engine) own(ctx context.Context) (own, error) {
	o, err := query(ctx, e, func(c *core) own { return c.own() })
	e.reads.atLeast(o.rev)
	return o, err
}

// read returns the state of a pool, or of all.
func (e *Engine) read(ctx context.Context, pool string, fresh bool) (*Reader, error) {
	select {
	case <-e.stopped:
		return nil, errStopped
	default:
	}
	r, err := e.reads.get(ctx, pool, fresh || IsFresh(ctx))
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return r, nil
}

// query reads something of the loop's state.
func query[T any](ctx context.Context, e *Engine, f func(*core) T) (T, error) {
	var zero T
	if err := e.Ready(ctx); err != nil {
		return zero, unavailable(ctx, err)
	}
	reply := make(chan T, 1)
	if err := e.send(ctx, func(c *core, _ time.Time) { reply <- f(c) }); err != nil {
		return zero, unavailable(ctx, err)
	}
	select {
	case v := <-reply:
		return v, nil
	case <-ctx.Done():
		return zero, unavailable(ctx, context.Cause(ctx))
	case <-e.stopped:
		return zero, errStopped
	}
}

func unavailable(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet: %w", err)
}

// Trouble returns why nothing can be claimed now, whatever is free; nil if there is
// no such reason, or none is known within a second.
func (e *Engine) Trouble() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply := make(chan error, 1)
	if err := e.send(ctx, func(c *core, now time.Time) { reply <- c.trouble(now) }); err != nil {
		return nil
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Adopted returns the claims that were taken over from an earlier life.
func (e *Engine) Adopted(ctx context.Context) ([]*Claim, error) {
	return query(ctx, e, func(c *core) []*Claim { return c.adopted })
}

// Age returns how old the view is: the time since the last event or progress of the watch.
func (e *Engine) Age(ctx context.Context) (time.Duration, error) {
	return query(ctx, e, func(c *core) time.Duration { return time.Since(c.updatedAt) })
}

// Restoring reports whether etcd was restored, and the engine has not read all pools since.
func (e *Engine) Restoring(ctx context.Context) (bool, error) {
	return query(ctx, e, func(c *core) bool {
		return c.history != e.cfg.Backend.History() || c.phase != normal || c.readAll || c.readingAll
	})
}

// showWithin bounds the time that [Engine.Show] takes: that of a few writes.
const showWithin = time.Second

// Show has etcd show a claim of this instance that was granted its slots without a write, so that
// it can be found there. It returns when that is done, when the instance holds no such claim, or
// when showWithin has passed.
func (e *Engine) Show(ctx context.Context, claim string) {
	by, id, named := cutInstance(claim)
	if named && (by.Host != e.cfg.Host || by.Instance != e.cfg.Instance) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, showWithin)
	defer cancel()
	_ = e.poll(ctx, func(c *core) bool {
		own := c.entries[id]
		if own == nil || own.state != held || own.shown.id == "" {
			return true
		}
		if !own.rewriting {
			c.rewriteNow(own)
		}
		return false
	})
}

// WaitRevision waits until all that is known of pools is of a revision or later. What is read
// from then on shows that revision as well.
func (e *Engine) WaitRevision(ctx context.Context, rev int64) error {
	e.reads.atLeast(rev)
	e.specs.forget()
	return e.poll(ctx, func(c *core) bool {
		shown := c.show(rev)
		if !shown {
			e.watches.requestProgress()
		}
		return shown
	})
}

// poll waits until something is so.
func (e *Engine) poll(ctx context.Context, is func(*core) bool) error {
	for {
		done, err := query(ctx, e, is)
		if err != nil || done {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return unavailable(ctx, context.Cause(ctx))
		}
	}
}
