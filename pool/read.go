package pool

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Reader is the state of all pools at one revision, read once. It is what an
// operator needs, without an instance of its own.
type Reader struct {
	core     *core
	snapshot store.Snapshot
}

// Read reads all pools.
func Read(ctx context.Context, b store.Backend, keys store.Keys) (*Reader, error) {
	s, err := store.ReadAll(ctx, b, keys.Pools())
	if err != nil {
		return nil, err
	}
	return newReader(s, keys), nil
}

func newReader(s store.Snapshot, keys store.Keys) *Reader {
	v := newView(keys)
	v.load(s)
	return &Reader{core: &core{view: v, entries: map[string]*entry{}}, snapshot: s}
}

// Revision is the one at which everything was read.
func (r *Reader) Revision() int64 { return r.snapshot.Revision }

// Pools returns all pools by name.
func (r *Reader) Pools() []Status { return r.core.view.statuses() }

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (r *Reader) Pool(name string) (Detail, error) { return found(r.core.detail(name), name) }

// Claims returns all claims that hold slots, first come first, and all that
// wait, in the order of the wait queue.
func (r *Reader) Claims() ([]HolderStatus, []WaiterStatus) {
	return r.core.view.allHolders(), r.core.waiters(nil)
}

// Each calls f with all claims that have the id, until it returns an error.
func (w Why) Each(f May) error {
	for _, h := range w.All {
		if err := f(h.Holder, h.Pools); err != nil {
			return err
		}
	}
	if w.Waiter != nil {
		return f(w.Waiter.Holder, w.Waiter.Pools)
	}
	return nil
}

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is
// a ClaimNotFound problem.
func (r *Reader) Why(id string) (Why, error) { return known(r.core.why(id), id) }

// detail returns one pool, nil if there is none.
func (c *core) detail(name string) *Detail {
	p := c.view.pools[name]
	if p == nil || !p.exists() {
		return nil
	}
	return &Detail{Status: c.view.status(p), Holders: c.view.holders(p), Waiters: c.waiters(p)}
}

func found(d *Detail, name string) (Detail, error) {
	if d == nil {
		return Detail{}, noPool(name)
	}
	return *d, nil
}

func known(w *Why, id string) (Why, error) {
	if w == nil {
		return Why{}, problem.New(problem.ClaimNotFound, "no claim %q is held or waits", id)
	}
	return *w, nil
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

// Pools returns all pools by name, as the view has them.
func (e *Engine) Pools(ctx context.Context) ([]Status, error) {
	return query(ctx, e, func(c *core) []Status { return c.view.statuses() })
}

// Detail is a pool with its holders and waiters.
type Detail struct {
	Status
	Holders []HolderStatus
	Waiters []WaiterStatus
}

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (e *Engine) Pool(ctx context.Context, name string) (Detail, error) {
	d, err := e.pool(ctx, name)
	if err != nil && e.outdated(ctx, err, name) {
		return e.pool(ctx, name)
	}
	return d, err
}

func (e *Engine) pool(ctx context.Context, name string) (Detail, error) {
	d, err := query(ctx, e, func(c *core) *Detail { return c.detail(name) })
	if err != nil {
		return Detail{}, err
	}
	return found(d, name)
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

// Claims returns all claims that hold slots, of all hosts, first come first, and
// all that wait, in the order of the wait queue.
func (e *Engine) Claims(ctx context.Context) ([]HolderStatus, []WaiterStatus, error) {
	type both struct {
		h []HolderStatus
		w []WaiterStatus
	}
	b, err := query(ctx, e, func(c *core) both { return both{c.view.allHolders(), c.waiters(nil)} })
	return b.h, b.w, err
}

// Why explains one claim, of any host: what it holds, or why it waits.
type Why struct {
	Claim string
	Held  *HolderStatus
	// All has every claim of that id that is held, Held included, the oldest first.
	// More than one instance holds one only if they were granted it at the same
	// moment. Held is then that of the instance that was asked, or else the oldest.
	All    []HolderStatus
	Waiter *WaiterStatus
	Reason Reason // of a waiter
}

// Fenced returns the claim that is held with a fence, nil if there is none.
func (w Why) Fenced(fence int64) *HolderStatus {
	for i := range w.All {
		if w.All[i].Fence == fence {
			return &w.All[i]
		}
	}
	return nil
}

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is
// a ClaimNotFound problem.
func (e *Engine) Why(ctx context.Context, id string) (Why, error) {
	w, err := query(ctx, e, func(c *core) *Why { return c.why(id) })
	if err != nil {
		return Why{}, err
	}
	return known(w, id)
}

func (c *core) why(claim string) *Why {
	by, id, named := cutInstance(claim)
	if held := c.view.claimsOf(id); len(held) > 0 {
		w := &Why{Claim: id}
		for _, cv := range held {
			h := c.view.holder(cv)
			if named && (h.Host != by.Host || h.Instance != by.Instance) {
				continue
			}
			w.All = append(w.All, h)
			if w.Held == nil || cv.isOf(c.view.keys, c.host, c.instance) {
				w.Held = &h
			}
		}
		if w.Held != nil {
			return w
		}
	}
	for _, cd := range c.all() {
		if cd.order.Claim != id {
			continue
		}
		w := cd.status(c.view)
		if named && (w.Host != by.Host || w.Instance != by.Instance) {
			continue
		}
		r := c.view.reasonFor(w.Pools, maxReasonHolders)
		r.Since = w.Since
		r.Position, r.Waiting = c.position(cd.order, w.Pools)
		if r.Text == "" {
			r.Text = c.turn(r)
		}
		w.Position, w.Reason = r.Position, r.Text
		return &Why{Claim: id, Waiter: &w, Reason: r}
	}
	return nil
}

// Adopted returns the claims that were taken over from an earlier life.
func (e *Engine) Adopted(ctx context.Context) ([]*Claim, error) {
	return query(ctx, e, func(c *core) []*Claim { return c.adopted })
}

// Age returns how old the view is: the time since the last event or progress of the watch.
func (e *Engine) Age(ctx context.Context) (time.Duration, error) {
	return query(ctx, e, func(c *core) time.Duration { return time.Since(c.updatedAt) })
}

// WaitRevision waits until the view has come up to a revision.
func (e *Engine) WaitRevision(ctx context.Context, rev int64) error {
	for {
		at, err := query(ctx, e, func(c *core) int64 { return c.view.rev })
		if err != nil || at >= rev {
			return err
		}
		e.feed.RequestProgress()
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return unavailable(ctx, context.Cause(ctx))
		}
	}
}

var (
	poolLimit   = prometheus.NewDesc("berth_pool_limit", "Slots of a pool; -1 is unlimited.", []string{"pool"}, nil)
	poolClaimed = prometheus.NewDesc("berth_pool_claimed", "Slots of a pool that are claimed, by all hosts.", []string{"pool"}, nil)
	poolWaiting = prometheus.NewDesc("berth_pool_waiting", "Claims that wait for a pool, on all hosts.", []string{"pool"}, nil)
	poolPaused  = prometheus.NewDesc("berth_pool_paused", "1 while a pool is paused.", []string{"pool"}, nil)
)

// Describe makes an engine a [prometheus.Collector] of what its pools are like.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolLimit, poolClaimed, poolWaiting, poolPaused} {
		ch <- d
	}
}

// scrapeTimeout bounds a scrape while etcd has not been read yet.
const scrapeTimeout = time.Second

// Collect reads the pools. Before the first view it yields nothing.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	pools, err := e.Pools(ctx)
	if err != nil {
		return
	}
	for _, p := range pools {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, p.Name)
		}
		gauge(poolLimit, float64(p.Limit))
		gauge(poolClaimed, float64(p.Claimed))
		gauge(poolWaiting, float64(p.Waiting))
		paused := 0.0
		if p.Paused {
			paused = 1
		}
		gauge(poolPaused, paused)
	}
}

// Status is the state of a pool.
type Status struct {
	Name string
	Spec
	// Claimed slots, of all claims; can be above the limit after it was
	// lowered.
	Claimed int
	// Waiting claims.
	Waiting int
	// Deleted is set if the pool's spec is gone while its slots are held.
	Deleted bool
	// Revision at which this was read, and SpecRevision of the spec.
	Revision, SpecRevision int64
	// LimitSince is the revision since which the limit holds.
	LimitSince int64
	// Dispatcher is the instance that grants the claims that wait: HOST/INSTANCE, empty
	// while there is none.
	Dispatcher string
	// Problem says why the pool grants nothing, if a value of it can't be read.
	Problem string
}

// HolderStatus is one claim that holds slots of a pool, or of several.
type HolderStatus struct {
	Claim string
	Holder
	// Slots of the pool that was asked for; Pools has all.
	Slots    int
	Pools    map[string]int
	Priority int
	Since    time.Time
	Fence    int64
	Lease    store.LeaseID
}

// WaiterStatus is one claim that waits.
type WaiterStatus struct {
	Claim string
	Holder
	Slots    int // of the pool that was asked for
	Pools    map[string]int
	Priority int
	Position int
	Since    time.Time
	Reserve  bool
	Reason   string
	Lease    store.LeaseID // 0 while it is not in etcd
}

func (v *view) status(p *poolView) Status {
	s := Status{
		Name: p.name, Spec: p.spec, Claimed: p.used, Waiting: p.waiting,
		Deleted: !p.known(), Revision: v.rev, SpecRevision: p.specRev, LimitSince: p.limitSince,
		Dispatcher: p.dispatcher.String(),
	}
	for _, key := range sortedKeys(v.corrupt) {
		if k, err := v.keys.ParsePoolKey(key); err == nil && k.Pool == p.name {
			s.Problem = v.corrupt[key].Error()
			break
		}
	}
	return s
}

// exists reports whether there is anything to show of a pool.
func (p *poolView) exists() bool { return p.known() || p.used > 0 || p.waiting > 0 }

// statuses returns all pools by name.
func (v *view) statuses() []Status {
	var all []Status
	for _, name := range sortedKeys(v.pools) {
		if p := v.pools[name]; p.exists() {
			all = append(all, v.status(p))
		}
	}
	return all
}

// holders returns the claims that hold slots of a pool, first come first.
func (v *view) holders(p *poolView) []HolderStatus {
	slots := map[claimKey]int{}
	for _, g := range p.groups {
		for _, s := range g.slots {
			slots[s.claim] += s.n
		}
	}
	all := make([]HolderStatus, 0, len(slots))
	for claim, n := range slots {
		h := v.holder(v.claim(claim))
		h.Slots = n
		all = append(all, h)
	}
	sortHolders(all)
	return all
}

func sortHolders(all []HolderStatus) {
	slices.SortFunc(all, func(a, b HolderStatus) int {
		return cmp.Or(cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.Claim, b.Claim))
	})
}

// holder returns a claim that holds slots.
func (v *view) holder(cv *claimView) HolderStatus {
	h := HolderStatus{Claim: cv.id, Fence: cv.rev, Lease: cv.lease}
	if r, err := cv.full(v.keys); err == nil {
		h.Holder, h.Pools, h.Priority, h.Since = r.Holder, r.Pools, r.Priority, r.Since
		for _, n := range r.Pools {
			h.Slots += n
		}
	}
	return h
}

// allHolders returns all claims that hold slots, first come first.
func (v *view) allHolders() []HolderStatus {
	all := make([]HolderStatus, 0, len(v.claims))
	for _, cv := range v.claims {
		for ; cv != nil; cv = cv.next {
			all = append(all, v.holder(cv))
		}
	}
	sortHolders(all)
	return all
}

// status is what there is to show of a candidate.
func (cd candidate) status(v *view) WaiterStatus {
	w := WaiterStatus{Claim: cd.order.Claim, Priority: cd.order.Priority}
	if cd.e != nil {
		w.Holder, w.Pools, w.Since, w.Reserve = cd.e.req.Holder, cd.e.req.Slots, cd.e.arrived, cd.e.reserve
	} else {
		w.Holder, w.Pools, w.Since, w.Reserve = cd.w.value.Holder, cd.w.value.Pools, cd.w.value.Queued, cd.w.value.Reserve
	}
	if cd.w != nil {
		w.Lease = cd.w.lease
	}
	if w.Reason = v.reasonFor(w.Pools, 0).Text; w.Reason == "" {
		w.Reason = "waiting its turn"
	}
	return w
}

// waiters returns the waiting claims in order; with a pool, only those that wait for it. A
// position counts the claims that wait for one of the same pools.
func (c *core) waiters(p *poolView) []WaiterStatus {
	var all []WaiterStatus
	type before struct {
		pools map[string]int
		n     int
	}
	var earlier []before // by the pools that they wait for
	byPools := map[string]int{}
	for _, cd := range c.all() {
		w := cd.status(c.view)
		if p != nil {
			n, ok := w.Pools[p.name]
			if !ok {
				continue
			}
			w.Slots = n
		}
		w.Position = len(all) + 1
		if p == nil {
			w.Position = 1
			for _, b := range earlier {
				if overlap(b.pools, w.Pools) {
					w.Position += b.n
				}
			}
			names := strings.Join(slices.Sorted(maps.Keys(w.Pools)), ",")
			at, known := byPools[names]
			if !known {
				at = len(earlier)
				byPools[names], earlier = at, append(earlier, before{pools: w.Pools})
			}
			earlier[at].n++
		}
		all = append(all, w)
	}
	return all
}
