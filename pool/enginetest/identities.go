package enginetest

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// identities has what the id of a claim is good for.
var identities = []behavior{
	{"requests with one id are one claim", oneID, everywhere},
	{"another request with an id that is held is refused", otherRequest, everywhere},
	{"an id that another host holds is refused and the holder is named", idInUse, everywhere},
	{"a claim that waits with an id that another host holds is refused", idInUseInQueue, everywhere},
	{"an id is held once though two hosts ask for it at the same moment", idAtOnce, standIn},
	{"a claim is explained and revoked by its id alone and by host, instance and id", byID, everywhere},
	{"an id is free on all hosts as soon as its claim is released", idFree, everywhere},
	{"an id that a list shows as free is not refused", knowsList, standIn},
	{"a request whose id is being released is granted after that", successor, standIn},
	{"requests that wait under one id leave one by one", leaveAlone, everywhere},
	{"an owner releases its claim while others send requests with its id", releaseUnderFire, everywhere},
	{"a request whose answer was lost finds its claim when it is sent again", repeated, standIn},
}

func oneID(w world) {
	w.pool("db", 50)
	one := w.host("one")
	var claims [20]*pool.Claim
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() { claims[i] = one.take("same", slots(2)) })
	}
	all.Wait()
	for _, c := range claims {
		w.same("the fence of one of them", c.Fence, claims[0].Fence)
	}
	w.wantUsed("db", 2)
	again := one.ask("same", slots(2))
	again.got()
	again.cancel()
	w.held(claims[0])
	one.release(claims[0])
	w.held() // none
	w.empty()
}

func otherRequest(w world) {
	w.pool("db", 9)
	w.pool("api", 9)
	one := w.host("one")
	a := one.take("a", slots(2))
	one.refuses(problem.IDInUse, "a", slots(3))
	one.refuses(problem.IDInUse, "a", map[string]int{"api": 2})
	one.refuses(problem.IDInUse, "a", slots(2), priority(1))
	one.refuses(problem.IDInUse, "a", slots(2), func(r *pool.Request) { r.Holder.Run = "other" })
	one.refuses(problem.IDInUse, "a", slots(2), func(r *pool.Request) { r.Holder.ClaimedBy = "user:bob" })
	w.held(a)
	w.wantUsed("db", 2)
	w.pause("db", true)
	b := one.queued("b", slots(1))
	one.refuses(problem.IDInUse, "b", slots(2))
	b.still()
}

// chosen has a claim have an id that its user has chosen: only such ids may meet on two hosts.
func chosen(r *pool.Request) { r.Chosen = true }

func idInUse(w world) {
	w.pool("db", 9)
	w.pool("api", 9)
	one, two := w.host("one"), w.host("two")
	one.take("a", slots(2), chosen)
	w.caughtUp()
	for _, need := range []map[string]int{slots(2), slots(1)} {
		if p := two.refuses(problem.IDInUse, "a", need, chosen); !strings.Contains(p.Message, "one/test") {
			w.Errorf("the refusal does not name the holder: %q", p.Message)
		}
	}
	w.wantUsed("db", 2)
}

func idInUseInQueue(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1), chosen)
	first := two.queued("first", slots(1))
	two.ask("a", slots(1), chosen).refused(problem.IDInUse)
	w.held(a)
	first.still()
	one.release(a)
	two.release(first.got())
	w.empty()
}

// slowWrites has what a host writes reach etcd later.
func slowWrites(h *host, by time.Duration) {
	h.fails(storetest.Fault{Delay: by}, txnWrites)
}

func idAtOnce(w world) {
	w.pool("db", 9)
	w.pool("api", 9)
	one, two := w.host("one"), w.host("two")
	one.release(one.take("first", slots(1)))
	two.release(two.take("second", map[string]int{"api": 1}))
	slowWrites(one, 50*time.Millisecond)
	slowWrites(two, 50*time.Millisecond)
	asked := []*asked{one.ask("a", slots(1), chosen), two.ask("a", map[string]int{"api": 1}, chosen)}
	granted := 0
	for _, a := range asked {
		<-a.done
		if a.err == nil {
			granted++
			continue
		}
		w.problem(a.err, problem.IDInUse)
	}
	w.same("claims that were granted", granted, 1)
}

func byID(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("a", slots(1))
	w.caughtUp()
	for _, id := range []string{"a", "one/test/a"} {
		for _, h := range []*host{one, two} {
			y, err := h.Why(w.ctx(), id)
			w.must(err)
			if y.Held == nil || y.Held.Fence != held.Fence || len(y.All) != 1 {
				w.Errorf("on host %s, %s is %+v", h.name, id, y)
			}
		}
	}
	for _, id := range []string{"b", "two/test/a", "one/other/a"} {
		_, err := two.Why(w.ctx(), id)
		w.problem(err, problem.ClaimNotFound)
		_, err = w.Revoke(w.ctx(), id, false)
		w.problem(err, problem.ClaimNotFound)
	}
	r, err := w.Revoke(w.ctx(), "one/test/a", false)
	w.must(err)
	w.same("it is revoked", r, pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: held.Fence})
	w.ended(held, problem.ClaimRevoked)
	one.release(held)
	w.empty()
}

func idFree(w world) {
	w.pool("db", 2)
	one, two := w.host("one"), w.host("two")
	var before *pool.Claim
	for range 6 {
		for _, h := range []*host{one, two} {
			c := h.take("a", slots(2))
			if before != nil && c.Fence <= before.Fence {
				w.Errorf("fence %d after %d", c.Fence, before.Fence)
			}
			before = c
			h.release(c)
		}
	}
	w.empty()
}

func knowsList(w world) {
	w.pool("db", 2)
	one, two := w.host("one"), w.host("two")
	a := two.take("a", slots(1), chosen)
	one.refuses(problem.IDInUse, "a", slots(1), chosen)
	one.by.Freeze()
	two.release(a)
	b := one.ask("a", slots(1), wait(0), chosen)
	w.pass(100 * time.Millisecond)
	one.by.Thaw()
	one.release(b.got())
}

func successor(w world) {
	w.pool("db", 3)
	one := w.host("one")
	a := one.take("a", slots(2))
	slowWrites(one, 500*time.Millisecond)
	released := make(chan error, 1)
	go func() { released <- one.Release(w.ctx(), a) }()
	w.pass(100 * time.Millisecond)
	next := one.ask("a", slots(3), wait(0), priority(7))
	w.must(<-released)
	c := next.got()
	w.wantUsed("db", 3)
	w.held(c)
	one.release(c)
	w.empty()
}

func leaveAlone(w world) {
	w.pool("db", 1)
	one := w.host("one")
	held := one.take("held", slots(1))
	first, second := one.queued("same", slots(1)), one.ask("same", slots(1))
	one.refuses(problem.NoCapacity, "same", slots(1))
	first.hangUp()
	w.becomesQueue("same")
	one.release(held)
	c := second.got()
	w.held(c)
	one.release(c)
	w.empty()
}

func releaseUnderFire(w world) {
	w.pool("db", 9)
	one := w.host("one")
	for i := range 10 {
		id := fmt.Sprint("a", i)
		a := one.take(id, slots(1), func(r *pool.Request) { r.Holder.ClaimedBy = "user:alice" })
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				case <-time.After(time.Millisecond):
				}
				c, err := one.Claim(w.ctx(), request(id, slots(2), wait(0), func(r *pool.Request) { r.Holder.ClaimedBy = "user:mallory" }))
				if err == nil {
					err = one.Release(w.ctx(), c) // the id was free
				}
				if code := problem.CodeOf(err); err != nil && code != problem.IDInUse {
					done <- err
					return
				}
			}
		}()
		<-time.After(5 * time.Millisecond)
		one.release(a)
		if !a.Freed() || a.Err() != nil {
			w.Errorf("it is released: %t, %v", a.Freed(), a.Err())
		}
		close(stop)
		w.must(<-done)
	}
	w.empty()
}

func repeated(w world) {
	w.pool("db", 2)
	one := w.host("one")
	one.release(one.take("first", slots(1)))
	happened := one.failsOnce(storetest.Fault{LoseAnswer: true}, putsTo("db"))
	first := one.ask("a", slots(2))
	w.pass(200 * time.Millisecond)
	if !happened() {
		w.Fatal("nothing was written")
	}
	first.cancel() // its client has no answer
	<-first.done
	again := one.ask("a", slots(2))
	c := again.got()
	w.wantUsed("db", 2)
	w.held(c)
	one.release(c)
	w.empty()
}
