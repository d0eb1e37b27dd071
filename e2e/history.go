package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"

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
	// From is the revision that put its keys; To the one
	// that ended them, 0 while they are there.
	From, To int64
}

// Wait is one claim's stay in the wait queue.
type Wait struct {
	Claim, Host string
	// Order is its place: the last part of its keys.
	Order string
	// From is the revision that put it, Reserved the one from which its slots were
	// kept, To the one that took it out; 0 where there was none.
	From, Reserved, To int64
}

// slot is one slot key that exists.
type slot struct {
	pool  string
	n     int
	claim string
	main  *claimRecord // in the main key of a claim
	rev   int64
	lease int64
}

// poolState is what the watch has delivered of one pool.
type poolState struct {
	known, paused bool
	limit         int
	used          int
	peaks         map[int]int // the most that was used when a holder was added, by limit
}

// waiter is one waiter's keys that exist.
type waiter struct {
	value waiterValue
	lines map[string]bool // pools in whose lines it stands
	rev   int64           // that put it last
	wait  *Wait
}

// History judges what a watch on all keys tells: events in, violations out. It
// does no I/O. What it keeps grows with every claim. It is for one goroutine.
type History struct {
	keys       store.Keys
	rev        int64
	pools      map[string]*poolState
	slots      map[string]*slot
	byClaim    map[string]map[string]*slot // the same, by claim and key
	fences     map[string]int64            // the last one of each slot key, gone or not
	waiters    map[string]*waiter
	holding    map[string]*Hold
	holds      []*Hold
	waits      []*Wait
	leaseKeys  map[int64]int
	mostKeys   int
	ignored    map[string]bool
	violations []Violation
	// orphaned is the revision up to which claims were made in a cluster that another one has
	// replaced: see [History.Replaced].
	orphaned int64

	queue queueState

	// What the revision at hand has touched.
	claims, grown, lined map[string]bool
}

// NewHistory returns a history of the keys that is empty, as before the first
// revision.
func NewHistory(keys store.Keys) *History {
	return &History{
		keys: keys, pools: map[string]*poolState{}, slots: map[string]*slot{},
		byClaim: map[string]map[string]*slot{}, fences: map[string]int64{},
		waiters: map[string]*waiter{}, holding: map[string]*Hold{}, leaseKeys: map[int64]int{},
		ignored: map[string]bool{}, queue: newQueueState(),
	}
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
	h.claims, h.grown, h.lined = map[string]bool{}, map[string]bool{}, map[string]bool{}
	h.queue.beginRevision()
	for _, ev := range events {
		h.event(ev)
	}
	h.check()
	h.checkQueues()
}

func (h *History) event(ev *mvccpb.Event) {
	key, put := string(ev.Kv.Key), ev.Type == mvccpb.Event_PUT
	switch {
	case strings.HasPrefix(key, h.keys.LeasesAll()):
		h.lease(key, put)
		return
	case strings.HasPrefix(key, h.keys.RevocationsAll()):
		h.queue.revoked = h.queue.revoked || put
		return
	case !strings.HasPrefix(key, h.keys.Pools()):
		return // hosts, guards: none of a judge's business
	}
	k, err := parsePoolKey(h.keys, key)
	if h.ignored[key] {
		if k.Kind == specKey {
			_ = h.spec(h.pool(k.Pool), put, ev.Kv.Value)
		}
		return
	}
	if err != nil {
		h.violate(Readable, "%v", err)
		return
	}
	switch k.Kind {
	case specKey:
		err = h.spec(h.pool(k.Pool), put, ev.Kv.Value)
	case slotKey:
		old := h.removeSlot(key)
		if put {
			err = h.putSlot(k.Pool, ev.Kv, old)
		} else {
			h.queue.ended = append(h.queue.ended, key)
		}
	case waiterKey:
		err = h.waiter(k, put, ev.Kv)
	default:
		err = h.queueKey(k, put, ev.Kv)
	}
	if err != nil {
		h.violate(Readable, "%s: %v", key, err)
	}
	if put && k.Kind != specKey && k.Kind != queuedKey && ev.Kv.Lease == 0 {
		h.violate(Leased, "%s hangs on no lease", key)
	}
}

func (h *History) pool(name string) *poolState {
	p := h.pools[name]
	if p == nil {
		p = &poolState{peaks: map[int]int{}}
		h.pools[name] = p
	}
	return p
}

func (h *History) spec(p *poolState, put bool, value []byte) error {
	p.known = false
	if !put {
		return nil
	}
	v, err := readSpec(value)
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
	h.pools[s.pool].used -= s.n
	h.leaseKeys[s.lease]--
	h.claims[s.claim] = true
	return s
}

// putSlot takes a slot that was put in place of an old one, if there was one. A claim that puts
// its own again, to confirm its grant, adds nothing to the pool.
func (h *History) putSlot(name string, kv *mvccpb.KeyValue, old *slot) error {
	key := string(kv.Key)
	if last := h.fences[key]; kv.ModRevision <= last {
		h.violate(Fence, "%s has fence %d after %d", key, kv.ModRevision, last)
	}
	h.fences[key] = kv.ModRevision
	v, err := readSlot(kv.Value)
	if err != nil {
		return err
	}
	s := &slot{
		pool: name, n: v.N, claim: v.Claim, main: v.Record, rev: kv.ModRevision, lease: kv.Lease,
	}
	h.slots[key] = s
	if h.byClaim[s.claim] == nil {
		h.byClaim[s.claim] = map[string]*slot{}
	}
	h.byClaim[s.claim][key] = s
	h.pool(name).used += v.N
	h.leaseKeys[kv.Lease]++
	h.mostKeys = max(h.mostKeys, h.leaseKeys[kv.Lease])
	h.claims[v.Claim] = true
	if old == nil || old.claim != s.claim || old.n < s.n {
		h.grown[name] = true
	}
	return nil
}

func (h *History) waiter(k poolKey, put bool, kv *mvccpb.KeyValue) error {
	claim, err := claimOf(k.Order)
	if err != nil {
		return err
	}
	w := h.waiters[k.Order]
	h.lined[k.Order] = true
	if !put {
		if w != nil {
			delete(w.lines, k.Pool)
		}
		return nil
	}
	v, err := readWaiter(kv.Value)
	if err != nil {
		return err
	}
	if w == nil {
		w = &waiter{lines: map[string]bool{}}
		w.wait = &Wait{Claim: claim, Host: v.Holder.Host, Order: k.Order, From: kv.ModRevision}
		h.waiters[k.Order] = w
		h.waits = append(h.waits, w.wait)
		h.queue.insert(w)
	}
	w.value, w.rev = v, kv.ModRevision
	w.lines[k.Pool] = true
	if v.Reserve && w.wait.Reserved == 0 {
		w.wait.Reserved = kv.ModRevision
	}
	return nil
}

// Granted judges what a holder was granted.
func (h *History) Granted(claim string, fence store.Fence, slots map[string]int) {
	for _, x := range h.holds {
		if x.Claim == claim && store.FenceAt(x.From) == fence {
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
