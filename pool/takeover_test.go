package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// bridged is a claim that is kept until it is taken over.
func bridged(r *Request) {
	r.Bridge, r.Priority = true, 7
	r.Holder = Holder{Run: "nightly", Bind: "bridge"}
}

// takeOver asks for a claim that another host keeps, and lets all hosts act.
func (h *rigHost) takeOver(id string, fence store.Fence, change ...func(*Request)) asked {
	h.r.t.Helper()
	req := &Request{ID: id, Slots: map[string]int{"db": 1}, Holder: Holder{Run: "nightly", Bind: "run"}}
	for _, f := range change {
		f(req)
	}
	e := newEntry(req, h.host, h.instance)
	e.takes = fence.Revision()
	a := asked{h, id, make(chan outcome, 1)}
	h.take(e, a.reply, h.r.now)
	if !h.wedged {
		h.r.resolve()
	}
	return a
}

func leased(key string) func(*Request) {
	return func(r *Request) { r.Extra.Leased = []*pb.RequestOp{store.Put(key, []byte("x"), 0)} }
}

// hears collects what a host tells of its claims.
func (h *rigHost) hears() func() []Event {
	s := &subscriber{events: make(chan Event, eventBuffer)}
	h.broker.add(s)
	return func() (all []Event) {
		for len(s.events) > 0 {
			if ev := <-s.events; ev.Type != PoolChanged {
				all = append(all, ev)
			}
		}
		return all
	}
}

// counted counts the keys that a host has reserved on its leases.
type counted struct {
	Leases
	keys map[store.LeaseID]int
}

func (c *counted) Acquire(d time.Duration, keys int) (store.LeaseID, bool) {
	id, ok := c.Leases.Acquire(d, keys)
	if ok {
		c.keys[id] += keys
	}
	return id, ok
}

func (c *counted) Release(id store.LeaseID, keys int) {
	if c.keys[id] -= keys; c.keys[id] == 0 {
		delete(c.keys, id)
	}
	c.Leases.Release(id, keys)
}

func (h *rigHost) count() *counted {
	c := &counted{h.core.leases, map[store.LeaseID]int{}}
	h.core.leases = c
	return c
}

// keysOf are the keys of a claim, as etcd has them.
func (r *rig) keysOf(id string) (all []*mvccpb.KeyValue) {
	r.t.Helper()
	for kv := range r.etcd.All(r.keys.Slots("db")) {
		v, err := decodeSlot(string(kv.Key), kv.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		if v.Claim == id {
			all = append(all, kv)
		}
	}
	return all
}

func TestAClaimChangesHandsWhole(t *testing.T) {
	for name, n := range map[string]int{"narrow": 3, "wide": 2500} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			one, two := r.hosts[0], r.hosts[1]
			r.pool("db", 3000)
			reserved := two.count()
			old := one.ask("a", n, bridged).got()
			r.pass(time.Minute)
			received := one.hears()
			got := two.takeOver("a", old.Fence, extra(nil, "/side/then"), leased("/side/leased")).got()
			if name == "wide" && got.Keys <= wideKeys {
				t.Fatalf("it has %d keys", got.Keys)
			}
			if got.Fence <= old.Fence || got.Lease == old.Lease || got.Priority != 7 || !maps.Equal(got.Slots, old.Slots) ||
				!got.ClaimedAt.Equal(old.ClaimedAt) || got.Keys != old.Keys || got.Holder.Host != "two" || got.Holder.Bind != "run" {
				t.Errorf("%+v after %+v", got, old)
			}
			keys := r.keysOf("a")
			if len(keys) != old.Keys {
				t.Errorf("it has %d keys, and had %d", len(keys), old.Keys)
			}
			for _, kv := range keys {
				if kv.ModRevision != got.Fence.Revision() || kv.Lease != int64(got.Lease) {
					t.Errorf("%s is of revision %d on lease %x", kv.Key, kv.ModRevision, kv.Lease)
				}
			}
			cv := one.view.claims["a"]
			if rec, err := cv.full(r.keys); err != nil || rec.Holder.Host != "two" || rec.Holder.Bind != "run" || rec.Priority != 7 {
				t.Errorf("its record is %+v, %v", rec, err)
			}
			if !r.has("/side/then") {
				t.Error("what goes with it has not happened")
			}
			for kv := range r.etcd.All("/side/leased") {
				if kv.Lease != int64(got.Lease) {
					t.Errorf("%s is on lease %x, want %x", kv.Key, kv.Lease, got.Lease)
				}
			}
			if want := map[store.LeaseID]int{got.Lease: old.Keys + 1}; !maps.Equal(reserved.keys, want) {
				t.Errorf("keys are reserved on %v, want %v", reserved.keys, want)
			}
			// Who has kept it makes no words.
			if events := received(); len(events) > 0 || one.entries["a"] != nil {
				t.Errorf("the old owner tells %+v", events)
			}
			if !errors.Is(old.Err(), errTakenOver) {
				t.Errorf("it has ended there with %v", old.Err())
			}
			reply := make(chan error, 1)
			one.release(old, reply, r.now) // late, and of no effect
			r.resolve()
			if err := <-reply; err != nil {
				t.Error(err)
			}
			r.wantUsed(n)
			r.pass(2 * time.Minute)
			r.wantUsed(n)
			two.giveBack("a")
			if len(reserved.keys) > 0 {
				t.Errorf("keys are still reserved on %v", reserved.keys)
			}
			r.clean()
		})
	}
}

// What the pools are like meanwhile does not matter: the slots are taken already.
func TestAClaimIsTakenOverWhateverItsPoolIsLike(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"paused":  func(r *rig) { r.pool("db", 3, func(s *Spec) { s.Paused = true }) },
		"lowered": func(r *rig) { r.pool("db", 1) },
		"closed":  func(r *rig) { r.pool("db", Closed) },
		"deleted": func(r *rig) { r.txn(store.Delete(r.keys.Spec("db"))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			r.pool("db", 3)
			old := r.hosts[0].ask("a", 2, bridged).got()
			change(r)
			r.resolve()
			r.hosts[1].takeOver("a", old.Fence).got()
			r.wantUsed(2)
			r.hosts[1].giveBack("a")
			r.clean()
		})
	}
}

func TestOnlyTheClaimThatIsMeantChangesHands(t *testing.T) {
	r := newRig(t, "one", "two", "three")
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	r.pool("db", 3)
	reserved := two.count()
	old := one.ask("a", 1, bridged).got()
	err := two.takeOver("a", old.Fence-1).refused(problem.Precondition)
	if err == nil || r.used() != 1 {
		t.Errorf("%v, and %d slots are held", err, r.used())
	}
	one.giveBack("a")
	again := one.ask("a", 1, bridged).got() // another of its id
	two.takeOver("a", old.Fence).refused(problem.Precondition)
	two.takeOver("b", old.Fence).refused(problem.Precondition)

	// Two want it, and have seen the same.
	two.wedged, three.wedged = true, true
	first, second := two.takeOver("a", again.Fence), three.takeOver("a", again.Fence)
	for _, h := range []*rigHost{two, three} {
		call := h.next(r.now)
		resp, err := r.etcd.Txn(call.txn)
		h.answer(call, resp, err, r.now)
	}
	two.wedged, three.wedged = false, false
	r.resolve()
	first.got()
	second.refused(problem.Precondition)
	two.takeOver("a", again.Fence).refused(problem.IDInUse)
	two.giveBack("a")
	if len(reserved.keys) > 0 {
		t.Errorf("keys are still reserved on %v", reserved.keys)
	}
	r.clean()
}

// A take-over of a claim that the watch has not delivered yet waits for that.
func TestATakeOverWaitsUntilItsClaimIsSeen(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	two.wedged = true
	old := one.ask("a", 1, bridged).got()
	a := two.takeOver("a", old.Fence)
	for range 3 {
		two.act()
	}
	a.waits()
	if !two.behind() {
		t.Error("it does not ask for progress")
	}
	two.wedged = false
	r.resolve()
	a.got()
	two.giveBack("a")
	r.clean()
}

func TestATakeOverHappensOnlyWithWhatElseMustHold(t *testing.T) {
	for name, tc := range map[string]struct {
		n      int
		shape  shape
		nested int
	}{"flat": {2, flat, 0}, "nested": {2, nested, calmBatches}, "wide": {2500, wide, 0}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			one, two := r.hosts[0], r.hosts[1]
			r.pool("db", 3000)
			reserved := two.count()
			old := one.ask("a", tc.n, bridged).got()
			two.nested = tc.nested
			two.shapes()
			two.takeOver("a", old.Fence, extra(store.Present("/side/no"), "/side/x"), leased("/side/y")).refused(problem.Precondition)
			if s := two.shapes(); !slices.Contains(s, tc.shape) {
				t.Errorf("the batches were of shapes %v", s)
			}
			if r.has("/side/x") || r.has("/side/y") || old.Context().Err() != nil || len(reserved.keys) > 0 {
				t.Errorf("something has happened: %v, keys are still reserved on %v", old.Err(), reserved.keys)
			}
			r.wantUsed(tc.n)
			two.nested = tc.nested
			two.takeOver("a", old.Fence, extra(store.CreateEquals("/side/no", 0), "/side/x")).got()
			if !r.has("/side/x") {
				t.Error("what goes with it has not happened")
			}
			two.giveBack("a")
			r.clean()
		})
	}
}

// A batch of takes and others: each fails alone.
func TestATakeOverSharesABatch(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 4)
	a, b := one.ask("a", 1, bridged).got(), one.ask("b", 1, bridged).got()
	var taken, refused, plain asked
	two.together(func() {
		taken = two.takeOver("a", a.Fence)
		refused = two.takeOver("b", b.Fence, extra(store.Present("/side/no"), "/side/x"))
		plain = two.ask("c", 2)
	})
	taken.got()
	refused.refused(problem.Precondition)
	plain.got()
	r.wantUsed(4)
	one.giveBack("b")
	two.giveBack("a")
	two.giveBack("c")
	r.clean()
}

func TestATakeOverWithAnUnknownOutcomeIsResolved(t *testing.T) {
	for name, happened := range map[string]bool{"made": true, "not made": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			one, two := r.hosts[0], r.hosts[1]
			r.pool("db", 2)
			reserved := two.count()
			old := one.ask("a", 2, bridged).got()
			two.wedged = true
			a := two.takeOver("a", old.Fence, leased("/side/leased"))
			call := two.next(r.now)
			if happened {
				if _, err := r.etcd.Txn(call.txn); err != nil {
					t.Fatal(err)
				}
			}
			two.answer(call, nil, store.ErrUnavailable, r.now)
			a.waits()
			two.wedged = false
			r.resolve()
			got := a.got()
			for _, kv := range r.keysOf("a") {
				if kv.ModRevision != got.Fence.Revision() {
					t.Errorf("%s is of revision %d, the fence is %d", kv.Key, kv.ModRevision, got.Fence)
				}
			}
			if !happened { // and it never will any more
				resp, err := r.etcd.Txn(call.txn)
				if err != nil || resp.Succeeded {
					t.Errorf("it comes late: %v, %v", resp, err)
				}
			}
			r.resolve()
			r.wantUsed(2)
			two.giveBack("a")
			if len(reserved.keys) > 0 {
				t.Errorf("keys are still reserved on %v", reserved.keys)
			}
			r.clean()
		})
	}
}

// The outcome is unknown, and then another has it.
func TestATakeOverWithAnUnknownOutcomeThatIsTooLateIsRefused(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	reserved := two.count()
	old := one.ask("a", 1, bridged).got()
	two.wedged = true
	a := two.takeOver("a", old.Fence)
	call := two.next(r.now)
	two.answer(call, nil, store.ErrUnavailable, r.now)
	one.giveBack("a")
	two.wedged = false
	r.resolve()
	a.refused(problem.Precondition)
	if len(reserved.keys) > 0 {
		t.Errorf("keys are still reserved on %v", reserved.keys)
	}
	r.clean()
}

func TestATakeOverThatNobodyWantsAnyMore(t *testing.T) {
	for name, sent := range map[string]bool{"before it is sent": false, "while it is under way": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			one, two := r.hosts[0], r.hosts[1]
			r.pool("db", 1)
			reserved := two.count()
			old := one.ask("a", 1, bridged).got()
			two.wedged = true
			two.listen()
			a := two.takeOver("a", old.Fence)
			var under *call
			if sent {
				under = two.next(r.now)
			}
			two.core.cancel("a", a.reply, errStopped, r.now)
			if sent {
				resp, err := r.etcd.Txn(under.txn)
				two.answer(under, resp, err, r.now)
			}
			two.wedged = false
			r.resolve()
			a.refused(problem.Stopping)
			if len(reserved.keys) > 0 {
				t.Errorf("keys are still reserved on %v", reserved.keys)
			}
			if sent { // it has changed hands, and is given back
				r.wantUsed(0)
			} else {
				r.wantUsed(1)
				one.giveBack("a")
			}
			r.clean()
		})
	}
}

func TestNothingIsTakenOverWhileAnEngineStops(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 2)
	a, b := one.ask("a", 1, bridged).got(), one.ask("b", 1, bridged).got()
	two.wedged = true
	before := two.takeOver("a", a.Fence)
	two.stop()
	before.refused(problem.Stopping)
	two.takeOver("b", b.Fence).refused(problem.Stopping)
	two.wedged = false
	r.resolve()
	r.wantUsed(2)
	one.giveBack("a")
	one.giveBack("b")
	r.clean()
}

// A claim that is not taken over ends with its lease, without a word.
func TestABridgeThatNobodyTakesEndsQuietly(t *testing.T) {
	for name, end := range map[string]func(*rig, *rigHost, *Claim){
		"with its lease": func(r *rig, h *rigHost, c *Claim) {
			delete(h.leases, DefaultLeaseDuration) // nobody renews it
			r.pass(DefaultLeaseDuration + time.Minute)
		},
		"when it is revoked": func(_ *rig, h *rigHost, c *Claim) { h.requestRevocation("a", c.Fence) },
		"by force":           func(r *rig, h *rigHost, c *Claim) { r.txn(slotDeletes(r.keys, h.entries["a"].slots, nil)...) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 1)
			c := h.ask("a", 1, bridged).got()
			received := h.hears()
			end(r, h, c)
			r.resolve()
			r.wantUsed(0)
			if events := received(); len(events) > 0 || c.Context().Err() == nil {
				t.Errorf("it got %+v, %v", events, c.Err())
			}
			r.clean()
		})
	}
}

func TestWhatIsTakenOverIsChecked(t *testing.T) {
	e := New(Config{Backend: storetest.NewBackend(storetest.New(storetest.Options{})), Keys: store.NewKeys("/b/"), Host: "one", Instance: "i", Leases: rigLeases{}})
	db := map[string]int{"db": 1}
	for field, h := range map[string]TakeOver{
		"id":     {ID: "a b", Fence: 1, Slots: db},
		"pools":  {ID: "a", Fence: 1},
		"run_id": {ID: "a", Fence: 1, Slots: db, Holder: Holder{Run: strings.Repeat("x", 257)}},
		"pid":    {ID: "a", Fence: 1, Slots: db, Holder: Holder{PID: -1}},
	} {
		_, err := e.TakeOver(context.Background(), h)
		var p *problem.Error
		if !errors.As(err, &p) || p.Code != problem.Invalid || p.Field != field {
			t.Errorf("%+v: %v, want a refusal of %s", h, err, field)
		}
	}
}

func TestATakeOverAfterALimitWasLoweredIsNoViolation(t *testing.T) {
	for name, slots := range map[string]int{"one group": 1, "several groups": 3} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two", "three")
			r.pool("db", 4)
			old := r.hosts[0].ask("a", slots, bridged).got()
			r.pool("db", 0)
			taken := r.hosts[1].takeOver("a", old.Fence).got()
			r.sound()
			r.hosts[2].takeOver("a", taken.Fence).got() // once more
			r.sound()
		})
	}
}
