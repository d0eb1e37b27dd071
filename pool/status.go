package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Status is what a pool is like now.
type Status struct {
	Name string
	Spec
	// Claimed slots, of all claims; can be above the limit after it was
	// lowered.
	Claimed int
	// Waiting claims.
	Waiting int
	// Deleted tells that the pool's spec is gone while its slots are held.
	Deleted bool
	// Revision at which this was read, and SpecRevision of the spec.
	Revision, SpecRevision int64
	// LimitSince is the revision since which the limit holds.
	LimitSince int64
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

// WaiterStatus is one claim that waits in line.
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
	}
	for _, key := range sortedKeys(v.corrupt) {
		if k, err := v.keys.ParsePoolKey(key); err == nil && k.Pool == p.name {
			s.Problem = v.corrupt[key].Error()
			break
		}
	}
	return s
}

// exists tells whether there is anything to show of a pool.
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

// holders returns who holds slots of a pool, first come first.
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

// waiters returns who waits, in line; with a pool, only for that one.
func (c *core) waiters(p *poolView) []WaiterStatus {
	var all []WaiterStatus
	for _, cd := range c.candidates() {
		w := cd.status(c.view)
		if p != nil {
			n, ok := w.Pools[p.name]
			if !ok {
				continue
			}
			w.Slots = n
		}
		w.Position = len(all) + 1
		all = append(all, w)
	}
	return all
}
