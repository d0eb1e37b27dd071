package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// scraped returns what engines export, by series; of histograms their counts.
func (w *bubble) scraped(engines ...*Engine) map[string]float64 {
	w.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, e := range engines {
		w.must(reg.Register(e))
	}
	families, err := reg.Gather()
	w.must(err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "berth_")
			for _, l := range m.GetLabel() {
				if l.GetName() != "kind" {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			all[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// exports checks what an engine exports. Series that are not in want are not checked.
func (w *bubble) exports(e *Engine, want map[string]float64) {
	w.Helper()
	got := w.scraped(e)
	for name, n := range want {
		if is, ok := got[name]; is != n || !ok && n > 0 {
			w.Errorf("%s/%s: %s is %v, want %v", e.cfg.Host, e.cfg.Instance, name, is, n)
		}
	}
}

func TestMetricsOfClaims(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		one, two := w.engines[0], w.engines[1]
		first := w.ask(two, request("remembered")).got() // it remembers that the number is free
		w.release(two, first)
		held := w.ask(one, request("held")).got()
		second := w.ask(two, request("second"))
		second.waits()
		third := w.ask(one, request("third"))
		third.waits()
		many := request("many")
		many.Slots = map[string]int{"db": 2}
		w.ask(one, many).refused(problem.ExceedsLimit)
		now := request("now")
		now.Wait = 0
		w.ask(one, now).refused(problem.NoCapacity)
		w.exports(two, map[string]float64{
			"claims_granted_total how=direct": 1, "claim_conflicts_total how=direct": 1, "claims_queued_total why=full": 1,
			"claims_waiting pool=db": 1, "claims_held pool=db": 0, "claim_wait_seconds": 1,
			"dispatcher_active": 1, "dispatcher_demands": 2, "dispatcher_pending_pools": 1, "dispatcher_takeovers_total why=vacant": 1,
			"claim_batches_total of=queue": 2, "claim_batches_outcome_unknown_total of=queue": 0,
		})
		w.exports(one, map[string]float64{
			"claims_granted_total how=direct": 1, "claim_conflicts_total how=direct": 0, "claims_queued_total why=pending": 1,
			"claims_waiting pool=db": 1, "claims_held pool=db": 1, "dispatcher_active": 0, "dispatcher_demands": 0,
			"claims_refused_total reason=exceeds_limit": 1, "claims_refused_total reason=no_capacity": 1,
		})
		w.release(one, held)
		w.release(two, second.got())
		one.LeaseLost(third.got().Lease, context.DeadlineExceeded)
		w.pass(time.Second)
		w.exports(two, map[string]float64{
			"claims_granted_total how=offered": 1, "dispatcher_offers_total": 2, "dispatcher_offers_ended_total how=committed": 2,
			"dispatcher_offers_ended_total how=declined": 0, "dispatcher_offers_ended_total how=withdrawn": 0,
			"dispatcher_demands": 0, "dispatcher_pending_pools": 0,
		})
		w.exports(one, map[string]float64{
			"claims_granted_total how=offered": 1, "claims_lost_total reason=claim_lost": 1, "claims_held pool=db": 1, "claim_wait_seconds": 2,
		})
		w.release(one, third.got())
		if got := w.scraped(one); got["claim_batch_size"] != got["claim_batches_total of=claims"] {
			t.Errorf("%v sizes of %v transactions", got["claim_batch_size"], got["claim_batches_total of=claims"])
		}
	})
}

func TestWhyClaimsAreQueued(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		e := w.engines[0]
		for name, spec := range map[string]pool.Spec{"paused": {Limit: 1, Paused: true}, "closed": {Limit: pool.Closed}} {
			spec.LeaseDuration = time.Minute
			_, err := store.Commit(w.Context(), w.b, nil, store.Put(w.keys.Spec(name), wire.EncodeSpec(spec, 0), 0))
			w.must(err)
			w.ask(e, requestOf(name, name)).waits()
		}
		w.exports(e, map[string]float64{"claims_queued_total why=paused": 1, "claims_queued_total why=closed": 1, "claims_queued_total why=full": 0})
	})
}

// Offers to an instance that is silent are counted as such.
func TestMetricsOfASilentInstance(t *testing.T) {
	withEngines(t, 3, 1, func(w *bubble) {
		held := w.ask(w.engines[0], request("held")).got()
		own := w.ask(w.engines[0], request("own"))
		own.waits()
		w.ask(w.engines[1], request("silent")).waits()
		last := w.ask(w.engines[2], request("last"))
		last.waits()
		w.by[1].Inject(func(c storetest.Call) storetest.Fault { return storetest.Fault{Drop: c.Op == storetest.OpTxn} })
		w.release(w.engines[0], held)
		w.release(w.engines[0], own.got())
		w.release(w.engines[2], last.got())
		w.exports(w.engines[0], map[string]float64{
			"dispatcher_active": 1, "dispatcher_silent_total": 1, "dispatcher_offers_total": 3,
			"dispatcher_offers_ended_total how=committed": 2, "dispatcher_offers_ended_total how=withdrawn": 1,
		})
	})
}

// A coordinator has two engines in one registry: they differ by the kind of process, and one counts the claims.
func TestTwoEnginesInOneRegistry(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		w.startOn("host-1", wire.Coordinator, nil)
		w.ask(w.engines[0], request("a")).got()
		w.ask(w.engines[1], request("b")).waits()
		got := w.scraped(w.engines...)
		if got["dispatcher_active"] != 1 || got["claims_held pool=db"] != 1 || got["claims_queued_total why=full"] != 0 {
			t.Errorf("%v", got)
		}
	})
}

func TestAnEngineThatDoesNotRunExportsNothing(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		e := New(w.engines[0].cfg)
		if got := w.scraped(e); len(got) > 0 {
			t.Errorf("%v", got)
		}
		close(e.stopped)
	})
}
