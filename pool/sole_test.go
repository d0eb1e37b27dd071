package pool

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// sole asks for one thing that waits since a revision.
func sole(since int64) func(*Request) {
	return func(r *Request) {
		r.Sole, r.Since = true, since
		r.Holder.Run, r.Holder.Step, r.Holder.Bind = "r", "m[0]", "step"
		// Only one of them can get it.
		r.Extra.If = []*pb.Compare{store.CreateEquals("/b/m", 0)}
		r.Extra.Then = []*pb.RequestOp{store.Put("/b/m", nil, 0)}
	}
}

// Several requests for one thing are one waiter, and what it needs is counted once.
func TestWhatSeveralClaimsAreForIsOneWaiter(t *testing.T) {
	r := newRig(t, "one", "two", "three")
	r.pool("db", 4, func(s *Spec) { s.ReserveAfter = 0 })
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	holder := one.ask("holder", 4)
	holder.got()
	a := one.ask("a", 2, sole(1))
	b := two.ask("b", 2, sole(1))
	c := three.ask("c", 2, sole(1))
	exec := three.ask("exec", 2)
	r.wantWaiters("a reserves", "exec reserves")
	d, err := newReader(r.snapshot(), r.keys).Pool("db")
	if err != nil || d.Waiting != 2 || len(d.Waiters) != 2 {
		t.Errorf("%d wait: %+v (%v)", d.Waiting, d.Waiters, err)
	}
	if why, err := newReader(r.snapshot(), r.keys).why("exec", three.own()); err != nil || why.Reason.Position != 2 || why.Reason.Waiting != 2 {
		t.Errorf("the claim behind is at position %d of %d", why.Reason.Position, why.Reason.Waiting)
	}
	one.giveBack("holder")
	a.got()
	exec.got() // nothing is reserved for those who ask for the same
	b.waits()
	one.giveBack("a")
	r.pass(time.Second)
	b.refused(problem.Precondition)
	c.refused(problem.Precondition)
	r.wantUsed(2)
	r.sound()
}

// Who has waited for it leaves it to another, in the same place: because it has no use
// for it any more, or because its host is gone.
func TestAnotherClaimWaitsInThePlaceOfOneThatHasLeft(t *testing.T) {
	for name, leave := range map[string]func(*rig, asked){
		"withdrawn": func(r *rig, a asked) { a.h.withdraw("a", r.now); r.resolve() },
		"canceled":  func(_ *rig, a asked) { a.cancel() },
		"its lease has ended": func(r *rig, a asked) {
			a.h.wedged = true
			r.etcd.Revoke(a.h.waiterLeaseID)
			r.resolve()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			r.pool("db", 1)
			one, two := r.hosts[0], r.hosts[1]
			two.ask("holder", 1).got()
			a := one.ask("a", 1, sole(1))
			b := two.ask("b", 1, sole(1))
			exec := two.ask("exec", 1)
			r.wantWaiters("a", "exec")
			leave(r, a)
			r.wantWaiters("b", "exec")
			two.giveBack("holder")
			b.got()
			exec.waits()
		})
	}
}

// A host that does not take what it waits for keeps it from another for no longer than it
// keeps others in the queue.
func TestAHungHostKeepsWhatItWaitsForFromNobody(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	two.ask("holder", 1).got()
	one.ask("a", 1, sole(1))
	b := two.ask("b", 1, sole(1))
	one.wedged = true
	two.giveBack("holder")
	b.waits()
	r.pass(silentAfter + silentSpread + ackWithin + time.Second)
	b.got()
}

// Two that come to wait at the same time see each other, and one leaves.
func TestOfTwoThatComeToWaitForOneThingOneLeaves(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	one.wedged, two.wedged = true, true
	b := one.ask("b", 1, sole(1))
	a := two.ask("a", 1, sole(1))
	for one.act() || two.act() { // neither hears of the other
	}
	r.wantWaiters("a", "b")
	one.wedged, two.wedged = false, false
	r.resolve()
	r.wantWaiters("a")
	one.giveBack("holder")
	a.got()
	b.waits()
	two.giveBack("a")
	b.refused(problem.Precondition)
}

// A claim is granted only when there is a place to use it; one that waits has none.
func TestAClaimIsGrantedWhenThereIsAPlaceForIt(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 3)
	h := r.hosts[0]
	places := NewPlaces(1)
	in := func(p *Place) func(*Request) { return func(r *Request) { r.Place = p } }
	first, second, wide := places.New(), places.New(), places.New()
	h.ask("first", 1, in(first)).got()
	b := h.ask("second", 1, in(second))
	b.waits()
	r.wantWaiters() // it would fit
	h.ask("other", 2).got()
	first.Give()
	wide.Take()
	h.ask("wide", 2, in(wide)).waits()
	if places.Free() != 1 {
		t.Errorf("a claim that waits for slots keeps the place: %d are free", places.Free())
	}
	h.dirty = true
	r.resolve()
	b.waits() // there is a place, and no slot
	h.giveBack("other")
	b.got()
	if places.Free() != 0 {
		t.Errorf("%d places are free", places.Free())
	}
	second.Give()
	h.giveBack("first")
	if places.Free() != 0 {
		t.Error("the place is not taken by the next")
	}
}

// The place of a claim that is given back with something else goes to the next in the same
// transaction, and with none else; if that does not happen, it is not free.
func TestAPlaceIsPassedOnInTheTransactionThatFreesIt(t *testing.T) {
	for _, happens := range []bool{true, false} {
		r := newRig(t, "one")
		r.pool("db", 2)
		h := r.hosts[0]
		places := NewPlaces(1)
		first, second := places.New(), places.New()
		cl := h.ask("first", 1, func(r *Request) { r.Place = first }).got()
		h.ask("other", 1).got()
		second.Take()
		next := h.ask("second", 1, func(r *Request) { r.Place = second })
		next.waits()
		x := store.Extra{Then: []*pb.RequestOp{store.Put("/b/end", nil, 0)}}
		if !happens {
			x.If = []*pb.Compare{store.ModEquals("/b/elsewhere", 1)}
		}
		reply := make(chan combinedResult, 1)
		before := len(h.calls)
		h.releaseCombined(cl, &combinedRelease{extra: x, place: first, reply: reply}, r.now)
		r.resolve()
		if p := <-reply; (p.err == nil) != happens {
			t.Fatalf("it ends: %v", p.err)
		}
		if happens {
			next.got()
			if n := len(h.calls) - before; n != 1 {
				t.Errorf("it takes %d transactions", n)
			}
			first.Give() // again: the place is another's
		} else {
			next.waits()
		}
		if places.Free() != 0 {
			t.Errorf("happens %v: %d places are free, and another has the only one", happens, places.Free())
		}
	}
}

// A refused claim, or one that leaves, has no place.
func TestAPlaceIsGivenBackByWhatIsNotGranted(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	h := r.hosts[0]
	places := NewPlaces(1)
	p := places.New()
	a := h.ask("a", 1, func(r *Request) {
		r.Place, r.Extra = p, store.Extra{If: []*pb.Compare{store.ModEquals("/b/elsewhere", 1)}}
	})
	a.refused(problem.Precondition)
	if places.Free() != 1 {
		t.Errorf("%d places are free", places.Free())
	}
}

// Nobody who is not to wait is left without an answer until another has what it asks for.
func TestASoleClaimThatIsNotToWaitIsRefusedWhileAnotherWaits(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	one.ask("a", 1, sole(1)).waits()
	b := two.ask("b", 1, sole(1), noWait)
	if err := b.refused(problem.NoCapacity); err.Error() != "pool 'db' full (1/1 slots)" {
		t.Errorf("it is refused with: %v", err)
	}
	r.wantWaiters("a")
}

// A claim that others were faster than is written into the wait queue though it fits, but
// not while another waits for the same: it would come and go without end.
func TestASoleClaimThatHasLostRacesStaysOutOfTheQueueWhileAnotherWaits(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	one.ask("a", 1, sole(1)).waits()
	two.ask("b", 1, sole(1)).waits()
	two.entries["b"].conflicts = queueAfter
	before := len(two.calls)
	r.pass(time.Second)
	r.wantWaiters("a")
	if n := len(two.calls) - before; n != 0 {
		t.Errorf("%d transactions are sent, and nothing happens", n)
	}
}

// Who has left while its claim was on its way has given its place back. If it comes back in
// time, the claim needs a place again.
func TestAClaimThatIsAskedForAgainNeedsAPlaceAgain(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 2)
	h := r.hosts[0]
	places := NewPlaces(1)
	first, second, other := places.New(), places.New(), places.New()
	in := func(p *Place) func(*Request) { return func(r *Request) { r.Place = p } }
	h.wedged = true
	a := h.ask("a", 1, in(first))
	call := h.next(r.now)
	h.cancel("a", a.reply, errStopped, r.now)
	first.Give()
	other.Take()
	again := h.ask("a", 1, in(second))
	resp, err := r.etcd.Txn(call.txn)
	h.answer(call, resp, err, r.now)
	h.wedged = false
	r.resolve()
	again.waits()
	other.Give()
	h.dirty = true
	r.resolve()
	again.got()
	if places.Free() != 0 {
		t.Errorf("%d places are free", places.Free())
	}
}

// A place that is passed on before it is known whether that happens is not passed back to
// one that was given back meanwhile: its owner would not give it back again.
func TestAPlaceThatIsGivenBackWhileItIsPassedOnIsFree(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	h := r.hosts[0]
	places := NewPlaces(1)
	first, second := places.New(), places.New()
	cl := h.ask("first", 1, func(r *Request) { r.Place = first }).got()
	next := h.ask("second", 1, func(r *Request) { r.Place = second })
	h.wedged = true
	h.releaseCombined(cl, &combinedRelease{place: first, reply: make(chan combinedResult, 1)}, r.now)
	call := h.next(r.now)
	if places.Free() != 0 || first.lent == false {
		t.Fatal("the place is not passed on")
	}
	first.Give()
	h.answer(call, nil, store.ErrDenied, r.now)
	next.cancel()
	second.Give()
	if places.Free() != 1 {
		t.Errorf("%d places are free, and nobody has the only one", places.Free())
	}
}

// Several requests for one thing are one waiter, also on hosts that do not watch the pool.
func TestSoleClaimsOfManyHostsAreOneWaiter(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three", "four")
	r.pool("db", 1)
	hosts[0].ask("holder", 1).got()
	for i, h := range hosts {
		h.ask(fmt.Sprint("a", i), 1, sole(1)).waits()
	}
	r.wantWaiters("a0")
	r.pass(4 * time.Second)
	r.wantWaiters("a0")
}
