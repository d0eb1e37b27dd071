package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
)

// written is the latest revision in which this instance is known to have changed its claims. Only the loop uses it.
type written struct {
	revision int64
	history  uint64 // of etcd, that it is of
}

// at records a revision of a history.
func (w *written) at(revision int64, history uint64) {
	if history != w.history {
		w.revision, w.history = 0, history
	}
	w.revision = max(w.revision, revision)
}

// own returns what the instance knows of its claims.
func (e *Engine) own(ctx context.Context) (list.Own, error) {
	o, err := ask(ctx, e, e.loop.own)
	if err != nil {
		return e.named(), err
	}
	return o, nil
}

// named returns what names the instance.
func (e *Engine) named() list.Own { return list.Own{Host: e.cfg.Host, Instance: e.cfg.Instance} }

// own returns what the loop knows of the claims of the instance.
func (l *loop) own() list.Own {
	o := l.e.named()
	l.written.at(0, l.e.cfg.Backend.History())
	o.Revision, o.Trouble = l.written.revision, l.e.cfg.Leases.Trouble()
	o.Waiting = l.owner.Waiters()
	for _, e := range l.requests.early() {
		o.Waiting = append(o.Waiting, wants(e.request, e.claim.Since()))
	}
	return o
}

// early returns the requests that wait and are not in the wait queue yet, in the order in which they came. Those that wait for
// a place are none.
func (r *requests) early() (all []*entry) {
	for _, e := range r.byID {
		if _, queued := e.claim.Waits(); !queued && e.wantsSlots() {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.asked, b.asked) })
	return all
}

// wantsSlots reports whether a request that waits was not granted, refused or dropped yet, and has its place.
func (e *entry) wantsSlots() bool {
	if e.request.Wait == 0 || e.granted != nil {
		return false
	}
	return e.refusal == nil && !e.dropped && e.request.Place.Available()
}

// Changed has all that is shown from now on be of a revision or later: a caller has changed a pool then.
func (e *Engine) Changed(revision int64) {
	e.Lists.Changed(revision)
	e.specs.forget()
}

// Prospects reports of each request whether the slots that it asks for are free for it: whether it would be granted now, after
// those before it in the list, if its [pool.Place] were free. A request whose claim waits keeps its place in the wait
// queue. Slots of claims that are being released together with other writes count as free. One that is granted already, or whose
// pools do not exist, has no prospects.
func (e *Engine) Prospects(ctx context.Context, asked []*pool.Request) ([]bool, error) {
	type known struct {
		freed   map[string]int
		granted []bool
	}
	k, err := ask(ctx, e, func() known { return known{e.requests.freed(), e.requests.granted(asked)} })
	if err != nil {
		return nil, err
	}
	var rest []*pool.Request
	for i, r := range asked {
		if !k.granted[i] {
			rest = append(rest, r)
		}
	}
	free := make([]bool, len(asked))
	if len(rest) == 0 {
		return free, nil
	}
	all, err := e.Lists.Prospects(ctx, rest, k.freed)
	if err != nil {
		return nil, err
	}
	for i := range free {
		if !k.granted[i] {
			free[i], all = all[0], all[1:]
		}
	}
	return free, nil
}

// freed returns the slots, by pool, of claims that are being released together with other writes.
func (r *requests) freed() map[string]int {
	slots := map[string]int{}
	for c, e := range r.of {
		if c.Combined() {
			for name, n := range e.request.Slots {
				slots[name] += n
			}
		}
	}
	return slots
}

// granted reports of each request whether a claim of its id has slots, and is not being released.
func (r *requests) granted(asked []*pool.Request) []bool {
	granted := make([]bool, len(asked))
	for i, req := range asked {
		e := r.byID[req.ID]
		granted[i] = e != nil && e.holds()
	}
	return granted
}

// Held returns the claims that this instance holds, by id; also those whose validity has ended and whose holder has not
// released them yet.
func (e *Engine) Held(ctx context.Context) ([]*pool.Claim, error) {
	return ask(ctx, e, e.requests.held)
}

func (r *requests) held() (all []*pool.Claim) {
	for _, e := range r.byID {
		if e.holds() {
			all = append(all, e.granted)
		}
	}
	slices.SortFunc(all, func(a, b *pool.Claim) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Lookup returns a claim that this instance holds, nil if it holds none of that id.
func (e *Engine) Lookup(ctx context.Context, id string) (*pool.Claim, error) {
	return ask(ctx, e, func() *pool.Claim {
		if en := e.requests.byID[id]; en != nil && en.holds() {
			return en.granted
		}
		return nil
	})
}

// holds reports whether the claim was granted and its holder has not released it.
func (e *entry) holds() bool { return e.granted != nil && len(e.releases) == 0 && !e.claim.Combined() }
