package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxUnpublished bounds the claims whose reasons are being read for an event. More are published with what their owner knows.
	maxUnpublished = 128
	// reasonTimeout bounds reading why a claim waits.
	reasonTimeout = time.Second
)

// unpublished is a claim that waits, and that was not published yet.
type unpublished struct {
	list.OwnDemand
	known string // the reason as far as its owner knows it
}

// waitings publishes that claims wait, each once and before anything else of it is published: when the reason was read, or
// when the claim is granted or ends before. Only the loop uses it.
type waitings struct {
	e      *Engine
	broker *broker
	not    map[*entry]unpublished // published yet
	fresh  []*entry               // whose reasons are not being read yet
	busy   bool
}

func newWaitings(e *Engine, b *broker) *waitings {
	return &waitings{e: e, broker: b, not: map[*entry]unpublished{}}
}

// add publishes soon that a claim waits, if anyone wants to know.
func (w *waitings) add(e *entry, why owner.Why) {
	d, ok := e.claim.Waits()
	if !ok || !w.broker.wants(e.request) {
		return
	}
	w.not[e] = unpublished{d, knownReason(d.Pending, why)}
	if max(len(w.not), len(w.fresh)) > maxUnpublished {
		w.publish(e, w.not[e].known)
		return
	}
	w.fresh = append(w.fresh, e)
}

// flush publishes that a claim has waited, if that was not published yet.
func (w *waitings) flush(e *entry) {
	if is, ok := w.not[e]; ok {
		w.publish(e, is.known)
	}
}

func (w *waitings) publish(e *entry, reason string) {
	delete(w.not, e)
	w.broker.publish(pool.ClaimWaiting, e.request, reason)
}

// act reads the reasons of claims: those that began to wait while others were read, together.
func (w *waitings) act(ctx context.Context) {
	if w.busy || len(w.fresh) == 0 {
		return
	}
	w.busy = true
	all, reasons := w.fresh, make([]string, len(w.fresh))
	demands := make([]list.OwnDemand, len(all))
	for i, e := range all {
		demands[i] = w.not[e].OwnDemand // nothing is read of those that are published
	}
	w.fresh = nil
	w.e.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
		defer cancel()
		for i := range all {
			if len(demands[i].Pools) == 0 {
				continue
			}
			if r, err := w.e.Reason(ctx, demands[i]); err == nil {
				reasons[i] = r.Text
			}
		}
		w.e.inbox.put(func() { w.read(all, reasons) })
	})
}

// read publishes claims with their reasons, empty where none could be read.
func (w *waitings) read(all []*entry, reasons []string) {
	w.busy = false
	for i, e := range all {
		is, ok := w.not[e]
		switch {
		case !ok:
		case reasons[i] == "":
			w.publish(e, is.known)
		default:
			w.publish(e, reasons[i])
		}
	}
}

// knownReason says why a claim waits, as far as its owner knows that.
func knownReason(short []string, why owner.Why) string {
	switch {
	case len(short) == 0:
	case why == owner.Full && len(short) == 1:
		return fmt.Sprintf("pool '%s' full", short[0])
	case why == owner.Full:
		return "pools full: '" + strings.Join(short, "', '") + "'"
	case why == owner.Paused, why == owner.Closed:
		return fmt.Sprintf("pool '%s' is %s", short[0], why)
	}
	return "waiting its turn"
}

// reason reads why a claim waits. It is false if that is not known.
func (e *Engine) reason(ctx context.Context, d list.OwnDemand) (pool.Reason, bool) {
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	r, err := e.Reason(ctx, d)
	return r, err == nil
}

// errSilent refuses a claim whose wait has ended while etcd was silent.
var errSilent = problem.New(problem.EtcdUnavailable, "the pools were not read from etcd in time; nothing was claimed")

// timedOut returns the error for a claim that was not granted in time: what it waits for.
func (e *Engine) timedOut(ctx context.Context, c *owner.Claim, waited time.Duration) error {
	if err := e.Trouble(); err != nil {
		return err
	}
	w, err := ask(ctx, e, func() list.OwnDemand {
		if en := e.requests.byID[c.Request().ID]; en != nil { // another request may have asked for it
			if w, ok := en.claim.Waits(); ok {
				return w
			}
		}
		return wants(c.Request(), time.Now())
	})
	if err == nil {
		if r, known := e.reason(ctx, w); known {
			return problem.New(problem.ClaimTimeout, "timed out after %s: %s", waited, r.Text).WithDetail(r)
		}
	}
	if e.contact.age() >= store.StaleAfter {
		return errSilent
	}
	return problem.New(problem.ClaimTimeout, "timed out after %s: waiting its turn", waited)
}

// wants returns a request as it would wait.
func wants(r *pool.Request, since time.Time) list.OwnDemand {
	d := wire.Demand{Claim: r.ID, Pools: r.Slots, Priority: r.Priority, Sole: r.Sole, Since: wire.Time(since), Holder: r.Holder}
	if r.Since > 0 {
		d.Stamp = &wire.Stamp{Revision: r.Since}
	}
	return list.OwnDemand{Demand: d}
}

// explained returns the refusal of a claim that does not wait with what is in its way, if that is known.
func (e *Engine) explained(ctx context.Context, r *pool.Request, refusal error) error {
	if r.Wait > 0 || problem.CodeOf(refusal) != problem.NoCapacity {
		return refusal
	}
	why, known := e.reason(ctx, wants(r, time.Now()))
	if !known {
		return refusal
	}
	if len(why.Pools) == 0 && why.Position <= 1 { // what was read is older than the refusal
		why.Text = problem.Of(refusal).Message
	}
	return problem.New(problem.NoCapacity, "%s", why.Text).WithDetail(why)
}
