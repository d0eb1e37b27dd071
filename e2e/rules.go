package e2e

import (
	"maps"
	"slices"
)

// check judges what the revision at hand has touched, now that it is whole.
func (h *History) check() {
	for name := range h.grown {
		h.checkCapacity(name)
	}
	for _, id := range slices.Sorted(maps.Keys(h.claims)) {
		h.checkClaim(id)
	}
	for order := range h.lined {
		h.checkLines(order)
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
	var main *claimRecord
	for _, s := range keys {
		if s.main != nil {
			if main != nil {
				h.violate(Whole, "claim %s has two main keys", id)
			}
			main = s.main
		}
	}
	old := h.holding[id]
	if len(keys) == 0 {
		if old != nil {
			old.To = h.rev
			delete(h.holding, id)
		}
		return
	}
	if main == nil {
		h.violate(Whole, "claim %s has %d keys and no main key", id, len(keys))
		return
	}
	h.checkKeys(id, main, keys)
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
func (h *History) hold(id string, main *claimRecord, keys map[string]*slot) {
	var rev, lease int64
	for _, s := range keys {
		rev, lease = max(rev, s.rev), s.lease
	}
	old := h.holding[id]
	if old != nil && old.From == rev {
		return
	}
	if old != nil {
		old.To = h.rev // its keys were put again
	}
	n := &Hold{
		Claim: id, Host: main.Holder.Host, Instance: main.Holder.Instance,
		Pools: main.Pools, Lease: lease, From: rev,
	}
	h.holding[id] = n
	h.holds = append(h.holds, n)
	if old == nil {
		h.queue.begun = append(h.queue.begun, n)
	}
}

func (h *History) checkLines(order string) {
	w := h.waiters[order]
	if w == nil {
		return
	}
	if len(w.lines) == 0 {
		w.wait.To = h.rev
		delete(h.waiters, order)
		h.queue.remove(w)
		return
	}
	for name := range w.value.Pools {
		if !w.lines[name] {
			h.violate(Queued, "claim %s waits in %d of %d lines", w.wait.Claim, len(w.lines), len(w.value.Pools))
			return
		}
	}
	if len(w.lines) != len(w.value.Pools) {
		h.violate(Queued, "claim %s waits in a line of a pool that it does not want", w.wait.Claim)
	}
}
