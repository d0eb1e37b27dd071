package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func TestRequestsWithOneIDAreOneClaim(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		one := w.engines[0]
		held := claim(w.T, one, request("held"))
		first, second := w.ask(one, request("a")), w.ask(one, request("a"))
		hasty := request("a")
		hasty.Wait = 0
		w.ask(one, hasty).refused(problem.NoCapacity)
		other := request("a")
		other.Holder.ClaimedBy = "user:mallory"
		w.ask(one, other).refused(problem.IDInUse)
		first.cancel()
		first.refused(problem.ClaimCanceled)
		second.waits()
		w.release(one, held)
		c := second.got()
		if again := claim(w.T, one, request("a")); again != c {
			w.Error("the same request has got another claim")
		}
		w.ask(one, other).refused(problem.IDInUse)
		w.held(c)
		w.release(one, c)
		w.empty()
	})
}

// A request that waits is not refused because one that did not wait has asked for the same claim before.
func TestARequestThatWaitsOutlivesOneThatDoesNot(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		one := w.engines[0]
		held := claim(w.T, one, request("held"))
		hasty := request("a")
		hasty.Wait = 0
		w.by[0].Inject(func(c storetest.Call) storetest.Fault { return storetest.Fault{Delay: 300 * time.Millisecond} })
		first := w.ask(one, hasty)
		first.waits()
		second := w.ask(one, request("a"))
		w.by[0].Inject(nil)
		first.refused(problem.NoCapacity)
		second.waits()
		w.release(one, held)
		w.release(one, second.got())
		w.empty()
	})
}

// A request with the id of a claim that is being released is granted after that, whatever it asks for.
func TestARequestSucceedsAClaimThatIsBeingReleased(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 3, func(w *bubble) {
		one := w.engines[0]
		a := claim(w.T, one, request("a"))
		w.by[0].Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 500 * time.Millisecond} })
		released := make(chan error, 1)
		go func() { released <- one.Release(w.Context(), a) }()
		w.pass(100 * time.Millisecond)
		r := request("a")
		r.Slots, r.Wait, r.Priority = map[string]int{"db": 3}, 0, 7
		next := w.ask(one, r)
		next.waits()
		w.must(<-released)
		w.by[0].Inject(nil)
		c := next.got()
		w.held(c)
		w.release(one, c)
		w.empty()
	})
}

// One that does not wait is refused if the release takes long.
func TestARequestThatDoesNotWaitLosesPatience(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 3, func(w *bubble) {
		one := w.engines[0]
		a := claim(w.T, one, request("a"))
		w.by[0].Down()
		ctx, cancel := context.WithCancel(w.Context())
		go func() { _ = one.Release(ctx, a) }()
		w.pass(100 * time.Millisecond)
		r := request("a")
		r.Wait = 0
		next := w.ask(one, r)
		w.pass(successorPatience - time.Second)
		next.waits()
		w.pass(2 * time.Second)
		next.refused(problem.IDInUse)
		cancel()
		w.by[0].Up()
		w.pass(10 * time.Second)
		w.empty()
	})
}

// A claim whose client has gone keeps its place for 10 s.
func TestAPlaceIsKeptForAClientThatComesBack(t *testing.T) {
	t.Parallel()
	for away, first := range map[time.Duration]string{keepPlace - time.Second: "a", keepPlace + time.Second: "b"} {
		withEngines(t, 2, 1, func(w *bubble) {
			one, two := w.engines[0], w.engines[1]
			long := func(id string) *pool.Request {
				r := request(id)
				r.Wait = time.Hour
				return r
			}
			held := claim(w.T, one, request("held"))
			a, b := w.ask(one, long("a")), w.ask(two, long("b"))
			a.cancel()
			a.refused(problem.ClaimCanceled)
			w.pass(away)
			a = w.ask(one, long("a"))
			w.release(one, held)
			w.pass(time.Second)
			waits := b
			if first == "b" {
				waits = a
			}
			waits.waits()
			if first == "b" {
				w.release(two, b.got())
				w.release(one, a.got())
			} else {
				w.release(one, a.got())
				w.release(two, b.got())
			}
			w.empty()
		})
	}
}

// An identity has at most half of the places that can be kept, and leaves nothing when they are forgotten.
func TestAnIdentityLeavesPlacesToOthers(t *testing.T) {
	p := places{}
	for i := range 2 * maxPlaces {
		p.add(place{request: &pool.Request{ID: fmt.Sprint(i), Holder: pool.Holder{ClaimedBy: "a"}}, until: keepPlace})
	}
	p.add(place{request: &pool.Request{ID: "b", Holder: pool.Holder{ClaimedBy: "b"}}, until: keepPlace})
	if len(p["a"]) != maxPlaces/2 || len(p["b"]) != 1 {
		t.Errorf("%d and %d places", len(p["a"]), len(p["b"]))
	}
	if p.age(keepPlace); len(p) > 0 {
		t.Errorf("%d have places", len(p))
	}
}

func TestAWithdrawnClaimLeavesTheQueue(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		one := w.engines[0]
		held := claim(w.T, one, request("held"))
		a := w.ask(one, request("a"))
		one.Withdraw("a")
		a.refused(problem.ClaimCanceled)
		one.Withdraw("unknown")
		one.Withdraw("held")
		w.pass(time.Second)
		w.held(held)
		w.release(one, held)
		w.empty()
	})
}

// Who asks for a claim of the id of another's, whose client has gone for a moment, does not cost that its place.
func TestAPlaceIsKeptFromOthersThatUseItsID(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		one := w.engines[0]
		held := claim(w.T, one, request("held"))
		first, later := w.ask(one, request("a")), w.ask(one, request("later"))
		first.cancel()
		first.refused(problem.ClaimCanceled)
		w.pass(time.Second)
		other := request("a")
		other.Holder.ClaimedBy = "user:mallory"
		waits := w.ask(one, other)
		waits.cancel()
		waits.refused(problem.ClaimCanceled)
		w.pass(time.Second)
		again := w.ask(one, request("a"))
		w.release(one, held)
		w.pass(time.Second)
		later.waits()
		w.release(one, again.got())
		w.release(one, later.got())
		w.empty()
	})
}
