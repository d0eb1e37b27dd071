package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// stepping has what workers rely on: claims for one step, places, and releases together with other writes.
var stepping = []behavior{
	{"several claims for one step are one waiter and one of them is granted", oneStep, everywhere},
	{"a step that waits is in the place of its publication", sinceGiven, everywhere},
	{"another claim waits in the place of one that has left", placeOfStep, everywhere},
	{"another claim waits in the place of one whose host was killed", placeOfKilled, standIn},
	{"a claim for a step that does not wait is refused while another waits", stepWithoutWaiting, everywhere},
	{"one claim at a time holds slots for a step", neverTwo, everywhere},
	{"a claim is granted only with a place and holds no slots without one", withPlace, everywhere},
	{"a claim without a place lets others pass and keeps its place in the queue", withoutPlace, everywhere},
	{"a claim that is not granted gives its place back", placeGivenBack, everywhere},
	{"a place is passed on in the transaction that releases its claim", placePassed, everywhere},
	{"places are taken once however many claims ask for them", manyPlaces, everywhere},
	{"a release happens together with other writes or not at all", releaseWith, everywhere},
	{"a claim that is asked for when a release is queued gets its slots", askedHook, standIn},
	{"a claim of many keys or one that has ended is not released with other writes", notCombined, everywhere},
	{"a combined release in a full etcd fails and the claim stays held", releaseWithFull, standIn},
	{"a combined release whose answer is lost happens at most once", releaseWithLost, standIn},
	{"the end of one step and the take of the next do not lose the slot to a later claim of lower rank", stepAfterStep, everywhere},
}

// step has a claim be for one thing that only one claim can get.
func step(w world, since int64) func(*pool.Request) {
	return func(r *pool.Request) {
		r.Sole, r.Since = true, since
		r.Holder = pool.Holder{Run: "r", Step: "m[0]", Bind: "step"}
		r.Extra.If = []*pb.Compare{store.CreateEquals(w.key("taken"), 0)}
		r.Extra.Then = []*pb.RequestOp{store.Put(w.key("taken"), nil, 0)}
	}
}

func oneStep(w world) {
	w.pool("db", 2)
	hosts := []*host{w.host("one"), w.host("two"), w.host("three")}
	held := hosts[0].take("held", slots(2))
	since := w.txn(store.Put(w.key("published"), nil, 0))
	first := hosts[0].queued("s0", slots(2), step(w, since))
	all := []*asked{first, hosts[1].ask("s1", slots(2), step(w, since)), hosts[2].ask("s2", slots(2), step(w, since))}
	other := hosts[2].queued("other", slots(2))
	w.rest(3 * time.Second)
	if d, err := w.read().Pool("db"); err != nil || d.Waiting != 2 {
		w.Errorf("%d wait: %+v, %v", d.Waiting, d.Waiters, err)
	}
	y, err := w.read().Why("other")
	w.must(err)
	w.same("the position of the claim behind", []int{y.Reason.Position, y.Reason.Waiting}, []int{2, 2})
	hosts[0].release(held)
	var got *pool.Claim
	var by *host
	w.eventually("one is granted", func() bool {
		for _, a := range all {
			if a.answered() && a.err == nil {
				got, by = a.claim, a.h
			}
		}
		return got != nil
	})
	w.wantUsed("db", 2)
	by.release(got)
	hosts[2].release(other.got())
	for _, a := range all {
		if <-a.done; a.err != nil {
			w.problem(a.err, problem.Precondition)
		} else if a.claim.ID != got.ID {
			w.Error("two claims were granted for one step")
		}
	}
	w.empty()
}

func sinceGiven(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	since := w.txn(store.Put(w.key("published"), nil, 0))
	first := one.queued("first", slots(1))
	late := two.queued("step", slots(1), step(w, since))
	w.becomesQueue("step", "first")
	one.release(held)
	two.release(late.got())
	one.release(first.got())
	w.empty()
}

// stepAndOther has two claims wait for a step, and one for something else behind them.
func stepAndOther(w world) (holder *host, held *pool.Claim, first, second, other *asked) {
	w.pool("db", 1)
	holder = w.host("holder")
	one, two := w.host("one"), w.host("two")
	held = holder.take("held", slots(1))
	since := w.txn(store.Put(w.key("published"), nil, 0))
	first = one.queued("s0", slots(1), step(w, since))
	second = two.ask("s1", slots(1), step(w, since))
	other = holder.queued("other", slots(1))
	w.becomesQueue("s0", "other")
	return holder, held, first, second, other
}

func placeOfStep(w world) {
	holder, held, first, second, other := stepAndOther(w)
	first.h.Withdraw("s0")
	first.refused(problem.ClaimCanceled)
	w.becomesQueue("s1", "other")
	holder.release(held)
	second.h.release(second.got())
	holder.release(other.got())
	w.empty()
}

func placeOfKilled(w world) {
	holder, held, first, second, other := stepAndOther(w)
	first.h.kill()
	<-first.done
	w.pass(20 * time.Second)
	w.becomesQueue("s1", "other")
	holder.release(held)
	second.h.release(second.got())
	holder.release(other.got())
	w.empty()
}

func stepWithoutWaiting(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	one.take("held", slots(1))
	one.queued("s0", slots(1), step(w, 0))
	p := two.refuses(problem.NoCapacity, "s1", slots(1), step(w, 0))
	w.same("the refusal", p.Message, "pool 'db' full (1/1 slots)")
	w.becomesQueue("s0")
}

// neverTwo has claims of several hosts for one step come and go, while another claim holds and releases the slots.
func neverTwo(w world) {
	w.pool("db", 2)
	one, two, three := w.host("one"), w.host("two"), w.host("three")
	for i := range 5 {
		taken := w.key(fmt.Sprint("taken", i))
		of := func(r *pool.Request) {
			r.Sole, r.Holder = true, pool.Holder{Run: "r", Step: fmt.Sprint(i), Bind: "step"}
			r.Extra.If = []*pb.Compare{store.CreateEquals(taken, 0)}
			r.Extra.Then = []*pb.RequestOp{store.Put(taken, nil, 0)}
		}
		held := three.take(fmt.Sprint("held", i), slots(2))
		a, b := one.ask(fmt.Sprint("a", i), slots(1), of), two.ask(fmt.Sprint("b", i), slots(1), of)
		w.eventually("one waits", func() bool { return len(w.queue()) > 0 })
		three.release(held)
		w.eventually("one is granted", func() bool { return a.answered() && a.err == nil || b.answered() && b.err == nil })
		holders, _ := w.read().Claims()
		w.same("claims that hold slots for the step", len(holders), 1)
		for _, x := range []*asked{a, b} {
			if x.answered() && x.err == nil {
				x.h.release(x.claim)
			}
		}
		for _, x := range []*asked{a, b} {
			<-x.done
		}
		if (a.err == nil) == (b.err == nil) {
			w.Errorf("the answers are %v and %v", a.err, b.err)
		}
	}
	w.empty()
}

func in(p *pool.Place) func(*pool.Request) { return func(r *pool.Request) { r.Place = p } }

func withPlace(w world) {
	w.pool("db", 3)
	one := w.host("one")
	places := pool.NewPlaces(1)
	first, second := places.New(), places.New()
	a := one.take("a", slots(1), in(first))
	w.same("free places", places.Free(), 0)
	b := one.ask("b", slots(1), in(second))
	w.rest(3 * time.Second)
	b.still()
	w.wantUsed("db", 1)
	first.Give()
	one.Reconsider()
	c := b.got()
	w.same("free places", places.Free(), 0)
	one.release(a, c)
	second.Give()
	w.same("free places", places.Free(), 1)
	w.empty()
}

func withoutPlace(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	places := pool.NewPlaces(1)
	running := places.New()
	running.Take()
	held := two.take("held", slots(1))
	a := one.ask("a", slots(1), in(places.New()), priority(5))
	b := two.queued("b", slots(1))
	two.release(held)
	c := b.got() // the other has no use for the slot
	a.still()
	w.wantUsed("db", 1)
	next := two.queued("next", slots(1))
	running.Give()
	one.Reconsider()
	w.eventually("it waits for the slot", func() bool { return slices.Contains(w.queue(), "a") })
	w.rest(2 * time.Second)
	a.still()
	two.release(c)
	d := a.got()
	next.still()
	one.release(d)
	two.release(next.got())
	w.empty()
}

func placeGivenBack(w world) {
	w.pool("db", 1)
	one := w.host("one")
	places := pool.NewPlaces(1)
	one.refuses(problem.Precondition, "a", slots(1), in(places.New()), extra(w.key("x"), store.Present(w.key("no"))), in(places.New()))
	w.eventually("the place is free", func() bool { return places.Free() == 1 })
	held := one.take("held", slots(1))
	one.refuses(problem.NoCapacity, "b", slots(1), in(places.New()))
	w.eventually("the place is free", func() bool { return places.Free() == 1 })
	waits := one.queued("c", slots(1), in(places.New()))
	w.eventually("a claim that waits has no place", func() bool { return places.Free() == 1 })
	waits.hangUp()
	w.same("free places", places.Free(), 1)
	one.release(held)
	w.empty()
}

// released is the answer to a combined release.
type released struct {
	revision int64
	err      error
}

// releasesWith releases a claim with other writes.
func (h *host) releasesWith(c *pool.Claim, x store.Extra, place *pool.Place, asked func()) <-chan released {
	done := make(chan released, 1)
	go func() {
		rev, err := h.ReleaseWith(h.w.ctx(), c, x, place, asked)
		done <- released{rev, err}
	}()
	return done
}

func placePassed(w world) {
	w.pool("db", 2)
	one := w.host("one")
	places := pool.NewPlaces(1)
	first, second := places.New(), places.New()
	a := one.take("a", slots(1), in(first))
	b := one.ask("b", slots(1), in(second))
	w.rest(time.Second)
	b.still()
	// Without its condition, nothing happens.
	r := <-one.releasesWith(a, store.Extra{If: []*pb.Compare{store.Present(w.key("no"))}}, first, nil)
	w.errIs(r.err, store.ErrChanged)
	w.rest(time.Second)
	b.still()
	w.held(a)
	w.same("free places", places.Free(), 0)
	r = <-one.releasesWith(a, store.Extra{Then: []*pb.RequestOp{store.Put(w.key("end"), nil, 0)}}, first, nil)
	w.must(r.err)
	c := b.got()
	if c.Fence.Revision() < r.revision {
		w.Errorf("it was granted at %d, before the place was free at %d", c.Fence.Revision(), r.revision)
	}
	first.Give() // it is another's
	w.same("free places", places.Free(), 0)
	one.release(c)
	w.empty()
}

func manyPlaces(w world) {
	w.pool("db", 100)
	one := w.host("one")
	places := pool.NewPlaces(3)
	var mu sync.Mutex
	now, most := 0, 0
	add := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most = max(most, now)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			place := places.New()
			c, err := one.Claim(w.ctx(), request(fmt.Sprint("c", i), slots(1), in(place)))
			if err != nil {
				w.Error(err)
				return
			}
			add(1)
			<-time.After(2 * time.Millisecond)
			add(-1)
			if err := one.Release(w.ctx(), c); err != nil {
				w.Error(err)
			}
			place.Give()
			one.Reconsider()
		})
	}
	all.Wait()
	if most > 3 {
		w.Errorf("%d claims were held at a time with 3 places", most)
	}
	w.same("free places", places.Free(), 3)
	w.empty()
}

func releaseWith(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	put := func(name string) []*pb.RequestOp { return []*pb.RequestOp{store.Put(w.key(name), []byte("x"), 0)} }
	r := <-one.releasesWith(a, store.Extra{If: []*pb.Compare{store.Present(w.key("no"))}, Then: put("x")}, nil, nil)
	w.errIs(r.err, store.ErrChanged)
	r = <-one.releasesWith(a, store.Extra{Then: append(put("x"), store.Put(w.key("y"), nil, 1<<40))}, nil, nil) // no such lease
	w.errIs(r.err, store.ErrLeaseNotFound)
	if w.has(w.key("x")) {
		w.Error("it was written")
	}
	w.held(a)
	w.wantUsed("db", 1)
	b := two.queued("b", slots(1))
	r = <-one.releasesWith(a, store.Extra{If: []*pb.Compare{store.CreateEquals(w.key("x"), 0)}, Then: put("x")}, nil, nil)
	w.must(r.err)
	resp, err := w.etcd.any.Range(w.ctx(), &pb.RangeRequest{Key: []byte(w.key("x"))})
	w.must(err)
	w.same("the revision of what was written", resp.Kvs[0].ModRevision, r.revision)
	if a.Err() != nil || a.Context().Err() == nil || !a.Freed() {
		w.Errorf("after the release: %v, freed %t", a.Err(), a.Freed())
	}
	two.release(b.got())
	w.empty()
}

func askedHook(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1))
	slowWrites(one, 50*time.Millisecond)
	var next *asked
	r := <-one.releasesWith(a, store.Extra{Then: []*pb.RequestOp{store.Put(w.key("end"), nil, 0)}}, nil, func() {
		next = one.ask("b", slots(1))
	})
	w.must(r.err)
	if next == nil {
		w.Fatal("it was not asked")
	}
	c := next.got()
	if c.Fence.Revision() < r.revision {
		w.Errorf("it was granted at %d, before the release at %d", c.Fence.Revision(), r.revision)
	}
	one.release(c)
	w.empty()
}

func notCombined(w world) {
	w.pool("db", 2)
	w.pool("wide", 20000)
	many := map[string]int{}
	for i := range 32 {
		name := fmt.Sprint("p", i)
		w.pool(name, 9)
		many[name] = 2
	}
	one := w.host("one")
	a := one.take("a", slots(1))
	one.release(a)
	x := store.Extra{Then: []*pb.RequestOp{store.Put(w.key("x"), nil, 0)}}
	r := <-one.releasesWith(a, x, nil, nil)
	w.errIs(r.err, pool.ErrNotCombined)
	b := one.take("b", many)
	if r = <-one.releasesWith(b, x, nil, nil); b.Keys > 32 {
		w.errIs(r.err, pool.ErrNotCombined)
		w.held(b)
		if w.has(w.key("x")) {
			w.Error("it was written")
		}
	}
	one.release(b)
	w.empty()
}

func releaseWithFull(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1))
	w.full(true)
	r := <-one.releasesWith(a, store.Extra{Then: []*pb.RequestOp{store.Put(w.key("x"), nil, 0)}}, nil, nil)
	w.problem(r.err, problem.EtcdFull)
	w.held(a)
	one.release(a) // deletions pass
	w.wantUsed("db", 0)
	w.full(false)
	w.pass(5 * time.Second)
	w.empty()
}

func releaseWithLost(w world) {
	for name, f := range map[string]storetest.Fault{
		"request": {Drop: true}, "answer": {LoseAnswer: true}, "late": {Delay: 5 * time.Second},
	} {
		w.pool("db", 1)
		one := w.host("one-" + name)
		a := one.take("a", slots(1))
		w.pass(time.Second)
		key := w.key(name)
		one.failsOnce(f, txnWrites)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := one.ReleaseWith(ctx, a, store.Extra{If: []*pb.Compare{store.CreateEquals(key, 0)}, Then: []*pb.RequestOp{store.Put(key, nil, 0)}}, nil, nil)
		cancel()
		w.pass(time.Minute)
		switch wrote := w.has(key); {
		case err == nil:
			w.same(name+": it was written", wrote, true)
		case store.OutcomeUnknown(err), errors.Is(err, store.ErrChanged): // the first try may have come through
		case wrote:
			w.Errorf("%s: it was written, and the error is %v", name, err)
		}
		one.release(a) // whatever has become of it
		w.empty()
		one.kill()
	}
}

// stepAfterStep has a claim of the highest rank wait on the host that releases, and one of a lower on another.
func stepAfterStep(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	last := one.take("s0", slots(1))
	later := two.queued("later", slots(1), priority(-1))
	var order []string
	for i := range 5 {
		next := one.queued(fmt.Sprint("s", i+1), slots(1))
		w.must((<-one.releasesWith(last, store.Extra{}, nil, nil)).err)
		last = next.got()
		order = append(order, last.ID)
		later.still()
	}
	if !slices.IsSorted(order) {
		w.Errorf("the order was %v", order)
	}
	one.release(last)
	two.release(later.got())
	w.empty()
}
