package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// requestOf is a request for a slot of a pool.
func requestOf(id, name string) *pool.Request {
	r := request(id)
	r.Slots = map[string]int{name: 1}
	return r
}

// Pools in which claims begin to wait while the dispatcher reads another one, and those that it could not read, are read next.
func TestADispatcherReadsPoolAfterPool(t *testing.T) {
	t.Parallel()
	withEngines(t, 3, 1, func(w *bubble) {
		dispatches, waits, holds := w.engines[0], w.engines[1], w.engines[2]
		claim(w.T, holds, requestOf("db", "db"))
		w.ask(dispatches, requestOf("first", "db")).waits()
		failed := false
		w.by[0].Inject(func(c storetest.Call) (f storetest.Fault) {
			if c.Op == storetest.OpRange && strings.HasPrefix(string(c.Range.Key), w.keys.Pools()) {
				f.Delay = 250 * time.Millisecond
				if f.LoseAnswer = !failed; f.LoseAnswer {
					failed, f.Err = true, store.ErrUnavailable
				}
			}
			return f
		})
		var held []*pool.Claim
		var asked []*question
		for _, name := range []string{"x", "y"} {
			spec(w.T, w.b, w.keys, name, 1)
			held = append(held, claim(w.T, holds, requestOf("held-"+name, name)))
			a := w.ask(waits, requestOf("waits-"+name, name))
			a.waits()
			asked = append(asked, a)
		}
		for _, c := range held {
			w.release(holds, c)
		}
		start := time.Now()
		for _, a := range asked {
			a.got()
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("they are served after %v", d)
		}
	})
}

// A claim that has left the wait queue before anyone dispatched leaves no pool pending.
func TestAClaimThatLeavesEarlyLeavesNoPoolPending(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		e := w.engines[0]
		held := claim(w.T, e, request("held"))
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		r := request("leaves")
		r.Wait = time.Hour
		go func() {
			_, err := e.Claim(ctx, r)
			done <- err
		}()
		for w.under(w.keys.DemandsAll("db")) == 0 {
			w.pass(time.Millisecond)
		}
		if cancel(); problem.CodeOf(<-done) != problem.ClaimCanceled {
			w.Error("it was not canceled")
		}
		w.pass(2 * time.Second)
		if n := w.under(w.keys.Pending("")); n > 0 {
			w.Errorf("%d pools are pending", n)
		}
		release(w.T, e, held)
	})
}

// A claim of as many pools as there can be, with several slots of each, is granted in its turn: one compare covers neighboring
// slots.
func TestAClaimOfManySlotsInManyPoolsIsGranted(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		r := request("many")
		r.Slots = map[string]int{}
		for i := range pool.MaxPools {
			name := fmt.Sprint("p", i)
			spec(w.T, w.b, w.keys, name, 9)
			r.Slots[name] = 2
		}
		for _, e := range w.engines {
			release(w.T, e, claim(w.T, e, r))
		}
	})
}
