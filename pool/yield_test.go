package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// slack is by how much a yield may come later than [yieldAfter]: both of its halves are
// noticed by a tick.
const slack = 2 * tickEvery

func TestAWaiterOfAHungInstanceIsPassedAfterTwoSeconds(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	held := one.ask("held", 1)
	held.got()
	hung := two.ask("first", 1)
	next := one.ask("second", 1)
	r.wantWaiters("first", "second")

	two.wedged = true
	one.giveBack("held")
	next.waits() // its turn is after the first's
	r.pass(yieldAfter - 2*tickEvery)
	next.waits()
	r.pass(2*tickEvery + slack)
	next.got()
	one.giveBack("second")

	two.wedged = false // and takes its place again
	r.pass(tickEvery)
	hung.got()
	two.giveBack("first")
	r.clean()
}

// An instance whose waiters this one has no right to write to can't be probed. It is passed
// all the same, and probed no more.
func TestAnInstanceThatCanNotBeProbedIsPassed(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	held := one.ask("held", 1)
	held.got()
	two.ask("first", 1)
	next := one.ask("second", 1)
	r.wantWaiters("first", "second")
	refused := 0
	one.refuse = func(txn *pb.TxnRequest) error {
		if strings.Contains(txn.String(), `probed`) {
			refused++
			return store.ErrDenied
		}
		return nil
	}
	two.wedged = true
	one.giveBack("held")
	r.pass(yieldAfter - 2*tickEvery)
	next.waits()
	r.pass(2*tickEvery + refusedPause + slack)
	next.got()
	one.ask("third", 1)
	one.giveBack("second")
	r.pass(10 * yieldAfter)
	if refused != 1 {
		t.Errorf("it was probed %d times", refused)
	}
}

func TestAYieldEndsWhenItsInstanceActsAgain(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	first := two.ask("first", 1)
	one.ask("claim-0", 1)
	two.wedged = true
	one.giveBack("held")
	r.pass(yieldAfter + slack) // claim 0 passes it
	two.wedged = false
	r.resolve()
	// Each claim is taken by the next of the same host in the transaction that gives it
	// back: the first waiter never sees a free slot.
	for n := range 10 {
		one.ask(fmt.Sprintf("claim-%d", n+1), 1)
		one.giveBack(fmt.Sprintf("claim-%d", n))
		if len(first.reply) > 0 {
			first.got()
			return
		}
	}
	t.Errorf("the first waiter was passed by ten claims; in the queue are %q", r.inQueue())
}

// A batch of which the answer is lost takes as long as a yield: with the instance's guard
// being written meanwhile, it must not cost more than that.
func TestALostAnswerCostsNoTurnForGood(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("claim-0", 1).got()
	first := two.ask("first", 1)
	one.ask("claim-1", 1)
	two.wedged = true
	one.giveBack("claim-0")
	two.listen()
	lost := two.next(r.now)
	if lost == nil {
		t.Fatal("it does not claim its slot")
	}
	r.pass(batchTimeout + slack) // and claim 1 passes it
	two.answer(lost, nil, store.ErrUnavailable, r.now)
	two.wedged = false
	r.resolve()
	for n := 1; n < 10; n++ {
		one.ask(fmt.Sprintf("claim-%d", n+1), 1)
		if one.giveBack(fmt.Sprintf("claim-%d", n)); len(first.reply) > 0 {
			return
		}
	}
	t.Error("the first waiter is passed for ever")
}

func TestAllWaitersOfAHungInstanceYieldTogether(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	for n := range 100 {
		two.ask(fmt.Sprintf("hung-%d", n), 1)
	}
	two.wedged = true
	one.giveBack("held")
	begun := r.now
	for n := range 5 { // as newcomers, one after the other
		id := fmt.Sprintf("claim-%d", n)
		for a := one.ask(id, 1); len(a.reply) == 0; r.pass(tickEvery) {
			if r.now.Sub(begun) > 10*time.Minute {
				t.Fatalf("%s waits", id)
			}
		}
		one.giveBack(id)
	}
	if took := r.now.Sub(begun); took > yieldAfter+slack {
		t.Errorf("a hung instance has delayed five claims by %s in all, want at most %s", took, yieldAfter+slack)
	}
}

func TestAnInstanceThatKeepsSlotsNowAndThenYieldsAllTheSame(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	two.ask("first", 1)
	second := one.ask("second", 1)
	two.wedged = true
	one.giveBack("held")
	kept := time.Duration(0)
	for ; len(second.reply) == 0 && kept < time.Minute; kept += yieldAfter / 4 {
		r.pass(yieldAfter / 4)
		r.pool("db", 1, func(s *Spec) { s.Paused = true })
		r.pass(tickEvery)
		r.pool("db", 1)
	}
	if kept > yieldAfter+slack {
		t.Errorf("it has kept the slot from others for %s", kept)
	}
	second.got()
}

func TestAReservationOfAHungInstanceEnds(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	strict := func(s *Spec) { s.ReserveAfter = 0 }
	r.pool("db", 3, strict)
	one.ask("held", 1).got()
	wide := two.ask("wide", 3)
	r.wantWaiters("wide reserves")
	narrow := one.ask("narrow", 1)
	r.pass(time.Minute) // its owner lives
	narrow.waits()

	two.wedged = true
	r.pass(yieldAfter + slack)
	narrow.got()
	late := one.ask("late", 1)
	late.got()

	two.wedged = false
	r.resolve()
	one.giveBack("narrow")
	again := one.ask("again", 1)
	r.pass(time.Minute)
	again.waits() // the wide one reserves again
	one.giveBack("late")
	one.giveBack("held")
	wide.got()
	two.giveBack("wide")
	again.got()
	one.giveBack("again")
	r.clean()
}

// An instance that lives but gets no leases must not have others wait for it each time.
func TestAnInstanceThatCanNotTakeItsSlotsYields(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("claim-0", 1).got()
	first := two.ask("first", 1)
	two.noLeases = errors.New("no leases today")
	begun := r.now
	for n := range 5 {
		id := fmt.Sprintf("claim-%d", n+1)
		next := one.ask(id, 1)
		for one.giveBack(fmt.Sprintf("claim-%d", n)); len(next.reply) == 0; r.pass(tickEvery) {
			if r.now.Sub(begun) > time.Minute {
				t.Fatalf("%s waits", id)
			}
		}
		r.pass(tickEvery)
	}
	if took := r.now.Sub(begun); took > yieldAfter+slack+5*tickEvery {
		t.Errorf("five claims have waited %s in all for a host that could not claim", took)
	}
	two.noLeases = nil
	r.pass(tickEvery)
	one.giveBack("claim-5")
	r.resolve()
	first.got()
}

// An instance without a place for what it is due does not answer a probe. It does so as soon
// as others have taken those slots, and not a tick later.
func TestAnInstanceAnswersOnceOthersHaveTakenWhatItWasDue(t *testing.T) {
	r := newRig(t, "two", "one") // two sees what it is due in each tick before one takes it
	two, one := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	places := NewPlaces(1)
	places.New().Force()
	two.ask("first", 1, func(req *Request) { req.Place = places.New() })
	next := one.ask("next", 1)
	one.giveBack("held")
	for begun := r.now; len(next.reply) == 0 && r.now.Sub(begun) < time.Minute; {
		r.pass(tickEvery)
	}
	next.got()
	if by := one.view.instances[two.core.name()]; by.yielded || by.probed > 0 {
		t.Errorf("it has not answered: %+v", *by)
	}
}

// A waiter in etcd that its instance knows nothing of, as an earlier life may leave it,
// must not make the live waiters of that instance yield.
func TestAnOrphanedWaiterOfALiveInstanceIsDeletedOnceItIsProbed(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	two.ask("orphan", 1)
	e := two.entries["orphan"]
	e.inQueue = false
	two.forget(e)
	live, next := two.ask("live", 1), one.ask("next", 1)
	r.wantWaiters("orphan", "live", "next")
	one.giveBack("held")
	live.got()
	two.giveBack("live")
	r.pass(yieldAfter / 2)
	next.got()
	r.wantWaiters()
}

func TestTheNextLifeOfAnInstanceDeletesTheWaitersOfTheLast(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	one.ask("held", 1).got()
	two.ask("first", 1)
	two.ask("second", 1)
	next := one.ask("next", 1)
	r.hosts = r.hosts[:1] // two has ended, and its leases live on
	again := r.host("two").ask("second", 1)
	r.wantWaiters("next", "second")
	one.giveBack("held")
	next.got()
	one.giveBack("next")
	again.got()
}

func TestWhoLivesIsProbedSeldomAndNobodyIsWhileNobodyIsKeptFromSlots(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 3, func(s *Spec) { s.ReserveAfter = 0 })
	one.ask("held", 1).got()
	two.ask("wide", 3)
	before := r.etcd.Revision()
	r.pass(10 * time.Second)
	if n := r.etcd.Revision() - before; n != 0 {
		t.Errorf("with nobody behind it, %d writes", n)
	}
	one.ask("narrow", 1)
	before = r.etcd.Revision()
	r.pass(10 * time.Second)
	if n := r.etcd.Revision() - before; n < 2 || n > 30 {
		t.Errorf("%d writes in 10 s, want a probe and an answer each second at most", n)
	}
}

// TestNobodyOfOursIsBlockedOnceAllBlockersYield is what makes a bounded number of yields
// enough: with those that [Decision.blockers] names out of the way, whatever of ours still
// does not get slots that are free waits for another of ours.
func TestNobodyOfOursIsBlockedOnceAllBlockersYield(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		for _, w := range waiters {
			w.Yielded = w.Yielded && !w.Mine
		}
		for range len(waiters) + 1 {
			d := Admit(capacities, waiters)
			blockers := slices.DeleteFunc(d.blockers(capacities, waiters), func(b blocker) bool { return !b.ours })
			if len(blockers) == 0 {
				wantNotBlocked(t, capacities, waiters)
				return
			}
			for _, b := range blockers {
				if w := waiters[b.index]; w.Mine || w.Yielded {
					t.Fatalf("waiter %d is said to be in the way: %+v", b.index, *w)
				}
				waiters[b.index].Yielded = true
			}
		}
		t.Fatal("there are blockers still")
	})
}

// wantNotBlocked checks that with all waiters of others out of the way, none of ours gets
// slots that does not get them now, unless only because another of ours does not then.
func wantNotBlocked(t *rapid.T, capacities []Capacity, waiters []*Waiting) {
	var ours []*Waiting
	now := map[*Waiting]bool{}
	for _, i := range Admit(capacities, waiters).Grants {
		now[waiters[i]] = true
	}
	for _, w := range waiters {
		if w.Mine {
			ours = append(ours, w)
		}
	}
	for _, i := range Admit(capacities, ours).Grants {
		if w := ours[i]; !now[w] {
			t.Fatalf("%+v gets its slots only without the others", *w)
		}
	}
}

func TestAProbeIsReadAndWrittenLikeAnyWaiter(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	r.pool("other", 5)
	one.ask("held", 1).got()
	both := func(req *Request) { req.Slots["other"], req.Priority = 2, 7 }
	two.ask("first", 1, both)
	one.ask("second", 1, func(req *Request) { req.Slots["other"] = 1 })
	two.wedged = true
	one.giveBack("held")
	r.pass(yieldAfter/2 + tickEvery)
	probed := 0
	for kv := range r.etcd.All(r.keys.Pools()) {
		k, err := r.keys.ParsePoolKey(string(kv.Key))
		if err != nil || k.Kind != store.WaiterKey || !strings.Contains(k.Order, "-first+") {
			continue
		}
		o, err := ParseOrder(k.Order)
		if err != nil {
			t.Fatal(err)
		}
		v, err := decodeWaiter(string(kv.Key), kv.Value, o)
		if err != nil {
			t.Fatal(err)
		}
		if v.Probed && v.Holder.Host == "two" && kv.Lease == int64(two.waiterLeaseID) {
			probed++
		}
	}
	if probed != 2 {
		t.Errorf("%d of 2 keys of the waiter are marked, on the lease that they were on", probed)
	}
	r.sound()
}

// Whatever else is in a batch, etcd takes it with its probes: each is a child, which may have
// as many operations as the root leaves.
func TestABatchWithSeveralProbesIsNoLargerThanEtcdTakes(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	wide := &waiter{order: Order{Since: 1, Claim: "wide"}, value: waiterValue{V: store.Now, Pools: map[string]int{}}, by: &otherInstance{}}
	for n := range 8 {
		wide.value.Pools[fmt.Sprint("p", n)] = 1
	}
	narrow := &waiter{order: Order{Since: 2, Claim: "narrow"}, value: waiterValue{V: store.Now, Pools: map[string]int{"db": 1}}, by: &otherInstance{}}
	for others := 100; others < maxOps; others++ {
		b := h.newBuilder(flat, r.now)
		for n := range others {
			b.revocation(fmt.Sprint("/b/revoke/one/", n))
		}
		b.probe(wide)
		for b.probe(narrow) {
			narrow.order.Since++
		}
		batch := b.finish()
		if _, err := r.etcd.Txn(batch.txn); err != nil {
			t.Fatalf("%d probes with %d other operations: %v", len(batch.probed), others, err)
		}
		r.resolve()
	}
}
