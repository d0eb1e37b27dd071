package e2e

import (
	"maps"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// slotsSeen is who holds slots and which executors are seen, as a [RunHistory] needs
// to know it.
type slotsSeen struct {
	keys store.Keys
	by   map[string]slot // by key
	// active are the ids of runs whose executors are seen to live.
	active  map[string]bool
	changed bool // something of it has, at the revision at hand
}

func newSlotsSeen(keys store.Keys) *slotsSeen {
	return &slotsSeen{keys: keys, by: map[string]slot{}, active: map[string]bool{}}
}

// event takes one event, in order.
func (s *slotsSeen) event(ev *mvccpb.Event) error {
	key, put := string(ev.Kv.Key), ev.Type == mvccpb.Event_PUT
	if rest, ok := strings.CutPrefix(key, s.keys.ActiveAll()); ok {
		_, id, _ := strings.Cut(rest, "/")
		s.active[id], s.changed = put, true
		return nil
	}
	if strings.HasPrefix(key, s.keys.Runs()) {
		s.changed = true
		return nil
	}
	k, _, err := parseKey(s.keys, key)
	if err != nil || !k.isSlots() {
		return nil // of no concern here
	}
	delete(s.by, key)
	s.changed = true
	if !put {
		return nil
	}
	v, err := readSlot(k, ev.Kv.Value)
	s.by[key] = slot{pool: k.Pool, n: v.n(), claim: v.Claim}
	return err
}

// of is what a claim holds, by pool.
func (s *slotsSeen) of(claim string) map[string]int {
	held := map[string]int{}
	for _, slot := range s.by {
		if slot.claim == claim {
			held[slot.pool] += slot.n
		}
	}
	return held
}

// checkSlots holds what runs hold against what they need.
func (h *RunHistory) checkSlots() {
	if !h.slots.changed {
		return
	}
	h.slots.changed = false
	for id, r := range h.runs {
		if len(r.Pools) == 0 || !r.inProgress() || r.Status == "running" && !h.slots.active[id] {
			continue
		}
		if held := h.slots.of(r.Claim); !maps.Equal(held, r.Pools) {
			h.violate(RunSlots, "%s is %s, needs %v, and holds %v under %q", id, r.Status, r.Pools, held, r.Claim)
		}
	}
}
