package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// chosen is a request with an id that its user has chosen.
func chosen(id string) *pool.Request {
	r := request(id)
	r.Chosen = true
	return r
}

func TestAnIDThatAnotherHostHoldsIsInUse(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 3, func(w *bubble) {
		one, two := w.engines[0], w.engines[1]
		for range 3 {
			for i, e := range w.engines {
				c := claim(w.T, e, chosen("a"))
				if c.Keys != 2 {
					w.Errorf("%d keys are on its lease", c.Keys)
				}
				_, err := w.engines[1-i].Claim(w.Context(), chosen("a"))
				if p := problem.Of(err); p == nil || p.Code != problem.IDInUse || !strings.Contains(p.Message, c.Holder.Host+"/i") {
					w.Errorf("%v, want %s, and the holder", err, problem.IDInUse)
				}
				w.release(e, c)
				w.empty() // the id is free on all hosts
			}
		}
		w.release(one, claim(w.T, one, chosen("b")))
		w.release(two, claim(w.T, two, chosen("b")))
	})
}

// Two hosts that ask for one id at the same moment: one of them gets it, also if it had to wait.
func TestAnIDIsHeldOnce(t *testing.T) {
	t.Parallel()
	withEngines(t, 3, 2, func(w *bubble) {
		held := []*pool.Claim{claim(w.T, w.engines[2], request("x")), claim(w.T, w.engines[2], request("y"))}
		a, b := w.ask(w.engines[0], chosen("a")), w.ask(w.engines[1], chosen("a"))
		a.waits()
		b.waits()
		for _, c := range held {
			w.release(w.engines[2], c)
		}
		c := a.got()
		b.refused(problem.IDInUse)
		w.release(w.engines[0], c)
		w.empty()
	})
}

// A claim whose slots are freed by force loses its id with them.
func TestByForceAnIDIsFreeToo(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 2, func(w *bubble) {
		a := claim(w.T, w.engines[0], chosen("a"))
		_, err := w.Revoke(w.Context(), "a", true)
		w.must(err)
		c := claim(w.T, w.engines[1], chosen("a"))
		w.ended(a, problem.ClaimLost)
		w.release(w.engines[0], a)
		w.held(c)
		w.pass(time.Second)
		if w.under(w.keys.ID("")) != 1 {
			w.Error("the id of the second claim is gone")
		}
		w.release(w.engines[1], c)
		w.empty()
	})
}

// An id goes with its claim if the answer to the release is lost, and is put once if that to the grant is.
func TestAnIDWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 2, func(w *bubble) {
		one := w.engines[0]
		w.release(one, claim(w.T, one, request("warm")))
		lose := func(f func()) {
			w.by[0].Inject(func(c storetest.Call) storetest.Fault {
				return storetest.Fault{LoseAnswer: c.Op == storetest.OpTxn && len(c.Txn.Compare) > 1}
			})
			f()
			w.pass(500 * time.Millisecond)
			w.by[0].Inject(nil)
		}
		var q *question
		lose(func() { q = w.ask(one, chosen("a")) })
		a := q.got()
		if w.under(w.keys.ID("")) != 1 {
			w.Error("it has no id")
		}
		lose(func() { go func() { _ = one.Release(w.Context(), a) }() })
		w.pass(5 * time.Second)
		w.empty()
	})
}
