package enginetest

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// queueing has in which order claims are granted that wait.
var queueing = []behavior{
	{"slots go from host to host in the order in which claims have come", inOrder, everywhere},
	{"a higher priority goes first", higherFirst, everywhere},
	{"a late claim of a lower priority never passes one that waits", lateLower, everywhere},
	{"a claim that fits passes one that does not", lowFits, everywhere},
	{"a pool of strict order serves the first before all others", strictOrder, everywhere},
	{"a claim reserves slots when it has waited for reserve_after", reserves, standIn},
	{"a claim of several pools reserves at the shortest reserve_after of them", shortestCounts, standIn},
	{"the time that a claim has waited counts when another host dispatches", ageingAfterTakeOver, standIn},
	{"a change of reserve_after counts immediately", reserveAfterChanges, standIn},
	{"a claim that times out says its position, the holders and who dispatches", timesOut, standIn},
	{"a client that comes back within 10 s has its place again", placeKept, everywhere},
	{"a client that comes back within 10 s has reserved what it had", reserveKept, standIn},
	{"a client that comes back later waits at the end", placeLost, standIn},
	{"a claim that is withdrawn leaves the queue and its request is answered", withdrawn, everywhere},
	{"a client that hangs up leaves no trace", hungUp, everywhere},
	{"waiting claims of a host that has died are passed and then gone", waiterDies, standIn},
	{"the queue moves again when the host that dispatches is killed", dispatcherDies, standIn},
	{"the queue moves again when the host that dispatches hangs", dispatcherHangs, standIn},
	{"a host that hangs delays all others by 600 ms in all", delaysOthers((*host).hang), standIn},
	{"a waiting host that was killed delays all others by 600 ms in all", delaysOthers((*host).kill), standIn},
	{"a host that hangs keeps no slots from others", hungHostTakesNothing, standIn},
	{"nothing of a queue is left in etcd when nobody waits", nothingLeft, everywhere},
	{"a waiting claim is granted when the watches of its host fall silent", watchesSilent, standIn},
	{"a waiting claim is granted by its poll while no watch of its host delivers anything", noWatchDelivers, standIn},
	{"1,000 waiting claims of one host are granted in order", manyWaiters, standIn},
}

func inOrder(w world) {
	w.pool("db", 1)
	hosts := []*host{w.host("one"), w.host("two"), w.host("three")}
	last := hosts[0].take("c0", slots(1))
	var all []*asked
	for i := 1; i < 9; i++ {
		all = append(all, hosts[i%3].queued(fmt.Sprint("c", i), slots(1)))
	}
	for i, a := range all {
		hosts[i%3].release(last)
		next := a.got()
		if next.Fence <= last.Fence {
			w.Errorf("fence %d after %d", next.Fence, last.Fence)
		}
		last = next
	}
	hosts[len(all)%3].release(last)
	w.empty()
}

func higherFirst(w world) {
	w.pool("db", 1)
	hosts := []*host{w.host("one"), w.host("two")}
	last, at := hosts[0].take("held", slots(1)), hosts[0]
	all := map[string]*asked{}
	for i, x := range []struct {
		id string
		p  int
	}{{"low", -1000}, {"normal", 0}, {"high", 10}, {"later", 0}, {"higher", 1000}} {
		all[x.id] = hosts[i%2].queued(x.id, slots(1), priority(x.p))
	}
	order := []string{"higher", "high", "normal", "later", "low"}
	w.becomesQueue(order...)
	w.caughtUp()
	for _, id := range order {
		at.release(last)
		last, at = all[id].got(), all[id].h
	}
	at.release(last)
	w.empty()
}

func lateLower(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	last, at := one.take("held", slots(1)), one
	for i := range 5 {
		high := two.queued(fmt.Sprint("high", i), slots(1), priority(10))
		low := one.queued(fmt.Sprint("low", i), slots(1))
		w.caughtUp()
		at.release(last)
		last, at = high.got(), two
		low.still()
		at.release(last)
		last, at = low.got(), one
	}
	at.release(last)
	w.empty()
}

func lowFits(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(2))
	wide := one.queued("wide", slots(2), priority(100))
	for _, h := range []*host{one, two} {
		h.release(h.ask("narrow-"+h.name, slots(1), priority(-100)).got())
	}
	wide.still()
	one.release(held)
	one.release(wide.got())
	w.empty()
}

func strictOrder(w world) {
	w.pool("db", 4, reserveAfter(0))
	one, two := w.host("one"), w.host("two")
	var held []*pool.Claim
	for i := range 4 {
		held = append(held, one.take(fmt.Sprint("a", i), slots(1)))
	}
	wide := two.queued("wide", slots(4))
	var behind []*asked
	for i := range 4 {
		behind = append(behind, one.queued(fmt.Sprint("b", i), slots(1)))
	}
	for _, c := range held {
		one.refuses(problem.NoCapacity, "hasty", slots(1))
		one.release(c)
	}
	c := wide.got()
	for _, b := range behind {
		b.still()
	}
	two.release(c)
	for _, b := range behind {
		one.release(b.got())
	}
	w.empty()
}

// reserving is a pool in which a wide claim has waited, while narrow ones pass it.
func reserving(w world, after time.Duration) (one, two *host, held *pool.Claim, wide *asked) {
	w.pool("db", 3, reserveAfter(after))
	one, two = w.host("one"), w.host("two")
	held = one.take("held", slots(2))
	return one, two, held, two.queued("wide", slots(3))
}

// passes reports whether a narrow claim of one slot is granted within 2 s.
func passes(w world, h *host, id string) bool {
	a := h.ask(id, slots(1), wait(2*time.Second))
	<-a.done
	if a.err == nil {
		h.release(a.claim)
	} else {
		w.problem(a.err, problem.ClaimTimeout)
	}
	return a.err == nil
}

func reserves(w world) {
	one, _, held, wide := reserving(w, 30*time.Second)
	w.pass(20 * time.Second)
	if !passes(w, one, "early") {
		w.Error("slots were reserved before the time")
	}
	w.pass(15 * time.Second)
	if passes(w, one, "late") {
		w.Error("slots that are reserved were granted to another claim")
	}
	w.becomesQueue("wide")
	if _, waiters := w.read().Claims(); len(waiters) != 1 || !waiters[0].Reserve {
		w.Errorf("those that wait are %+v", waiters)
	}
	one.release(held)
	wide.h.release(wide.got())
	w.empty()
}

func shortestCounts(w world) {
	w.pool("patient", 1, reserveAfter(time.Hour))
	w.pool("db", 3, reserveAfter(30*time.Second))
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(2))
	wide := two.queued("wide", map[string]int{"db": 3, "patient": 1})
	w.pass(35 * time.Second)
	if passes(w, one, "late") {
		w.Error("slots that are reserved were granted to another claim")
	}
	one.release(held)
	two.release(wide.got())
	w.empty()
}

func ageingAfterTakeOver(w world) {
	w.pool("db", 3, reserveAfter(30*time.Second))
	one, two, three := w.host("one"), w.host("two"), w.host("three")
	held := three.take("held", slots(2))
	first := one.queued("first", slots(2)) // its host dispatches
	wide := two.queued("wide", slots(3))
	w.pass(25 * time.Second)
	one.kill()
	<-first.done
	w.pass(15 * time.Second)
	if passes(w, three, "late") {
		w.Error("slots that are reserved were granted to another claim")
	}
	three.release(held)
	two.release(wide.got())
	w.empty()
}

func reserveAfterChanges(w world) {
	one, _, held, wide := reserving(w, time.Hour)
	w.pass(time.Minute)
	if !passes(w, one, "early") {
		w.Error("slots were reserved before the time")
	}
	after := 30 * time.Second
	if _, err := w.Change(w.ctx(), "db", pool.Change{ReserveAfter: &after}); err != nil {
		w.Fatal(err)
	}
	w.pass(2 * time.Second)
	if passes(w, one, "late") {
		w.Error("slots that are reserved were granted to another claim")
	}
	one.release(held)
	wide.h.release(wide.got())
	w.empty()
}

func timesOut(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	one.take("a", slots(2), func(r *pool.Request) { r.Holder.Run, r.Holder.Step = "nightly", "load" })
	two.take("b", slots(1))
	two.queued("first", slots(1))
	w.pass(2 * time.Second)
	late := one.ask("late", slots(2), wait(2*time.Second))
	p := late.refused(problem.ClaimTimeout)
	if late.took < 2*time.Second || late.took > 4*time.Second {
		w.Errorf("it was refused after %s", late.took)
	}
	r, ok := p.Detail.(pool.Reason)
	if !ok {
		w.Fatalf("the refusal has no reason: %+v", p)
	}
	if r.Dispatcher == "" || r.Since.IsZero() {
		w.Errorf("dispatcher %q, since %s", r.Dispatcher, r.Since)
	}
	w.same("its reason", r, pool.Reason{
		Text: "pool 'db' full (3/3 slots)", Position: 2, Waiting: 2, Since: r.Since, Dispatcher: r.Dispatcher,
		Pools: []pool.Shortage{{
			Pool: "db", Wanted: 2, Limit: 3, Claimed: 3, Short: 2,
			Holders: []pool.HolderRef{
				{Claim: "a", Host: "one", Run: "nightly", Step: "load", Slots: 2}, {Claim: "b", Host: "two", Slots: 1},
			},
		}},
	})
	w.becomesQueue("first")
}

func placeKept(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	first := one.queued("first", slots(1))
	second := two.queued("second", slots(1))
	first.hangUp()
	w.becomesQueue("second")
	again := one.queued("first", slots(1))
	w.becomesQueue("first", "second")
	one.release(held)
	one.release(again.got())
	two.release(second.got())
	w.empty()
}

func reserveKept(w world) {
	one, two, held, wide := reserving(w, 30*time.Second)
	w.pass(35 * time.Second)
	wide.hangUp()
	w.pass(2 * time.Second)
	again := two.queued("wide", slots(3))
	w.pass(2 * time.Second)
	if passes(w, one, "late") {
		w.Error("slots that are reserved were granted to another claim")
	}
	one.release(held)
	two.release(again.got())
	w.empty()
}

func placeLost(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	one.take("held", slots(1))
	first := one.queued("first", slots(1))
	two.queued("second", slots(1))
	first.hangUp()
	w.pass(11 * time.Second)
	one.queued("first", slots(1))
	w.becomesQueue("second", "first")
}

func withdrawn(w world) {
	w.pool("db", 1)
	one := w.host("one")
	held := one.take("held", slots(1))
	a := one.queued("a", slots(1))
	one.Withdraw("a")
	a.refused(problem.ClaimCanceled)
	w.becomesQueue()
	one.Withdraw("unknown")
	one.release(held)
	w.empty()
}

func hungUp(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	for i := range 5 { // at any moment of its grant
		a := two.queued(fmt.Sprint("a", i), slots(1))
		released := make(chan error, 1)
		go func() { released <- one.Release(w.ctx(), held) }()
		if i > 0 {
			<-time.After(time.Duration(i) * time.Millisecond)
		}
		a.cancel()
		<-a.done
		if err := <-released; err != nil {
			w.Fatal(err)
		}
		if a.err == nil {
			two.release(a.claim)
		}
		w.eventually("the slot is free", func() bool {
			c, err := one.Claim(w.ctx(), request("held", slots(1), wait(0)))
			held = c
			return err == nil
		})
	}
	one.release(held)
	w.empty()
}

func waiterDies(w world) {
	w.pool("db", 1)
	one, two, three := w.host("one"), w.host("two"), w.host("three")
	held := one.take("held", slots(1))
	dead := two.queued("dead", slots(1))
	next := three.queued("next", slots(1))
	two.kill()
	<-dead.done
	begun := time.Now()
	one.release(held)
	c := next.got()
	if took := time.Since(begun); took > 5*time.Second {
		w.Errorf("the slot went to the next after %s", took)
	}
	w.pass(15 * time.Second)
	w.becomesQueue()
	three.release(c)
	w.empty()
}

// leaderOf has three hosts wait, of which the first was the first to wait, and so dispatches if no coordinator does.
func leaderOf(w world) (holder, first *host, held *pool.Claim, others []*asked) {
	w.pool("db", 1)
	holder, first = w.host("holder"), w.host("first")
	held = holder.take("held", slots(1))
	first.queued("first", slots(1))
	for _, name := range []string{"two", "three"} {
		others = append(others, w.host(name).queued(name, slots(1)))
	}
	return holder, first, held, others
}

func dispatcherDies(w world) {
	holder, first, held, others := leaderOf(w)
	first.kill()
	w.pass(100 * time.Millisecond)
	moves(w, holder, held, others)
}

func dispatcherHangs(w world) {
	holder, first, held, others := leaderOf(w)
	first.hang()
	moves(w, holder, held, others)
}

// moves releases a claim and checks that those that wait are granted, the first of them within 5 s: the
// silence that is waited for, a poll, and once for the host that is gone.
func moves(w world, holder *host, held *pool.Claim, others []*asked) {
	begun := time.Now()
	holder.release(held)
	for i, a := range others {
		c := a.got()
		if took := time.Since(begun); i == 0 && took > 5*time.Second {
			w.Errorf("the queue moved after %s", took)
		}
		a.h.release(c)
	}
}

// goneWaiters has a host end that has so many claims at the head of the queue, while another dispatches.
func goneWaiters(w world, n int, end func(h *host)) (holder *host, held *pool.Claim, next []*asked) {
	w.pool("db", 1)
	holder, dispatching, gone := w.host("holder"), w.host("dispatching"), w.host("gone")
	held = holder.take("held", slots(1))
	last := dispatching.queued("last", slots(1))
	for i := range n {
		gone.queued(fmt.Sprint("h", i), slots(1), priority(10))
	}
	next = append(next, dispatching.queued("next", slots(1), priority(5)), last)
	w.pass(3 * time.Second)
	end(gone)
	return holder, held, next
}

// delaysOthers returns a behavior in which the claims of a host that has ended delay others once.
func delaysOthers(end func(h *host)) func(w world) {
	return func(w world) {
		holder, held, next := goneWaiters(w, 8, end)
		begun := time.Now()
		holder.release(held)
		for _, a := range next {
			a.h.release(a.got())
		}
		if took := time.Since(begun); took > 600*time.Millisecond {
			w.Errorf("others were served after %s", took)
		}
	}
}

func hungHostTakesNothing(w world) {
	holder, held, next := goneWaiters(w, 3, (*host).hang)
	holder.release(held)
	for _, a := range next {
		a.h.release(a.got())
	}
	w.pass(20 * time.Second) // its leases have ended
	w.empty()
}

func nothingLeft(w world) {
	w.pool("db", 1)
	w.pool("api", 1)
	one, two := w.host("one"), w.host("two")
	both := map[string]int{"db": 1, "api": 1}
	held := one.take("held", both)
	a, b := one.queued("a", both), two.queued("b", both)
	if w.queued() == 0 {
		w.Error("no key says that claims wait")
	}
	one.release(held)
	one.release(a.got())
	two.release(b.got())
	w.empty()
	d, err := w.read().Pool("db")
	if err != nil || d.Dispatcher != "" || d.Waiting != 0 {
		w.Errorf("the pool is %+v, %v", d.Status, err)
	}
}

func watchesSilent(w world) {
	w.pool("db", 1)
	var on *silencer
	one, two := w.host("one"), w.host("two", silence(&on))
	held := one.take("held", slots(1))
	a := two.queued("a", slots(1))
	w.pass(5 * time.Second)
	on.fall()
	grantedWithin(w, one, held, a, 10*time.Second)
}

func noWatchDelivers(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	one.queued("first", slots(1)).hangUp() // one dispatches
	a := two.queued("a", slots(1))
	w.pass(5 * time.Second)
	two.by.Freeze()
	grantedWithin(w, one, held, a, 10*time.Second)
	two.by.Thaw()
}

// grantedWithin releases a claim for one that waits, and checks how long that takes.
func grantedWithin(w world, h *host, held *pool.Claim, a *asked, within time.Duration) {
	begun := time.Now()
	h.release(held)
	c := a.got()
	if took := time.Since(begun); took > within {
		w.Errorf("it was granted after %s", took)
	}
	a.h.release(c)
}

func manyWaiters(w world) {
	w.pool("db", 10)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(10))
	var all []*asked
	for i := range 1000 {
		all = append(all, two.ask(fmt.Sprintf("w%04d", i), slots(1)))
		if i%100 == 99 {
			w.pass(100 * time.Millisecond)
		}
	}
	w.eventually("all wait", func() bool { return len(w.queue()) == 1000 })
	writes := two.counts(txnWrites)
	released := make(chan error, len(all))
	for _, a := range all {
		go func() {
			if <-a.done; a.err != nil {
				released <- a.err
				return
			}
			released <- two.Release(w.ctx(), a.claim)
		}()
	}
	one.release(held)
	for range all {
		w.must(<-released)
	}
	if n := writes(); n > 3000 {
		w.Errorf("1,000 claims took %d transactions", n)
	}
	// Those of a hundred have come together; later hundreds are granted later.
	for i := 100; i < len(all); i++ {
		if before := all[i-i%100-1]; before.claim.Fence > all[i].claim.Fence {
			w.Errorf("%s was granted before %s", all[i].id, before.id)
		}
	}
	w.empty()
}
