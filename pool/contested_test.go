package pool

import (
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// rank has a claim wait before those of a lower priority.
func rank(priority int) func(*Request) { return func(r *Request) { r.Priority = priority } }

// of asks for slots of other pools.
func of(slots map[string]int) func(*Request) { return func(r *Request) { r.Slots = slots } }

// dispatcher is the host of a pool's dispatcher, empty if there is none.
func (r *rig) dispatcher(pool string) string {
	r.t.Helper()
	for kv := range r.etcd.All(r.keys.Dispatcher(pool)) {
		by, err := decodeDispatcher(string(kv.Key), kv.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		return by.host
	}
	return ""
}

func (r *rig) wantDispatcher(pool, want string) {
	r.t.Helper()
	if got := r.dispatcher(pool); got != want {
		r.t.Errorf("%q dispatches pool %s, want %q", got, pool, want)
	}
	if r.has(r.keys.Queued(pool)) != (want != "") {
		r.t.Errorf("pool %s is queued: %t", pool, r.has(r.keys.Queued(pool)))
	}
}

// notices are the claims whose notices were not acknowledged; those to be confirmed are marked.
func (r *rig) notices() (all []string) {
	r.t.Helper()
	for kv := range r.etcd.All(r.keys.Pools()) {
		k, err := r.keys.ParsePoolKey(string(kv.Key))
		if err != nil || k.Kind != store.NoticeKey {
			continue
		}
		n, err := decodeNotice(string(kv.Key), kv.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		if n.conditional {
			k.Claim += " to be confirmed"
		}
		all = append(all, k.Claim)
	}
	return all
}

func (r *rig) wantNotices(want ...string) {
	r.t.Helper()
	if got := r.notices(); !slices.Equal(got, want) {
		r.t.Errorf("the notices are of %q, want %q", got, want)
	}
}

// plans returns the next call of a host, which is still to be carried out.
func (h *rigHost) plans() *call {
	h.r.t.Helper()
	call := h.next(h.r.now)
	if call == nil && !h.waitersAt.IsZero() {
		call = h.next(h.waitersAt)
	}
	if call == nil {
		h.r.t.Fatalf("%s has nothing to do", h.name)
	}
	return call
}

// arrives carries out a call and reports whether all of it happened.
func (h *rigHost) arrives(c *call) bool {
	h.r.t.Helper()
	resp, err := h.r.etcd.Txn(c.txn)
	h.answer(c, resp, err, h.r.now)
	return err == nil && resp.Succeeded && !slices.ContainsFunc(resp.Responses, func(op *pb.ResponseOp) bool {
		return op.GetResponseTxn() != nil && !op.GetResponseTxn().Succeeded
	})
}

// isLost loses the answer to a call, which is carried out or not.
func (h *rigHost) isLost(c *call, done bool) {
	h.r.t.Helper()
	if done {
		if _, err := h.r.etcd.Txn(c.txn); err != nil {
			h.r.t.Fatal(err)
		}
	}
	h.answer(c, nil, store.ErrUnavailable, h.r.now)
}

// contested is a pool "db" of one slot, which "holder" of host three has. Claim "d" of two waits
// for it, so that two dispatches, and before it "w" of host one.
type contested struct {
	*rig
	one, two, three *rigHost
	w, d            asked
}

func newContested(t *testing.T, change ...func(*Request)) *contested {
	t.Helper()
	r := newRig(t, "one", "two", "three")
	r.pool("db", 1)
	c := &contested{rig: r, one: r.hosts[0], two: r.hosts[1], three: r.hosts[2]}
	c.three.ask("holder", 1).got()
	c.d = c.two.ask("d", 1)
	c.w = c.one.ask("w", 1, append(change, rank(1))...)
	r.wantWaiters("w", "d")
	r.wantDispatcher("db", "two")
	return c
}

// grant has the dispatcher grant "w" while its owner does nothing.
func (c *contested) grant() {
	c.t.Helper()
	c.one.wedged = true
	c.three.giveBack("holder")
	c.wantUsed(1)
	if len(c.notices()) != 1 {
		c.t.Fatalf("the notices are of %q", c.notices())
	}
	c.wantWaiters("d")
	c.d.waits()
	c.w.waits()
}

// granting returns the call by which the dispatcher grants "w". It and the owner do nothing.
func (c *contested) granting() *call {
	c.t.Helper()
	c.one.wedged, c.two.wedged = true, true
	c.three.giveBack("holder")
	c.two.listen()
	call := c.two.plans()
	if len(call.batch.grants) != 1 || call.batch.grants[0].e.req.ID != "w" {
		c.t.Fatalf("the dispatcher plans %s", described(call.txn))
	}
	return call
}

// ends gives everything back, from w to d, and checks that nothing is left.
func (c *contested) ends(held ...*rigHost) {
	c.t.Helper()
	c.resolve()
	for _, h := range held {
		h.giveBack("w")
	}
	c.d.got()
	c.wantNotices()
	c.two.giveBack("d")
	c.pass(silentAfter + silentSpread + time.Second)
	c.wantDispatcher("db", "")
	c.clean()
}

// drain has the two claims granted one after the other, "d" first or last, and returns that of
// host one.
func (c *contested) drain(w asked) *Claim {
	c.t.Helper()
	c.wantUsed(1)
	first := len(c.d.reply) > 0
	if first {
		c.d.got()
		c.wantWaiters("w")
		c.two.giveBack("d")
	}
	got := w.got()
	if got.Err() != nil {
		c.t.Errorf("it has ended: %v", got.Err())
	}
	c.one.giveBack("w")
	if !first {
		c.d.got()
		c.two.giveBack("d")
	}
	c.pass(silentAfter + silentSpread + time.Second)
	c.wantDispatcher("db", "")
	c.clean()
	return got
}

// Of two instances that see no dispatcher one becomes it, and the other learns that.
func TestOneInstanceBecomesTheDispatcher(t *testing.T) {
	r := newRig(t, "one", "two", "three")
	r.pool("db", 1)
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	three.ask("holder", 1).got()
	one.wedged, two.wedged = true, true
	v, w := one.ask("v", 1), two.ask("w", 1)
	first, second := one.plans(), two.plans()
	if !one.arrives(first) {
		t.Fatal("nobody has become the dispatcher")
	}
	if two.arrives(second) {
		t.Error("there was a dispatcher already")
	}
	r.wantDispatcher("db", "one")
	r.wantWaiters("v", "w")
	one.wedged, two.wedged = false, false
	three.giveBack("holder")
	v.got()
	one.giveBack("v")
	w.got()
	two.giveBack("w")
	r.pass(silentAfter + silentSpread + time.Second)
	r.clean()
}

// lateLeases have a lease only from their second answer on: it is granted while a batch is
// put together.
type lateLeases struct {
	Leases
	asked int
}

func (l *lateLeases) Acquire(d time.Duration, keys int) (store.LeaseID, bool) {
	if l.asked++; l.asked == 1 {
		return 0, false
	}
	return l.Leases.Acquire(d, keys)
}

// A lease that becomes ready while the batch is put together goes to no later claim, and a
// claim that waits for one keeps its place: it would be passed or be tried again and again.
func TestAClaimWithoutALeaseIsNotPassed(t *testing.T) {
	r := newRig(t, "one")
	one := r.hosts[0]
	r.pool("db", 1)
	late := &lateLeases{Leases: one.core.leases}
	one.core.leases = late
	places := NewPlaces(1)
	one.wedged = true
	first := one.ask("a", 1, func(q *Request) { q.Place = places.New() })
	second := one.ask("b", 1, func(q *Request) { q.Place = places.New() })
	one.wedged = false
	one.listen()
	one.act()
	if late.asked == 0 {
		t.Fatal("no lease was asked for")
	}
	if len(places.Given()) > 0 {
		t.Error("the place was given back, which begins the next try at once")
	}
	one.core.dirty = true // the lease is ready
	r.resolve()
	first.got()
	second.waits()
	r.sound()
}
