package e2e

import (
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// Unlimited is the limit of a pool that counts its holders and refuses none.
const Unlimited = -1

// Hold is one claim as its keys showed it.
type Hold struct {
	Claim, Host, Instance string
	Pools                 map[string]int
	Lease                 int64
	// Fence is the fencing token of its holder.
	Fence store.Fence
	// From is the revision that put its keys; To the one
	// that ended them, 0 while they are there.
	From, To int64
}

// Wait is one claim's stay in the wait queue, from its first demand on.
type Wait struct {
	Claim, Host string
	// From is the revision that put it, Reserved the one from which its slots were
	// kept, To the one that took it out; 0 where there was none.
	From, Reserved, To int64
}

// slot is one slot key or block that exists.
type slot struct {
	pool  string
	value slotValue
	n     int
	claim string
	rev   int64
	lease int64
}

// numberState is who holds a number of a pool, and the last fencing token that it had.
type numberState struct {
	by    *slot
	fence store.Fence
}

// poolState is what the watch has delivered of one pool.
type poolState struct {
	known, paused bool
	limit         int
	used          int
	peaks         map[int]int // the most that was used when a holder was added, by limit
	numbers       []numberState
	deleted       int64 // the revision at which it was
}

// History judges what a watch on all keys tells: events in, violations out. It
// does no I/O. What it keeps grows with every claim. It is for one goroutine.
type History struct {
	keys       store.Keys
	rev        int64
	pools      map[string]*poolState
	slots      map[string]*slot
	byClaim    map[string]map[string]*slot // the same, by claim and key
	revisions  map[string]int64            // the last one of each slot key, gone or not
	holding    map[string]*Hold
	holds      []*Hold
	leaseKeys  map[int64]int
	mostKeys   int
	ignored    map[string]bool
	violations []Violation
	// orphaned is the revision up to which claims were made in a cluster that another one has
	// replaced: see [History.Replaced].
	orphaned int64

	demands demandsSeen
	queue   queueState
	idle    idleState

	// What the revision at hand has touched.
	claims, grown map[string]bool
	fresh         []*slot    // new to their claims
	shared        [][2]*slot // that have a number in common
}

// NewHistory returns a history of the keys that is empty, as before the first
// revision.
func NewHistory(keys store.Keys) *History {
	h := &History{
		keys: keys, pools: map[string]*poolState{}, slots: map[string]*slot{},
		byClaim: map[string]map[string]*slot{}, revisions: map[string]int64{},
		holding: map[string]*Hold{}, leaseKeys: map[int64]int{}, ignored: map[string]bool{},
		demands: newDemandsSeen(), idle: idleState{pools: map[string]*idling{}},
	}
	h.queue = newQueueState(&h.demands)
	return h
}

// Ignore finds nothing wrong with a key that a test has put there itself. A spec
// that can't be read is none all the same.
func (h *History) Ignore(key string) { h.ignored[key] = true }

// Apply takes events in the order of the watch. The events of one revision must
// come in one call.
func (h *History) Apply(events ...*mvccpb.Event) {
	for len(events) > 0 {
		rev := events[0].Kv.ModRevision
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == rev {
			n++
		}
		h.revision(rev, events[:n])
		events = events[n:]
	}
}

// revision takes all events of one revision, then checks what they touched.
func (h *History) revision(rev int64, events []*mvccpb.Event) {
	if rev <= h.rev {
		h.violate(Ordered, "it came after revision %d", h.rev)
	}
	h.rev = rev
	h.beginRevision()
	for _, ev := range events {
		h.event(ev)
	}
	h.check()
	h.checkQueues()
}

// beginRevision forgets what the one before has touched.
func (h *History) beginRevision() {
	h.claims, h.grown, h.fresh, h.shared = map[string]bool{}, map[string]bool{}, nil, nil
	h.demands.beginRevision()
	h.queue.beginRevision()
}

func (h *History) event(ev *mvccpb.Event) {
	key, put := string(ev.Kv.Key), ev.Type == mvccpb.Event_PUT
	k, ok, err := parseKey(h.keys, key)
	if h.ignored[key] {
		if k.Kind == specKey {
			_ = h.spec(h.pool(k.Pool), put, ev.Kv)
		}
		return
	}
	if err == nil && ok {
		err = h.judged(k, put, ev.Kv)
	}
	if err != nil {
		h.violate(Readable, "%s: %v", key, err)
	}
	switch k.Kind {
	case slotKey, blockKey, demandsKey, idKey:
		if put && ev.Kv.Lease == 0 {
			h.violate(Leased, "%s hangs on no lease", key)
		}
	}
}

// judged takes an event of a key that is judged.
func (h *History) judged(k berthKey, put bool, kv *mvccpb.KeyValue) error {
	switch k.Kind {
	case specKey:
		return h.spec(h.pool(k.Pool), put, kv)
	case slotKey, blockKey:
		old := h.removeSlot(string(kv.Key))
		if put {
			return h.putSlot(k, kv, old)
		}
		return nil
	case demandsKey:
		return h.demands.event(k, put, kv)
	}
	return h.queue.event(k, put, kv)
}

func (h *History) pool(name string) *poolState {
	p := h.pools[name]
	if p == nil {
		p = &poolState{peaks: map[int]int{}}
		h.pools[name] = p
	}
	return p
}

func (h *History) spec(p *poolState, put bool, kv *mvccpb.KeyValue) error {
	p.known = false
	if !put {
		p.deleted = kv.ModRevision
		return nil
	}
	v, err := readSpec(kv.Value)
	if err == nil {
		p.known, p.paused, p.limit = true, v.Paused, *v.Limit
	}
	return err
}

// removeSlot takes a slot out and returns it, nil if there is none.
func (h *History) removeSlot(key string) *slot {
	s := h.slots[key]
	if s == nil {
		return nil
	}
	delete(h.slots, key)
	if keys := h.byClaim[s.claim]; len(keys) == 1 {
		delete(h.byClaim, s.claim)
	} else {
		delete(keys, key)
	}
	p := h.pools[s.pool]
	p.used -= s.n
	for _, r := range s.value.Runs {
		for n := r[0]; n < r[1]; n++ {
			if p.numbers[n].by == s {
				p.numbers[n].by = nil
			}
		}
	}
	h.queue.end(s)
	h.leaseKeys[s.lease]--
	h.claims[s.claim] = true
	return s
}

// putSlot takes a slot that was put in place of an old one, if there was one. A claim that puts
// its own again adds nothing to the pool.
func (h *History) putSlot(k berthKey, kv *mvccpb.KeyValue, old *slot) error {
	key := string(kv.Key)
	if last := h.revisions[key]; kv.ModRevision <= last {
		h.violate(Fence, "%s was put at revision %d after %d", key, kv.ModRevision, last)
	}
	h.revisions[key] = kv.ModRevision
	v, err := readSlot(k, kv.Value)
	if err != nil {
		return err
	}
	s := &slot{pool: k.Pool, value: v, n: v.n(), claim: v.Claim, rev: kv.ModRevision, lease: kv.Lease}
	h.slots[key] = s
	if h.byClaim[s.claim] == nil {
		h.byClaim[s.claim] = map[string]*slot{}
	}
	h.byClaim[s.claim][key] = s
	h.hasNumbers(s)
	h.leaseKeys[kv.Lease]++
	h.mostKeys = max(h.mostKeys, h.leaseKeys[kv.Lease])
	h.claims[v.Claim] = true
	if old == nil || old.claim != s.claim || old.n < s.n {
		h.grown[k.Pool], h.fresh = true, append(h.fresh, s)
	}
	return nil
}

// hasNumbers records what a slot holds of its pool.
func (h *History) hasNumbers(s *slot) {
	p := h.pool(s.pool)
	p.used += s.n
	for _, r := range s.value.Runs {
		if more := r[1] - len(p.numbers); more > 0 {
			p.numbers = append(p.numbers, make([]numberState, more)...)
		}
		for n := r[0]; n < r[1]; n++ {
			if x := p.numbers[n].by; x != nil {
				h.shared = append(h.shared, [2]*slot{x, s})
			}
			p.numbers[n].by = s
		}
	}
}

// Granted judges what a holder was granted.
func (h *History) Granted(claim string, fence store.Fence, slots map[string]int) {
	for _, x := range h.holds {
		if x.Claim == claim && x.Fence == fence {
			if !maps.Equal(x.Pools, slots) {
				h.violate(Whole, "claim %s was granted %v, and has %v", claim, slots, x.Pools)
			}
			return
		}
	}
	h.violate(Fence, "claim %s was granted fence %d, and no revision shows it", claim, fence)
}

func (h *History) violate(r Rule, format string, args ...any) {
	h.violations = append(h.violations, Violation{Revision: h.rev, Rule: r, Text: fmt.Sprintf(format, args...)})
}

// Violations returns what was broken, in order.
func (h *History) Violations() []Violation { return slices.Clone(h.violations) }

// Revision is the last one that touched a key.
func (h *History) Revision() int64 { return h.rev }
