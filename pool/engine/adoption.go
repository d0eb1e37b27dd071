package engine

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// adopting says how far an instance is with what an earlier process of it has left.
type adopting int

const (
	toAdopt  adopting = iota // earlier writes must be fenced first
	adoptNow                 // it is being read
	adopted                  // it is held on, or ended
)

// adoption takes over what an earlier process of the instance has left.
type adoption struct {
	*loop
	ids    []store.LeaseID
	state  adopting
	pace   pace
	claims []*pool.Claim
}

func newAdoption(l *loop) *adoption { return &adoption{loop: l} }

// done reports whether it has ended. Writes of earlier processes are fenced.
func (a *adoption) done(ctx context.Context, now time.Duration) bool {
	if a.state == toAdopt && a.pace.free(now) {
		a.begin(ctx)
	}
	return a.state == adopted
}

// begin reads what the earlier process has left, if there was one.
func (a *adoption) begin(ctx context.Context) {
	if len(a.ids) == 0 && !a.queue.earlier {
		a.state = adopted
		return
	}
	a.state = adoptNow
	b, keys, before := a.e.cfg.Backend, a.e.keys, a.queue.fencedAt
	var kvs []*mvccpb.KeyValue
	a.e.fetch(ctx, func(ctx context.Context) (err error) {
		if err = endEarlier(ctx, b, keys, a.e.cfg.Host, a.e.cfg.Instance, before, a.ids); err == nil {
			kvs, err = readClaims(ctx, b, keys, a.ids)
		}
		return err
	}, func(err error) {
		if a.pace.answered(err, a.e.now()); err != nil {
			a.e.cfg.Logger.Warn("what an earlier process of this instance has left can't be read", "error", err)
			a.state = toAdopt
			return
		}
		a.state = adopted
		for _, id := range a.ids {
			a.audit.follows(id)
		}
		for _, c := range a.owner.Adopt(kvs, a.e.now()) {
			a.claims = append(a.claims, a.requests.adopt(c))
		}
		a.life.end(func(*pool.Claim) error { return a.life.cause }) // if all have ended meanwhile
	})
}

// wakes returns when it is to be tried again; 0 for never.
func (a *adoption) wakes() time.Duration {
	if a.state == toAdopt {
		return a.pace.after
	}
	return 0
}

// Adopt names leases of an earlier process, whose claims are taken over. It is called before Run.
func (e *Engine) Adopt(ids ...store.LeaseID) { e.adoption.ids = append(e.adoption.ids, ids...) }

// Adopted returns the claims that were taken over.
func (e *Engine) Adopted(ctx context.Context) ([]*pool.Claim, error) {
	return ask(ctx, e, func() []*pool.Claim { return e.adoption.claims })
}
