package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// together has several requests share a batch.
func (h *rigHost) together(ask func()) {
	h.wedged = true
	ask()
	h.wedged = false
	h.r.resolve()
}

func extra(ifs *pb.Compare, key string) func(*Request) {
	return func(r *Request) {
		r.Extra.Then = []*pb.RequestOp{store.Put(key, []byte("x"), 0)}
		if ifs != nil {
			r.Extra.If = []*pb.Compare{ifs}
		}
	}
}

func (r *rig) has(key string) bool {
	for range r.etcd.All(key) {
		return true
	}
	return false
}

// shapes of the batches that a host has sent, fencing left out.
func (h *rigHost) shapes() (all []shape) {
	for _, c := range h.calls {
		if c.batch != nil {
			all = append(all, c.batch.shape)
		}
	}
	h.calls = nil
	return all
}

func TestInANestedBatchEachClaimFailsAlone(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 4)
	one.nested = calmBatches
	var a, b, c, d asked
	one.shapes()
	one.together(func() {
		a = one.ask("a", 1, extra(nil, "/side/a"))
		b = one.ask("b", 1, extra(store.Present("/side/no"), "/side/b"))
		c = one.ask("c", 1, extra(store.CreateEquals("/side/no", 0), "/side/c"))
		d = one.ask("d", 1)
	})
	a.got()
	b.refused(problem.Precondition)
	c.got()
	d.got()
	if s := one.shapes(); !slices.Contains(s, nested) {
		t.Errorf("the batches were of shapes %v", s)
	}
	if r.has("/side/b") || !r.has("/side/a") || !r.has("/side/c") {
		t.Error("what goes with the claims has not happened with them")
	}
	r.wantUsed(3)

	// Another host is faster with the last slot.
	two.ask("e", 1).got()
	one.nested = calmBatches
	two.giveBack("e")
	two.wedged, one.wedged = true, true
	f, g := one.ask("f", 1), two.ask("g", 1)
	for _, h := range []*rigHost{two, one} { // both have seen the slot free
		call := h.next(r.now)
		resp, err := r.etcd.Txn(call.txn)
		h.answer(call, resp, err, r.now)
	}
	g.got()
	f.waits()
	two.wedged, one.wedged = false, false
	r.resolve()
	f.waits()
	r.wantWaiters("f")
	two.giveBack("g")
	f.got()
	for _, id := range []string{"a", "c", "d", "f"} {
		one.giveBack(id)
	}
	r.clean()
}

func TestBatchesAreNestedUntilThereIsPeace(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.wedged, two.wedged = true, true
	a := one.ask("a", 1)
	call := one.next(r.now)
	two.wedged = false
	two.ask("b", 1).got()
	resp, err := r.etcd.Txn(call.txn)
	one.answer(call, resp, err, r.now)
	a.waits()
	one.wedged = false
	one.shapes()
	r.resolve()
	two.giveBack("b")
	a.got()
	for i := range 6 {
		id := fmt.Sprint("c", i)
		one.giveBack(one.heldOne())
		one.ask(id, 1).got()
	}
	s := one.shapes()
	if s[0] != nested || s[len(s)-1] != flat {
		t.Errorf("after a conflict the batches were of shapes %v", s)
	}
	if i := slices.Index(s, flat); i != calmBatches {
		t.Errorf("the first flat one after the conflict is batch %d", i)
	}
}

// Once it is found out what else had to hold and does not, batches are flat again: no other
// host was in the way.
func TestAConditionThatFailsIsNoConflict(t *testing.T) {
	r := newRig(t, "one")
	one := r.hosts[0]
	r.pool("db", 4)
	one.shapes()
	var a, b asked
	one.together(func() {
		a = one.ask("a", 1, extra(store.CreateEquals("/side/no", 0), "/side/a"))
		b = one.ask("b", 1, extra(store.Present("/side/no"), "/side/b"))
	})
	a.got()
	b.refused(problem.Precondition)
	one.ask("c", 1).got()
	if got, want := one.shapes(), []shape{flat, nested, flat}; !slices.Equal(got, want) {
		t.Errorf("the batches were of shapes %v, want %v", got, want)
	}
}

// A claim whose condition does not hold is to be refused soon, however busy its host is
// with others and though the watch is a batch behind.
func TestAFailedConditionIsRefusedOnABusyHost(t *testing.T) {
	r := newRig(t, "one")
	one := r.hosts[0]
	r.pool("db", 100)
	one.shapes()
	one.wedged = true // driven by hand from here on
	bad := one.ask("bad", 1, extra(store.Present("/side/no"), "/side/b"))
	rounds, spoiled := 0, 0
	for ; rounds < 200 && len(bad.reply) == 0; rounds++ {
		// Something else in etcd is written meanwhile: the view is behind the revision
		// at which the batch fails until it gets progress.
		if _, err := r.etcd.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put("/side/other", []byte(fmt.Sprint(rounds)), 0)}}); err != nil {
			t.Fatal(err)
		}
		one.ask(fmt.Sprint("a", rounds), 1) // one more each round, before
		one.act()
		one.ask(fmt.Sprint("b", rounds), 1) // and while the view is behind
		one.act()
		one.listen()
		for _, id := range []string{fmt.Sprint("a", rounds), fmt.Sprint("b", rounds)} {
			if e := one.core.entries[id]; e != nil && e.state == held {
				one.core.release(e.claim, make(chan error, 1), r.now)
			}
		}
	}
	for _, c := range one.calls {
		if c.batch != nil && c.batch.shape == flat && c.batch.conditional() {
			spoiled++
		}
	}
	if rounds > 10 {
		t.Errorf("after %d rounds it is not refused: it has spoiled %d flat batches of others", rounds, spoiled)
	}
}

// However much is given back at once, those who wait for it take it in place.
func TestThoseWhoWaitTakeInPlaceWhatManyGiveBack(t *testing.T) {
	const claims = 50
	r := newRig(t, "one")
	one := r.hosts[0]
	r.pool("db", claims)
	for i := range claims {
		one.ask(fmt.Sprint("old", i), 1).got()
	}
	deleted := 0
	r.etcd.OnCommit(func(_ int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
		for _, ev := range events {
			if k, err := r.keys.ParsePoolKey(string(ev.Kv.Key)); err == nil && k.Kind == store.SlotKey && ev.Type == mvccpb.Event_DELETE {
				deleted++
			}
		}
	})
	var next []asked
	one.together(func() {
		for i := range claims {
			with := store.Extra{Then: []*pb.RequestOp{store.Put(fmt.Sprint("/side/", i), nil, 0), store.Delete("/side/a"), store.Delete("/side/b")}}
			one.releaseCombined(one.entries[fmt.Sprint("old", i)].claim, &combinedRelease{extra: with, reply: make(chan combinedResult, 1)}, r.now)
			next = append(next, one.ask(fmt.Sprint("new", i), 1, extra(nil, fmt.Sprint("/side/new", i))))
		}
	})
	for _, n := range next {
		n.got()
	}
	if deleted > 0 {
		t.Errorf("%d of %d slots were deleted, and put again", deleted, claims)
	}
}

// heldOne names a claim that the host holds.
func (h *rigHost) heldOne() string {
	for _, e := range h.sorted() {
		if e.state == held {
			return e.req.ID
		}
	}
	h.r.t.Fatal("nothing is held")
	return ""
}

// refuseKey has etcd refuse every transaction that puts a key with that text.
func refuseKey(text string, err error) func(*pb.TxnRequest) error {
	var puts func(t *pb.TxnRequest) bool
	puts = func(t *pb.TxnRequest) bool {
		return slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool {
			if n := op.GetRequestTxn(); n != nil {
				return puts(n)
			}
			return strings.Contains(string(op.GetRequestPut().GetKey()), text)
		})
	}
	return func(t *pb.TxnRequest) error {
		if puts(t) {
			return err
		}
		return nil
	}
}

func TestWhatEtcdRefusesHarmsNoOther(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		code problem.Code
	}{
		"for lack of rights": {store.ErrDenied, problem.EtcdDenied},
		"for its size":       {store.ErrTooLarge, ""},
		"for what it is":     {store.ErrInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 9)
			h.ask("held", 1).got()
			h.refuse = refuseKey("/side/bad", tc.err)
			var good []asked
			var bad asked
			h.together(func() {
				for i := range 4 {
					good = append(good, h.ask(fmt.Sprint("a", i), 1))
				}
				bad = h.ask("bad", 1, extra(nil, "/side/bad"))
				e := h.entries["held"]
				h.release(e.claim, make(chan error, 1), r.now)
			})
			r.pass(2 * refusedPause)
			for _, a := range good {
				a.got()
			}
			if len(bad.reply) != 1 {
				t.Fatal("it is not refused")
			}
			o := <-bad.reply
			if !errors.Is(o.err, tc.err) || tc.code != "" && problem.CodeOf(o.err) != tc.code {
				t.Errorf("it is refused with %v", o.err)
			}
			r.wantUsed(4)
			later := h.ask("later", 1)
			r.pass(refusedPause)
			later.got()
		})
	}
}

func TestAnExpiredLoginIsNoRefusal(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	tries := 0
	h.refuse = func(*pb.TxnRequest) error {
		if tries++; tries < 3 {
			return store.ErrTokenExpired
		}
		return nil
	}
	h.ask("a", 1).got()
	if tries < 3 {
		t.Errorf("%d tries", tries)
	}
}

func TestALeaseThatIsGoneIsSuspectedAndAnotherIsUsed(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	h.refuse = func(t *pb.TxnRequest) error {
		h.refuse = nil
		return store.ErrLeaseNotFound
	}
	h.ask("a", 1).got()

	// The lease of the line: waiters are written when there is a new one.
	h.refuse = func(t *pb.TxnRequest) error {
		h.refuse = nil
		return store.ErrLeaseNotFound
	}
	b := h.ask("b", 1)
	r.wantWaiters()
	h.suspect = false
	r.resolve()
	r.wantWaiters("b")
	h.giveBack("a")
	b.got()
}

func TestAWideClaimGoesAlone(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 3000)
	var narrow []asked
	var wideOne asked
	h.shapes()
	h.together(func() {
		for i := range 5 {
			narrow = append(narrow, h.ask(fmt.Sprint("a", i), 1))
		}
		wideOne = h.ask("b", 2500)
		narrow = append(narrow, h.ask("c", 1))
	})
	for _, a := range narrow {
		a.got()
	}
	c := wideOne.got()
	if c.Keys <= wideKeys {
		t.Fatalf("it has %d keys", c.Keys)
	}
	alone := 0
	for _, call := range h.calls {
		if call.batch != nil && call.batch.shape == wide {
			alone++
			if call.batch.size() != 1 {
				t.Errorf("%d share a batch with it", call.batch.size()-1)
			}
		}
	}
	if alone != 1 {
		t.Errorf("%d wide batches", alone)
	}
	h.giveBack("b")
	r.wantUsed(6)
}

func TestAGrantDeletesItsWaiters(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	r.pool("other", 1)
	h.ask("a", 1).got()
	both := h.ask("b", 1, func(r *Request) { r.Slots["other"] = 1 })
	r.wantWaiters("b")
	h.giveBack("a")
	rev := both.got().Fence.Revision()
	state, err := r.etcd.State(rev)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range state {
		if k, err := r.keys.ParsePoolKey(string(kv.Key)); err == nil && k.Kind == store.WaiterKey {
			t.Errorf("%s is there at the revision of the grant", kv.Key)
		}
	}
	// Transfer in place: one revision took the slot from one and gave it to the
	// other.
	before, err := r.etcd.State(rev - 1)
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, kv := range before {
		if k, err := r.keys.ParsePoolKey(string(kv.Key)); err == nil && k.Kind == store.SlotKey {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d slots were held just before the transfer", used)
	}
}

func TestARetryWithFewerKeysListsThoseOnly(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 4) // groups of 1
	h.refuse = func(*pb.TxnRequest) error { return store.ErrTokenExpired }
	h.wedged = true
	a := h.ask("a", 2)
	h.act()
	h.refuse = nil
	r.pool("db", 100) // groups of 2
	h.wedged = false
	r.resolve()
	if c := a.got(); c.Keys != 1 {
		t.Errorf("it has %d keys", c.Keys)
	}
	r.sound()
}

// TestNoTimeIsSetForTheLineWhileABatchIsUnderWay is what keeps the loop from
// checking the waiters without end.
func TestNoTimeIsSetForWaitersWhileABatchIsInFlight(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 3000)
	r.pool("other", 3000)
	c := h.ask("wide", 3000, func(r *Request) { r.Slots["other"] = 3000 }).got()
	h.wedged = true
	h.ask("waits", 1)
	if h.next(r.now) != nil || h.waitersAt.IsZero() {
		t.Fatal("the waiter is written at once")
	}
	h.release(c, make(chan error, 1), r.now)
	call := h.next(r.now)
	if call == nil || call.batch.shape != wide {
		t.Fatal("the release is not sent")
	}
	if !h.waitersAt.IsZero() {
		t.Error("a time is set")
	}
	resp, err := r.etcd.Txn(call.txn)
	h.answer(call, resp, err, r.now)
	h.wedged = false
	r.resolve()
	r.wantUsed(1)
}

// A claim that touches much of a pool loses to everything that another host puts
// there. After some lost races it waits in the queue, where it cannot lose another one.
func TestAClaimThatLosesOneRaceAfterTheOtherWaitsInTheQueue(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 4)
	one, two := r.hosts[0], r.hosts[1]
	two.wedged = true // it acts on request
	wide := two.ask("wide", 3)
	lost := 0
	for ; lost < 3*queueAfter; lost++ {
		two.listen()
		a := one.ask(fmt.Sprint("fast", lost), 1, noWait)
		if len(a.reply) == 0 {
			break
		}
		claim := a.got()
		two.act() // from a view that does not have it
		if len(wide.reply) > 0 {
			break
		}
		one.release(claim, make(chan error, 1), r.now)
		r.resolve()
	}
	two.wedged = false
	r.resolve()
	wide.got()
	if lost > queueAfter+1 {
		t.Errorf("it has lost %d races, want %d", lost, queueAfter)
	}
}
