package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// slowTxns delays the transactions of an engine from now on.
func (w *bubble) slowTxns(i int, d time.Duration) {
	w.by[i].Inject(func(c storetest.Call) (f storetest.Fault) {
		if c.Op == storetest.OpTxn {
			f.Delay = d
		}
		return f
	})
}

// A claim that changes hands at the moment at which its request ends is released, also if the request sees neither.
func TestATakeOverThatIsGivenUpHoldsNothing(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		e := w.engines[1]
		r := request("bridge")
		r.Bridge = true
		bridge := w.ask(w.engines[0], r).got()
		w.slowTxns(1, 100*time.Millisecond)
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() {
			c, err := e.TakeOver(ctx, pool.TakeOver{ID: "bridge", Fence: bridge.Fence, Slots: r.Slots})
			if c != nil {
				err = e.Release(w.Context(), c)
			}
			done <- err
		}()
		w.pass(150 * time.Millisecond) // it was read, and its keys are being put
		busy := make(chan struct{})
		e.inbox.put(func() { <-busy })
		w.pass(100 * time.Millisecond)
		cancel()
		synctest.Wait()
		close(busy)
		if err := <-done; err != nil && problem.CodeOf(err) != problem.ClaimCanceled {
			t.Error(err)
		}
		w.pass(time.Second)
		if n := w.under(w.keys.Slots("db")); n > 0 {
			t.Errorf("%d slots are held, and nobody has the claim", n)
		}
	})
}

// A claim that is asked for as another one ends is tried immediately.
func TestAClaimThatIsAskedForAsAnotherOneEndsIsTried(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		e := w.engines[0]
		held := w.ask(w.engines[1], request("held")).got()
		w.slowTxns(0, 50*time.Millisecond)
		hasty := request("x")
		hasty.Wait = 0
		var all []*question
		for _, r := range []*pool.Request{hasty, request("x")} {
			a := &question{w: w, done: make(chan struct{})}
			go func() {
				defer close(a.done)
				a.claim, a.err = e.Claim(w.Context(), r)
			}()
			synctest.Wait()
			all = append(all, a)
		}
		all[0].refused(problem.NoCapacity)
		w.pass(500 * time.Millisecond)
		if n := w.under(w.keys.DemandsAll("db")); n != 1 {
			t.Errorf("%d keys of demands", n)
		}
		w.release(w.engines[1], held)
		w.release(e, all[1].got())
	})
}

// A claim whose dispatcher says that a pool does not exist is refused by what its instance then reads, whatever else that has wait.
func TestAClaimOfAPoolThatIsDeletedIsRefused(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		spec(t, w.b, w.keys, "gone", 1)
		held := w.ask(w.engines[0], request("held")).got()
		other := w.ask(w.engines[1], request("other"))
		both := request("both")
		both.Slots["gone"] = 1
		a := w.ask(w.engines[1], both)
		a.waits()
		var sent atomic.Int64
		w.by[1].Inject(func(c storetest.Call) (f storetest.Fault) {
			if c.Op == storetest.OpTxn {
				f.Delay = time.Millisecond
				sent.Add(1)
			}
			return f
		})
		_, err := registry.Registry{Backend: w.b, Keys: w.keys.Keys}.Delete(w.Context(), "gone", nil)
		w.must(err)
		w.pass(10 * time.Second)
		w.by[1].Inject(nil)
		select {
		case <-a.done:
			a.refused(problem.PoolNotFound)
		default:
			t.Error("it waits")
		}
		if n := sent.Load(); n > 200 {
			t.Errorf("%d transactions", n)
		}
		w.release(w.engines[0], held)
		w.release(w.engines[1], other.got())
		w.pass(5 * time.Second)
		if h, err := ask(w.Context(), w.engines[1], func() hosting { return *w.engines[1].hosting }); err != nil || h.role == 0 || h.state != asleep {
			t.Errorf("its dispatcher does not sleep: %v, role %d, %v", h.state, h.role, err)
		}
	})
}
