package e2e

import (
	"maps"
	"slices"

	"github.com/berthhq/berth/internal/store"
)

// check judges what the revision at hand has touched, now that it is whole.
func (h *History) check() {
	for _, two := range h.shared {
		if h.there(two[0]) && h.there(two[1]) {
			h.violate(Capacity, "claims %s and %s hold a number of pool %s together", two[0].claim, two[1].claim, two[0].pool)
			break
		}
	}
	for name := range h.grown {
		h.checkCapacity(name)
	}
	for _, s := range h.fresh {
		h.checkNumbers(s)
	}
	for _, id := range slices.Sorted(maps.Keys(h.claims)) {
		h.checkClaim(id)
	}
	h.checkDemands()
}

// there reports whether a slot exists.
func (h *History) there(s *slot) bool {
	for _, x := range h.byClaim[s.claim] {
		if x == s {
			return true
		}
	}
	return false
}

// checkNumbers checks that a slot that a claim takes has numbers below the limit of the pool.
func (h *History) checkNumbers(s *slot) {
	p := h.pool(s.pool)
	if !p.known || p.limit == Unlimited || !h.there(s) {
		return
	}
	if s.value.Count > 0 {
		h.violate(Capacity, "claim %s takes %d slots without numbers of pool %s, which has a limit", s.claim, s.n, s.pool)
	}
	for _, r := range s.value.Runs {
		if r[1] > p.limit {
			h.violate(Capacity, "claim %s takes number %d of pool %s, whose limit is %d", s.claim, r[1]-1, s.pool, p.limit)
		}
	}
}

func (h *History) checkCapacity(name string) {
	p := h.pool(name)
	switch {
	case !p.known:
		h.violate(Capacity, "pool %s got a holder and does not exist", name)
	case p.paused:
		h.violate(Capacity, "pool %s got a holder and is paused", name)
	case p.limit != Unlimited && p.used > p.limit:
		h.violate(Capacity, "pool %s got a holder and holds %d slots of %d", name, p.used, p.limit)
	}
	p.peaks[p.limit] = max(p.peaks[p.limit], p.used)
}

// checkClaim checks all keys of a claim, and keeps its [Hold].
func (h *History) checkClaim(id string) {
	keys := h.keysOf(id)
	old := h.holding[id]
	if len(keys) == 0 {
		if old != nil {
			old.To = h.rev
			delete(h.holding, id)
		}
		return
	}
	var main *slot
	for _, s := range keys {
		if s.value.Record == nil {
			continue
		}
		if main != nil {
			h.violate(Whole, "claim %s has two main keys", id)
		}
		main = s
	}
	if main == nil {
		h.violate(Whole, "claim %s has %d keys and no main key", id, len(keys))
		return
	}
	h.checkKeys(id, main.value.Record, keys)
	h.hold(id, main, keys)
}

func (h *History) checkKeys(id string, main *claimRecord, keys map[string]*slot) {
	var rev, lease int64
	sum := map[string]int{}
	for key, s := range keys {
		if rev != 0 && (s.rev != rev || s.lease != lease) {
			h.violate(Whole, "claim %s is torn at %s: its keys differ in revision or lease", id, key)
		}
		rev, lease = s.rev, s.lease
		sum[s.pool] += s.n
		if s.value.Main == "" {
			continue
		}
		if of, err := keyOf(h.keys, s.value.Main); err != nil || keys[of] == nil || keys[of].value.Record == nil {
			h.violate(Whole, "claim %s names %s as its main key, and that is none", id, s.value.Main)
		}
	}
	if !maps.Equal(sum, main.Pools) {
		h.violate(Whole, "claim %s claimed %v and holds %v", id, main.Pools, sum)
	}
	if len(main.Keys) == 0 && len(keys) != 1 || len(main.Keys) > 0 && len(main.Keys) != len(keys) {
		h.violate(Whole, "claim %s lists %d keys and has %d", id, len(main.Keys), len(keys))
	}
	for _, listed := range main.Keys {
		key, err := keyOf(h.keys, listed)
		if err != nil || keys[key] == nil {
			h.violate(Whole, "claim %s lists %s and does not have it", id, listed)
		}
	}
}

// hold begins a hold where a claim has new keys.
func (h *History) hold(id string, main *slot, keys map[string]*slot) {
	record := main.value.Record
	n := &Hold{
		Claim: id, Host: record.Holder.Host, Instance: record.Holder.Instance,
		Pools: record.Pools, Lease: main.lease, From: main.rev, Fence: record.Fence,
	}
	if n.Fence == 0 {
		n.Fence = store.FenceAt(n.From)
	}
	old := h.holding[id]
	if old != nil && old.From == n.From {
		return
	}
	if old != nil {
		old.To = h.rev // its keys were put again
	}
	h.checkFence(n, old, keys)
	h.holding[id] = n
	h.holds = append(h.holds, n)
	if d := main.value.Demand; d != nil {
		if w := h.demands.waiterOf(instanceID{n.Host, n.Instance}, *d); w != nil {
			w.served = true
		}
	}
	if old == nil {
		h.queue.begin(n)
	}
}

// checkFence checks that the fencing token of a claim is above those of all that have held its numbers before, and that it does
// not become less when the keys are put again.
func (h *History) checkFence(x, old *Hold, keys map[string]*slot) {
	if old != nil && x.Fence < old.Fence {
		h.violate(Fence, "claim %s has fence %d after %d", x.Claim, x.Fence, old.Fence)
	}
	for _, s := range keys {
		p := h.pool(s.pool)
		for _, r := range s.value.Runs {
			for n := r[0]; n < r[1]; n++ {
				if last := p.numbers[n].fence; old == nil && x.Fence <= last && last != store.FenceAt(h.rev) {
					h.violate(Fence, "claim %s has fence %d, and number %d of pool %s had %d", x.Claim, x.Fence, n, s.pool, last)
					return
				}
				p.numbers[n].fence = max(p.numbers[n].fence, x.Fence)
			}
		}
	}
}
