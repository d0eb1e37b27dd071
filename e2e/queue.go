package e2e

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// While claims wait for a pool, one instance is its dispatcher and grants them. This file
// judges the order of its grants, and for how long it grants nothing to a waiter that fits.
// What an instance can't know, or may skip, is not judged: see [History.knew] and
// [History.excused].

// The bounds by which a dispatcher passes the waiters of an instance that does not
// acknowledge its grants. They are wider than the dispatcher's own on both sides, so that
// what is judged is certain.
const (
	// fewNotices of an instance do not keep it from further grants.
	fewNotices = 2
	// soonAcknowledged is how old a notice may be whose instance is certainly not passed,
	// and lateAcknowledged from when on it certainly is.
	soonAcknowledged, lateAcknowledged = 1500 * time.Millisecond, 3 * time.Second
	// noticedLease is from when on a dispatcher certainly skips a waiter whose lease has ended.
	noticedLease = time.Second
	// deaf is how long a history may receive nothing before it does not judge time.
	deaf = time.Second
	// shortestGap is the shortest gap that is kept.
	shortestGap = 100 * time.Millisecond
	// keptNotices is how many acknowledged notices of an instance are kept.
	keptNotices = 64
)

// Dispatcher is the value of the key of a pool's dispatcher.
type Dispatcher struct {
	V        int    `json:"v"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
}

// ReadDispatcher reads the value of a dispatcher's key.
func ReadDispatcher(value []byte) (Dispatcher, error) {
	return read(value, func(d *Dispatcher) int { return d.V })
}

// noticeValue is what is read of the value of a notice.
type noticeValue struct {
	V     int       `json:"v"`
	Since time.Time `json:"since"`
}

// dispatch is what the history knows of a pool's dispatcher.
type dispatch struct {
	by     instanceID // zero if there is none
	was    instanceID // who was it before
	from   int64      // the revision from which on it is, or is none
	known  int64      // a revision up to which it certainly knows the pool
	queued int64      // the revision from which on claims wait; 0 if none do
	// taken is the last revision at which another instance granted slots of the pool. Of a batch
	// that the dispatcher planned before, only the grants that wanted those slots have failed.
	taken int64
	// dispatched: there was one, so that no other instance grants waiters.
	dispatched bool
	idle       time.Time // since then a waiter fits and none was granted; zero if none fits
	stuck      string    // the first one that fits
}

// notice is a grant that an instance was notified of.
type notice struct {
	// grantedAt is when its dispatcher granted the claim, and putAt when the history received
	// that, which may be late.
	grantedAt, putAt time.Time
	pool             string
	gone             int64 // the revision that acknowledged it; 0 until then
	goneAt           time.Time
}

// instanceNotices are those of one instance.
type instanceNotices struct {
	open  map[string]*notice // by key
	done  []*notice
	since int64 // older ones were forgotten
}

// slotLife is the last use of a slot key that a dispatcher has granted by a notice.
type slotLife struct {
	by, from instanceID // who used it, and which dispatcher granted it
	claim    string
	gone     int64 // the revision that ended it
}

// queueState is what the history keeps to judge wait queues.
type queueState struct {
	now        func() time.Time
	received   time.Time
	dispatches map[string]*dispatch
	notices    map[instanceID]*instanceNotices
	leases     map[string]bool // keys that exist
	leaseEnds  map[string]time.Time
	granted    map[string]slotLife // slots that a dispatcher granted by notice, with their holders
	freed      map[string]slotLife // the same after their end
	line       []*waiter           // in order
	gaps       []Gap

	// What the revision at hand has touched.
	left                  []*waiter // waiters that it took out
	begun                 []*Hold
	noticed, acknowledged map[string]bool // claims whose notice it put, or deleted
	ended                 []string        // slots that it deleted
	revoked               bool            // it revoked a claim
}

func newQueueState() queueState {
	q := queueState{
		now: time.Now, dispatches: map[string]*dispatch{}, notices: map[instanceID]*instanceNotices{},
		leases: map[string]bool{}, leaseEnds: map[string]time.Time{}, granted: map[string]slotLife{}, freed: map[string]slotLife{},
	}
	q.beginRevision()
	return q
}

func (h *History) dispatch(pool string) *dispatch {
	d := h.queue.dispatches[pool]
	if d == nil {
		d = &dispatch{}
		h.queue.dispatches[pool] = d
	}
	return d
}

// queueKey takes an event of a wait queue that is no waiter's.
func (h *History) queueKey(k poolKey, put bool, kv *mvccpb.KeyValue) error {
	switch k.Kind {
	case dispatcherKey:
		return h.dispatcher(h.dispatch(k.Pool), put, kv)
	case noticeKey:
		return h.notice(k, put, kv)
	}
	d := h.dispatch(k.Pool)
	if !put {
		d.queued = 0
		return nil
	}
	if d.queued == 0 {
		d.queued = kv.ModRevision
	}
	return version(kv.Value)
}

// version refuses a value of another version than 1.
func version(value []byte) error {
	_, err := read(value, func(v *struct{ V int }) int { return v.V })
	return err
}

func (h *History) dispatcher(d *dispatch, put bool, kv *mvccpb.KeyValue) error {
	by := instanceID{}
	if put {
		v, err := ReadDispatcher(kv.Value)
		if err != nil {
			return err
		}
		by = instanceID{v.Host, v.Instance}
		d.dispatched = true
	}
	if by != d.by {
		d.was, d.by, d.from, d.known = d.by, by, kv.ModRevision, 0
	}
	return nil
}

func (h *History) notice(k poolKey, put bool, kv *mvccpb.KeyValue) error {
	of, claim := instanceID{k.Host, k.Instance}, k.Claim
	all := h.queue.notices[of]
	if all == nil {
		all = &instanceNotices{open: map[string]*notice{}}
		h.queue.notices[of] = all
	}
	key := string(kv.Key)
	if old := all.open[key]; old != nil {
		old.gone, old.goneAt = kv.ModRevision, h.queue.now()
		all.done = append(all.done, old)
		delete(all.open, key)
		h.queue.acknowledged[claim] = true
		if len(all.done) > keptNotices {
			all.since, all.done = all.done[0].gone, all.done[1:]
		}
	}
	if !put {
		return nil
	}
	v, err := read(kv.Value, func(v *noticeValue) int { return v.V })
	if err != nil {
		return err
	}
	n := &notice{pool: k.Pool, putAt: h.queue.now(), grantedAt: v.Since}
	if v.Since.IsZero() || v.Since.After(n.putAt) {
		n.grantedAt = n.putAt
	}
	all.open[key] = n
	h.queue.noticed[claim] = true
	return nil
}

// lease takes an event of a key that is attached to a lease of a host.
func (h *History) lease(key string, put bool) {
	if put {
		h.queue.leases[key] = true
		return
	}
	if h.queue.leases[key] {
		delete(h.queue.leases, key)
		h.queue.leaseEnds[key] = h.queue.now()
	}
}

// leaseOf is the key of the lease that a waiter's slots are to be put on; "" if it names none.
func (h *History) leaseOf(w *waiter) string {
	if w.value.Lease == 0 {
		return ""
	}
	return h.keys.Lease(w.value.Holder.Host, store.LeaseID(w.value.Lease))
}

// checkQueues judges the grants of a revision, and notes which pools have a waiter that fits.
func (h *History) checkQueues() {
	q := &h.queue
	moved := map[string]bool{}
	for _, x := range q.begun {
		at := slices.IndexFunc(q.left, func(w *waiter) bool {
			return w.wait.Claim == x.Claim && w.value.Holder.id() == instanceID{x.Host, x.Instance}
		})
		if at < 0 {
			h.checkOrder(x, nil)
			continue
		}
		moved[lowest(x.Pools)] = true
		h.checkOrder(x, q.left[at])
	}
	h.noteUse()
	h.noteIdle(moved)
}

// beginRevision forgets what the one before has touched.
func (q *queueState) beginRevision() {
	q.left, q.begun, q.ended, q.revoked = nil, nil, nil, false
	q.noticed, q.acknowledged = map[string]bool{}, map[string]bool{}
}

// checkOrder judges whether a claim was granted in its turn. Got is its waiter, nil if it has
// no waiter in etcd.
func (h *History) checkOrder(x *Hold, got *waiter) {
	pool := lowest(x.Pools)
	d, owner := h.dispatch(pool), instanceID{x.Host, x.Instance}
	noticed := h.queue.noticed[x.Claim]
	switch {
	case !noticed && owner != d.by && (owner != d.was || d.from != h.rev):
		h.checkDirect(x)
		return
	case d.by == (instanceID{}) || d.from == h.rev:
		return // it ceases to dispatch along with the grant
	case got == nil:
		return // it alone knows the place
	}
	if noticed {
		d.known = max(d.known, got.rev)
	}
	for key := range h.byClaim[x.Claim] {
		if f, ok := h.queue.freed[key]; ok && f.by != d.by && f.from == d.by && h.slots[key].pool == pool {
			d.known = max(d.known, f.gone)
		}
	}
	for _, w := range h.queue.line {
		if w.wait.Order >= got.wait.Order {
			return
		}
		if h.knew(d, w) && !h.excused(w, pool, d.known) && covers(x.Pools, w.value.Pools) && lowest(w.value.Pools) == pool &&
			h.dispatchedBy(d.by, w) && !h.takenSince(w, d.known) && h.possible(w) && !h.fits(h.free(), w) {
			h.violate(Order, "claim %s of %s/%s was granted %v, and %s of %s/%s waits for %v before it since revision %d",
				x.Claim, x.Host, x.Instance, x.Pools, w.wait.Claim, w.value.Holder.Host, w.value.Holder.Instance, w.value.Pools, w.wait.From)
			return
		}
	}
}

// checkDirect judges a claim that its own instance was granted without being the dispatcher:
// for none of its pools may a claim have waited before.
func (h *History) checkDirect(x *Hold) {
	for name := range x.Pools {
		if d := h.dispatch(name); d.queued > 0 && d.queued < h.rev {
			h.violate(Order, "claim %s of %s/%s was granted %v by its own instance, and claims wait for %s since revision %d",
				x.Claim, x.Host, x.Instance, x.Pools, name, d.queued)
			return
		}
	}
}

// knew reports whether a dispatcher certainly knows a waiter as it is. What it knows of the
// waiters of its own instance is not in etcd: they may be about to leave.
func (h *History) knew(d *dispatch, w *waiter) bool {
	return w.rev < d.known && w.value.Holder.id() != d.by
}

// excused reports whether a dispatcher that knows a pool up to a revision may skip a waiter. What it
// knows of other pools is older: it also knows its own pool from the answers to what it has written.
// An empty pool means that it knows all of them.
func (h *History) excused(w *waiter, pool string, known int64) bool {
	if w.value.Sole || w.value.Holder.Step != "" {
		return true // its owner may have no place for it
	}
	if key := h.leaseOf(w); key != "" && !h.queue.leases[key] {
		return true
	}
	all := h.queue.notices[w.value.Holder.id()]
	if all == nil {
		return false
	}
	if all.since >= known {
		return true
	}
	n, now := 0, h.queue.now()
	for key, x := range all.open {
		n++
		if now.Sub(x.grantedAt) > soonAcknowledged || strings.HasSuffix(key, "/"+w.wait.Claim) {
			return true // or it was granted, and its owner has put the waiter again without knowing that
		}
	}
	for _, x := range all.done {
		elsewhere := pool != "" && x.pool != pool && now.Sub(x.goneAt) < soonAcknowledged
		if x.gone >= known || elsewhere { // the dispatcher may not have seen that
			n++
			if now.Sub(x.grantedAt) > soonAcknowledged {
				return true
			}
		}
	}
	return n > fewNotices
}

// dispatchedBy reports whether one instance dispatches all pools of a waiter, and has seen what
// others have granted before.
func (h *History) dispatchedBy(by instanceID, w *waiter) bool {
	for name := range w.value.Pools {
		if d := h.dispatch(name); d.by != by || d.queued == 0 || d.known <= max(d.from, d.queued) {
			return false
		}
	}
	return true
}

// takenSince reports whether other instances than the dispatcher have granted slots of a waiter's
// pools after a revision.
func (h *History) takenSince(w *waiter, rev int64) bool {
	for name := range w.value.Pools {
		if h.dispatch(name).taken > rev {
			return true
		}
	}
	return false
}

// possible reports whether a waiter could be granted if nothing else were held.
func (h *History) possible(w *waiter) bool {
	for name, n := range w.value.Pools {
		if p := h.pool(name); !p.known || p.paused || p.limit != Unlimited && n > p.limit {
			return false
		}
	}
	return true
}

// free returns the free slots of all pools.
func (h *History) free() map[string]int {
	all := map[string]int{}
	for name, p := range h.pools {
		if all[name] = p.limit - p.used; p.limit == Unlimited {
			all[name] = math.MaxInt
		}
	}
	return all
}

func (h *History) fits(free map[string]int, w *waiter) bool {
	for name, n := range w.value.Pools {
		if free[name] < n {
			return false
		}
	}
	return true
}

// noteUse records the holder of each slot, and when it ended. A dispatcher that has
// granted a slot and puts it again knows of its end by its watch, unless it has ended it itself:
// by the withdrawal of a grant that was not confirmed, or for an operator. Of slots that another
// one has granted, it may know neither the beginning nor the end.
func (h *History) noteUse() {
	q := &h.queue
	for _, key := range q.ended {
		if g, ok := q.granted[key]; ok && !q.acknowledged[g.claim] && !q.revoked {
			g.gone = h.rev
			q.freed[key] = g
		}
		delete(q.granted, key)
	}
	for _, x := range q.begun {
		by := h.dispatch(lowest(x.Pools)).by
		for name := range x.Pools {
			if d := h.dispatch(name); d.by != by {
				d.taken = h.rev
			}
		}
		for key := range h.byClaim[x.Claim] {
			delete(q.freed, key)
			if q.noticed[x.Claim] {
				q.granted[key] = slotLife{by: instanceID{x.Host, x.Instance}, from: by, claim: x.Claim}
			}
		}
	}
}

// insert gives a waiter its place.
func (q *queueState) insert(w *waiter) {
	i, _ := slices.BinarySearchFunc(q.line, w, byOrder)
	q.line = slices.Insert(q.line, i, w)
}

// remove takes a waiter out.
func (q *queueState) remove(w *waiter) {
	if i, ok := slices.BinarySearchFunc(q.line, w, byOrder); ok {
		q.line = slices.Delete(q.line, i, i+1)
	}
	q.left = append(q.left, w)
}

func byOrder(a, b *waiter) int { return cmp.Compare(a.wait.Order, b.wait.Order) }

// lowest is the pool whose dispatcher grants a claim.
func lowest(pools map[string]int) string {
	low := ""
	for name := range pools {
		if low == "" || name < low {
			low = name
		}
	}
	return low
}

// covers reports whether a claim takes at least what another one needs.
func covers(took, needs map[string]int) bool {
	for name, n := range needs {
		if took[name] < n {
			return false
		}
	}
	return true
}
