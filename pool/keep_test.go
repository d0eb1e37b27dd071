package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// asStep makes a request one that is granted together with other writes, as that of a step.
func asStep(r *Request) {
	r.Extra.Then = []*pb.RequestOp{store.Put("/b/record/"+r.ID, []byte("taken"), 0)}
	r.Extra.Leased = []*pb.RequestOp{store.Put("/b/active/"+r.ID, []byte("x"), 0)}
}

// ends releases a claim together with what a step writes when it ends.
func (h *rigHost) ends(id string, change ...func(*store.Extra)) <-chan combinedResult {
	h.r.t.Helper()
	x := store.Extra{
		If:   []*pb.Compare{store.Present("/b/active/" + id)},
		Then: []*pb.RequestOp{store.Put("/b/record/"+id, []byte("ended"), 0), store.Delete("/b/active/" + id)},
	}
	for _, f := range change {
		f(&x)
	}
	reply := make(chan combinedResult, 1)
	h.core.releaseCombined(h.core.entries[id].claim, &combinedRelease{extra: x, reply: reply}, h.r.now)
	return reply
}

// endsLast ends a step that no other one follows: its slots are free when the time to retain has passed.
func (h *rigHost) endsLast(id string) {
	h.r.t.Helper()
	h.ends(id)
	h.r.resolve()
	h.r.pass(5 * time.Second)
	h.r.wantUsed(0)
	h.r.sound()
}

// slotWrites counts the writes of slot keys among the calls of a host since the last count.
func (h *rigHost) slotWrites() (n int) {
	var count func(t *pb.TxnRequest)
	count = func(t *pb.TxnRequest) {
		for _, op := range t.Success {
			if nested := op.GetRequestTxn(); nested != nil {
				count(nested)
			}
			for _, key := range [][]byte{op.GetRequestPut().GetKey(), op.GetRequestDeleteRange().GetKey()} {
				if strings.Contains(string(key), "/slots/") {
					n++
				}
			}
		}
	}
	for _, c := range h.calls {
		count(c.txn)
	}
	h.calls = nil
	return n
}

// newSteps is a rig with a pool of one slot that retains it, which step "a" of host one has.
func newSteps(t *testing.T, hosts ...string) (*rig, *rigHost) {
	t.Helper()
	r := newRetaining(t, 1, append([]string{"one"}, hosts...)...)
	one := r.hosts[0]
	one.ask("a", 1, asStep).got()
	one.calls = nil
	return r, one
}

func TestAStepKeepsTheSlotOfTheOneBefore(t *testing.T) {
	r, one := newSteps(t)
	a := one.entries["a"].claim
	ended := one.ends("a")
	b := one.ask("b", 1, asStep).got()
	if o := <-ended; o.err != nil || o.revision != b.Fence.Revision() {
		t.Errorf("the end: %+v, the next claim has %d: want one transaction", o, b.Fence)
	}
	if n := one.slotWrites(); n != 0 {
		t.Errorf("%d slot keys were written", n)
	}
	if a.Err() != nil || a.Context().Err() == nil || b.Fence <= a.Fence {
		t.Errorf("the first claim: %v, %v; fencing tokens %d and %d", a.Err(), a.Context().Err(), a.Fence, b.Fence)
	}
	if kv := r.key("/b/active/b"); r.has("/b/active/a") || kv == nil || store.LeaseID(kv.Lease) != b.Lease || b.Lease != a.Lease {
		t.Errorf("the key of the executor is %v, the lease %d", kv, b.Lease)
	}
	r.wantUsed(1)
	for range 20 {
		r.pass(tickEvery)
		r.news()
	}
	if got := r.shows(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("after the time to retain, etcd shows %v", got)
	}
	one.endsLast("b")
}

// The operations that a batch keeps for waiters, who take released slots in place, are not kept from
// claims that get slots as they are.
func TestManyStepsFollowOthersInOneTransaction(t *testing.T) {
	const steps = 24 // with four operations for the end of one and the taking of the next
	r := newRetaining(t, steps, "one")
	one := r.hosts[0]
	var before, after []asked
	for i := range steps {
		before = append(before, one.ask(fmt.Sprint("a", i), 1, asStep))
	}
	for _, a := range before {
		a.got()
	}
	one.calls, one.wedged = nil, true
	for i, a := range before {
		one.ends(a.id)
		after = append(after, one.ask(fmt.Sprint("b", i), 1, asStep))
	}
	one.wedged = false
	r.resolve()
	for _, a := range after {
		a.got()
	}
	if n := len(one.calls); n != 1 || one.slotWrites() != 0 {
		t.Errorf("%d transactions", n)
	}
	r.sound()
}

func TestAStepGetsTheIdleSlotOfOneThatHasEnded(t *testing.T) {
	r, one := newSteps(t)
	one.ends("a")
	r.resolve()
	if len(one.core.idle) != 1 {
		t.Fatalf("%d slots are idle", len(one.core.idle))
	}
	one.ask("b", 1, asStep).got()
	if n := one.slotWrites(); n != 0 || len(one.core.idle) != 0 {
		t.Errorf("%d slot keys were written, %d slots are idle", n, len(one.core.idle))
	}
	one.ends("b")
	r.resolve()
	one.ask("plain", 1).got() // without a write
	if n := one.slotWrites(); n != 0 {
		t.Errorf("%d slot keys were written for a claim without other writes", n)
	}
	r.sound()
}

// A slot is kept only under the spec that the step sees in its transaction.
func TestAStepDoesNotKeepASlotUnderAnotherSpec(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"closed": func(r *rig) { r.spec("db", Closed, retaining(4*time.Second)) },
		"paused": func(r *rig) {
			r.spec("db", 1, retaining(4*time.Second), func(s *Spec) { s.Paused = true })
		},
		"deleted": func(r *rig) { r.txn(store.Delete(r.keys.Spec("db"))) },
	} {
		t.Run(name, func(t *testing.T) {
			r, one := newSteps(t)
			ended := one.ends("a")
			one.wedged = true
			b := one.ask("b", 1, asStep)
			c := one.plans()
			change(r)
			if one.arrives(c) {
				t.Fatal("it was granted the slot")
			}
			one.wedged = false
			r.resolve()
			if o := <-ended; o.err != nil || r.has("/b/active/b") {
				t.Errorf("the end: %+v; the next step has begun: %t", o, r.has("/b/active/b"))
			}
			if name != "deleted" {
				b.waits()
			}
			r.wantUsed(0)
			r.sound()
		})
	}
}

// What the keys do not show, the other keys on the lease do.
func TestTheOutcomeOfAKeptSlotIsFound(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, done := range []bool{false, true} {
			for _, swept := range []bool{false, true} {
				t.Run(fmt.Sprintf("nested %t, done %t, guard swept %t", nested, done, swept), func(t *testing.T) {
					r, one := newSteps(t)
					if nested {
						one.ends("a") // so that its slot is idle
						r.resolve()
						one.nested = 1
					}
					var ended <-chan combinedResult
					if !nested {
						ended = one.ends("a")
					}
					one.wedged = true
					b := one.ask("b", 1, asStep)
					one.isLost(one.plans(), done)
					if swept {
						r.txn(store.Delete(r.keys.Guard("one", "i")))
					}
					one.wedged = false
					r.resolve()
					cl := b.got()
					if kv := r.key("/b/active/b"); kv == nil || kv.ModRevision != cl.Fence.Revision() {
						t.Errorf("the fencing token is %d, the key of the executor %v", cl.Fence, kv)
					}
					if ended != nil {
						if o := <-ended; done != errors.Is(o.err, errOutcomeUnknown) || !done && o.err != nil || one.entries["a"] != nil {
							t.Errorf("the end: %+v; the claim: %v", o, one.entries["a"])
						}
					}
					if n := r.used(); n != 1 {
						t.Errorf("%d slots are used", n)
					}
					one.endsLast("b")
				})
			}
		}
	}
}

// An end that fails leaves its step with its slot, and the next one waits.
func TestAnEndThatFailsKeepsItsSlot(t *testing.T) {
	r, one := newSteps(t)
	ended := one.ends("a", func(x *store.Extra) { x.If = append(x.If, store.Present("/b/missing")) })
	b := one.ask("b", 1, asStep)
	b.waits()
	if o := <-ended; o.err == nil || one.entries["a"].claim.Context().Err() != nil {
		t.Errorf("the end: %+v", o)
	}
	one.ends("a")
	r.resolve()
	b.got()
	r.wantUsed(1)
	r.sound()
}

// A step of another host gets the slot after the time to retain, however many steps follow here.
func TestStepsGiveWayToAnotherHost(t *testing.T) {
	r, one := newSteps(t, "two")
	other := r.hosts[1].ask("other", 1, asStep)
	other.waits()
	begun, last := r.now, "a"
	for n := 0; len(other.reply) == 0; n++ {
		next := fmt.Sprint("n", n)
		one.ends(last)
		if a := one.ask(next, 1, asStep); len(a.reply) > 0 {
			a.got()
			last = next
		}
		r.pass(100 * time.Millisecond)
		if r.now.Sub(begun) > 5*time.Second {
			t.Fatalf("it has waited for %s", r.now.Sub(begun))
		}
		if one.entries[last] == nil || one.entries[last].state != held {
			break
		}
	}
	r.pass(time.Second)
	other.got()
	r.sound()
}

// A step that waits for the slot of another one here is not written to the wait queue at once.
func TestAStepWaitsOnItsOwnHostFirst(t *testing.T) {
	r, one := newSteps(t)
	one.ends("a")
	one.ask("b", 1, asStep).got()
	c := one.ask("c", 1, asStep)
	c.waits()
	r.wantWaiters()
	one.ends("b")
	r.resolve()
	c.got()
	d := one.ask("d", 1, asStep)
	for range 12 {
		r.pass(tickEvery)
		r.news()
	}
	r.wantWaiters("d")
	d.cancel()
	r.sound()
}

// A claim that wants the id that the keys of a slot show does not wait for as long as steps follow.
func TestAnIdThatKeptKeysShowIsFreeSoon(t *testing.T) {
	r, one := newSteps(t)
	one.ends("a")
	one.ask("b", 1, asStep).got()
	one.wedged = true
	again := one.ask("a", 1, asStep)
	one.ends("b")
	c := one.ask("c", 1, asStep)
	one.wedged = false
	r.resolve()
	if len(again.reply) == 0 {
		c.got()
		if got := r.shows(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("etcd shows %v while c has the slot, and a waits", got)
		}
	}
	r.sound()
}

// An operator revokes a claim that etcd shows, while its slot passes from one step to the next.
func TestARevocationWhileASlotIsKept(t *testing.T) {
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprintf("forced %t", forced), func(t *testing.T) {
			r, one := newSteps(t)
			fence := one.entries["a"].claim.Fence
			one.ends("a")
			one.ask("b", 1, asStep).got()
			one.ends("b")
			one.wedged = true
			c := one.ask("c", 1, asStep)
			call := one.plans()
			one.revoke("a", revocationValue{Fence: fence, Forced: forced}, r.etcd.Revision(), r.now)
			if !one.arrives(call) {
				t.Fatal("it was not granted")
			}
			cl := c.got()
			if forced {
				for kv := range r.etcd.All(r.keys.Slots("db")) {
					r.txn(store.Delete(string(kv.Key)))
				}
			}
			one.wedged = false
			r.resolve()
			if lost := cl.Err() != nil; lost != forced {
				t.Errorf("the next claim: %v", cl.Err())
			}
			if got := r.shows(); !forced && !slices.Equal(got, []string{"c"}) {
				t.Errorf("etcd shows %v", got)
			}
		})
	}
}

// An operator revokes a claim that etcd shows, while its idle slot is not granted to a step after all.
func TestARevocationWhileAnIdleSlotIsNotKept(t *testing.T) {
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprintf("forced %t", forced), func(t *testing.T) {
			r, one := newSteps(t)
			fence := one.entries["a"].claim.Fence
			one.ends("a")
			r.resolve()
			one.wedged = true
			b := one.ask("b", 1, asStep)
			call := one.plans()
			r.spec("db", 1, retaining(2*time.Second)) // so that it fails
			if forced {
				for kv := range r.etcd.All(r.keys.Slots("db")) {
					r.txn(store.Delete(string(kv.Key)))
				}
			}
			one.revoke("a", revocationValue{Fence: fence, Forced: forced}, r.etcd.Revision(), r.now)
			one.listen()
			if one.arrives(call) {
				t.Fatal("it was granted")
			}
			one.wedged = false
			r.resolve()
			b.got()
			r.wantUsed(1)
			if len(one.labels) != 0 || len(one.core.idle) != 0 {
				t.Errorf("what keys show: %v; idle: %v", one.labels, one.core.idle)
			}
			r.sound()
		})
	}
}

// A restore of etcd takes slots away while the outcome of a write that was to keep them is unknown.
func TestARestoreTakesKeptSlots(t *testing.T) {
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle %t", idle), func(t *testing.T) {
			r := newRetaining(t, 3, "one")
			one := r.hosts[0]
			one.ask("x", 1).got() // its lease is in the snapshot
			saved := r.etcd.Save()
			for range 20 {
				r.txn(store.Put("/elsewhere", []byte("x"), 0))
			}
			r.resolve()
			one.ask("a", 1, asStep).got()
			if one.ends("a"); idle {
				r.resolve()
				one.wedged = true
				one.ask("b", 1, asStep)
			}
			one.isLost(one.plans(), false)
			r.etcd.Restore(saved, saved.Revision()-r.etcd.Revision())
			one.feeds.resync(store.ErrRestored, r.now)
			one.wedged = false
			for range 3 {
				one.listen()
				r.news()
				r.now = r.now.Add(100 * time.Millisecond)
			}
			for _, i := range one.idle {
				t.Errorf("%v is idle, which etcd does not have", i.slots)
			}
			if n := one.holds(); n != r.used() {
				t.Errorf("the host has %d slots, etcd %d", n, r.used())
			}
		})
	}
}

// holds counts the slots that a host has, as far as it knows.
func (h *rigHost) holds() (n int) {
	for _, e := range h.entries {
		if e.state == held {
			n++
		}
	}
	return n + len(h.idle)
}

// A remote step gets no kept slots, so it does not wait for them on its own host alone.
func TestARemoteStepIsNotPassed(t *testing.T) {
	r := newRetaining(t, 1, "one")
	one := r.hosts[0]
	one.ask("s0", 1, asStep).got()
	one.ends("s0")
	r.resolve()
	one.ask("s1", 1, asStep).got()
	first := one.ask("first", 1, asStep, rank(10), func(q *Request) { q.Remote = true })
	for i := 2; i < 12 && len(first.reply) == 0; i++ {
		one.ask(fmt.Sprint("s", i), 1, asStep)
		r.pass(100 * time.Millisecond)
		one.ends(fmt.Sprint("s", i-1))
		r.resolve()
	}
	first.got()
}
