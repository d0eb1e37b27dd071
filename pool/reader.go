package pool

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Reader is the state of pools at one revision: of all of them, or of one and of those
// that its claims and waiters are in too.
type Reader struct {
	snapshot store.Snapshot
	// only has the pools that were read; nil is all of them.
	only map[string]bool

	mu   sync.Mutex // guards view: a record is decoded when it is first shown
	view *view
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
	return &Reader{view: v, snapshot: s}
}

// Revision is the one at which everything was read.
func (r *Reader) Revision() int64 { return r.snapshot.Revision }

// Pools returns all pools by name.
func (r *Reader) Pools() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.statuses()
}

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (r *Reader) Pool(name string) (Detail, error) { return r.pool(name, own{}) }

// Claims returns all claims that hold slots, first come first, and all that
// wait, in the order of the wait queue.
func (r *Reader) Claims() ([]HolderStatus, []WaiterStatus) { return r.claims(own{}) }

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is
// a ClaimNotFound problem.
func (r *Reader) Why(id string) (Why, error) { return r.why(id, own{}) }

func (r *Reader) pool(name string, o own) (Detail, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.view.pools[name]
	if p == nil || !p.exists() {
		return Detail{}, NoPool(name)
	}
	status := r.view.status(p)
	status.Retained = o.retained[name]
	return Detail{Status: status, Holders: r.view.holders(p, o), Waiters: r.view.waitersOf(p, o)}, nil
}

func (r *Reader) claims(o own) ([]HolderStatus, []WaiterStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.allHolders(o), r.view.waitersOf(nil, o)
}

func (r *Reader) why(claim string, o own) (Why, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	by, id, named := cutInstance(claim)
	w := Why{Claim: id}
	for _, h := range r.view.heldAs(id, o) {
		if named && (h.Host != by.Host || h.Instance != by.Instance) {
			continue
		}
		w.All = append(w.All, h)
		if w.Held == nil || o.is(&h.Holder) {
			w.Held = &h
		}
	}
	if w.Held != nil {
		return w, nil
	}
	queue := r.view.queue(o)
	for i, q := range queue {
		if q.Claim != id || named && (q.Host != by.Host || q.Instance != by.Instance) {
			continue
		}
		w.Waiter, w.Reason = &queue[i].WaiterStatus, r.view.reasonIn(queue, i, o)
		w.Waiter.Position, w.Waiter.Reason = w.Reason.Position, w.Reason.Text
		return w, nil
	}
	return Why{}, problem.New(problem.ClaimNotFound, "no claim %q is held or waits", claim)
}

// reasonIn returns why a waiter of a queue is not granted.
func (v *view) reasonIn(queue []inQueue, i int, o own) Reason {
	w := &queue[i]
	r := v.reasonFor(w.Pools, maxReasonHolders, o)
	r.Since, r.Position, r.Waiting = w.Since, 1, 1
	for n := range queue {
		if n != i && overlap(queue[n].Pools, w.Pools) {
			r.Waiting++
			if n < i {
				r.Position++
			}
		}
	}
	if r.Text == "" {
		var trouble error
		if o.is(&w.Holder) {
			trouble = o.trouble
		}
		r.Text = r.Turn(trouble)
	}
	return r
}

func (v *view) status(p *poolView) Status {
	s := Status{
		Name: p.name, Spec: p.spec, Claimed: p.used, Waiting: p.waiting,
		Deleted: !p.known(), Revision: p.rev, SpecRevision: p.specRev, LimitSince: p.limitSince,
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
func (v *view) holders(p *poolView, o own) []HolderStatus {
	slots := map[claimKey]int{}
	for _, g := range p.groups {
		for _, s := range g.slots {
			slots[s.claim] += s.n
		}
	}
	all := make([]HolderStatus, 0, len(slots))
	for claim, n := range slots {
		h := v.holder(v.claim(claim), o)
		h.Slots = n
		all = append(all, h)
	}
	sortHolders(all)
	return all
}

// holder returns who has the slots of a claim that keys show.
func (v *view) holder(cv *claimView, o own) HolderStatus {
	r, _ := cv.full(v.keys)
	h := holderStatus(cv.id, r, cv.fence(v.keys), cv.rev, cv.lease)
	if has, ok := o.holders[cv.claimKey]; ok && has.rev == cv.rev {
		if has.claim != nil {
			return *has.claim
		}
		h.Since, h.RetainedUntil = has.since, has.until
	}
	return h
}

// heldAs returns the claims of an id that hold slots, the oldest first.
func (v *view) heldAs(id string, o own) []HolderStatus {
	var all []HolderStatus
	for _, cv := range v.claimsOf(id) {
		if h := v.holder(cv, o); h.Claim == id && h.RetainedUntil.IsZero() {
			all = append(all, h)
		}
	}
	for shown, has := range o.holders {
		if cv := v.claim(shown); cv != nil && cv.rev == has.rev && has.claim != nil && has.claim.Claim == id && shown.id != id {
			all = append(all, *has.claim)
		}
	}
	sortHolders(all)
	return all
}

// holderStatus returns a claim whose keys have a revision. Its record is nil if it can't be read.
func holderStatus(id string, r *record, fence store.Fence, rev int64, lease store.LeaseID) HolderStatus {
	h := HolderStatus{Claim: id, Fence: fence, Granted: rev, Lease: lease}
	if r != nil {
		h.Holder, h.Pools, h.Priority, h.Since = r.Holder, r.Pools, r.Priority, r.Since
		h.Granted = cmp.Or(r.Granted, rev)
		for _, n := range r.Pools {
			h.Slots += n
		}
	}
	return h
}

// allHolders returns all claims that hold slots, first come first.
func (v *view) allHolders(o own) []HolderStatus {
	all := make([]HolderStatus, 0, len(v.claims))
	for _, cv := range v.claims {
		for ; cv != nil; cv = cv.next {
			all = append(all, v.holder(cv, o))
		}
	}
	sortHolders(all)
	return all
}

// own is what an instance knows of its claims that wait, beyond what etcd holds.
type own struct {
	host, instance string
	// rev is the revision that shows what the instance knows of its claims.
	rev     int64
	waiting []inQueue // in no order
	// retained are the slots of each pool that it retains, and that no claim holds.
	retained map[string]int
	// holders are its claims that hold slots whose keys show others, and its slots that no claim
	// holds, by what the keys show.
	holders map[claimKey]ownHolder
	// trouble is why no lease could be made for them, nil if one could.
	trouble error
}

// ownHolder has slots whose keys, of revision rev, show another claim. If claim is nil, none holds
// them since a time, and they are retained until another one.
type ownHolder struct {
	rev          int64
	claim        *HolderStatus
	since, until time.Time
}

// is reports whether a claim belongs to the instance.
func (o own) is(h *Holder) bool { return o.host != "" && h.Host == o.host && h.Instance == o.instance }

// poolOf returns a pool that a claim of the instance waits for which is named by
// HOST/INSTANCE/ID, and nothing if that is none.
func (o own) poolOf(claim string) string {
	by, id, named := cutInstance(claim)
	if !named || !o.is(&by) {
		return ""
	}
	for _, q := range o.waiting {
		if q.Claim == id {
			return slices.Min(slices.Collect(maps.Keys(q.Pools)))
		}
	}
	return ""
}

// inQueue is one claim in the wait queue.
type inQueue struct {
	order  Order
	passed bool // see [core.passed]
	WaiterStatus
}

// own returns what the instance knows of its claims that wait.
func (c *core) own() own {
	o := own{host: c.host, instance: c.instance, rev: c.ownRev, trouble: c.leases.Trouble()}
	waiting := slices.Clone(c.queue)
	for _, r := range c.retentions {
		waiting = append(waiting, r.local...)
	}
	for _, e := range waiting {
		if e.state != queued || c.defers(e) {
			continue
		}
		order := e.order
		if order.Since == 0 {
			order.Since = e.since(c.seen)
		}
		o.waiting = append(o.waiting, inQueue{order, !c.usable(e) || !c.ready(e), WaiterStatus{
			Claim: e.req.ID, Holder: e.req.Holder, Pools: e.req.Slots, Priority: e.req.Priority,
			Since: e.arrived, Reserve: e.reserve,
		}})
	}
	if len(c.idle)+len(c.regrants) > 0 {
		o.retained, o.holders = map[string]int{}, map[claimKey]ownHolder{}
	}
	for shown, i := range c.idle {
		for _, n := range i.needs {
			o.retained[n.Pool] += n.N
		}
		o.holders[shown] = ownHolder{rev: i.rev, since: recorded(i.since), until: recorded(i.since.Add(c.retains(i.needs)))}
	}
	for shown, e := range c.regrants {
		h := holderStatus(e.req.ID, e.record, e.fence, e.rev, e.lease)
		o.holders[shown] = ownHolder{rev: e.rev, claim: &h}
	}
	return o
}

// queue returns the wait queue: the waiters in etcd, and those of an instance, which may not
// be in etcd yet, or may be about to be deleted there.
func (v *view) queue(o own) []inQueue {
	all := make([]inQueue, 0, len(v.waiters)+len(o.waiting))
	leases := map[Order]store.LeaseID{} // of those that o has
	for _, w := range v.waiters {
		if o.is(&w.value.Holder) {
			leases[w.order] = w.lease
			continue
		}
		all = append(all, inQueue{w.order, v.passed(w), WaiterStatus{
			Claim: w.order.Claim, Holder: w.value.Holder, Pools: w.value.Pools, Priority: w.order.Priority,
			Since: w.value.Queued, Reserve: w.value.Reserve, Lease: w.lease,
		}})
	}
	for _, q := range o.waiting {
		granted := slices.ContainsFunc(v.claimsOf(q.Claim), func(cv *claimView) bool { return cv.isOf(v.keys, o.host, o.instance) })
		if !granted { // since o was asked
			q.Lease = leases[q.order]
			all = append(all, q)
		}
	}
	slices.SortFunc(all, func(a, b inQueue) int { return a.order.Compare(b.order) })
	return all
}

// waitersOf returns the waiting claims in order; with a pool, only those that wait for it. A
// position counts the claims that wait for one of the same pools.
func (v *view) waitersOf(p *poolView, o own) []WaiterStatus {
	var all []WaiterStatus
	type before struct {
		pools map[string]int
		n     int
	}
	var earlier []before // by the pools that they wait for
	byPools := map[string]int{}
	for _, q := range v.queue(o) {
		w := q.WaiterStatus
		if p != nil {
			n, ok := w.Pools[p.name]
			if !ok {
				continue
			}
			w.Slots = n
		}
		if w.Reason = v.reasonFor(w.Pools, 0, o).Text; w.Reason == "" {
			w.Reason = "waiting its turn"
			if cv := v.held(w.Claim, instanceName{w.Holder.Host, w.Holder.Instance}); cv != nil {
				w.Reason = v.isHeld(cv)
			}
		}
		w.Position = len(all) + 1
		if p == nil {
			w.Position = 1
			for _, b := range earlier {
				if overlap(b.pools, w.Pools) {
					w.Position += b.n
				}
			}
			names := strings.Join(sortedKeys(w.Pools), ",")
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
