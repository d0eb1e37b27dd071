package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/owner"
)

const (
	// auditEvery is how often the keys on the leases of claims are compared with the claims.
	auditEvery = 10 * time.Second
)

// audit compares the claims of the instance with the keys on its leases: a claim whose keys are gone ends, and slots that
// belong to no claim are freed.
type audit struct {
	*loop
	ids  map[store.LeaseID]bool // leases that have claims, or had
	pace pace
	at   time.Duration // of the next one
	held []*owner.Claim
	// whole is set after a restore of etcd, until all that is held was read: nothing is released before.
	whole bool
	// asked wait for an audit that begins from now on, those in begun for the end of the present one, and those in freeing until
	// what it has found is free.
	asked, begun, freeing []chan<- struct{}
}

func newAudit(l *loop) *audit { return &audit{loop: l, ids: map[store.LeaseID]bool{}, at: auditEvery} }

// follows has the keys on a lease compared from now on.
func (a *audit) follows(id store.LeaseID) { a.ids[id] = true }

// want has an audit made now; done is closed when what it has found is free.
func (a *audit) want(done chan<- struct{}) {
	a.asked, a.at = append(a.asked, done), a.e.now()
}

// restored has an audit of all that is held made now.
func (a *audit) restored() { a.whole, a.at = true, a.e.now() }

// act begins an audit if it is time.
func (a *audit) act(ctx context.Context, now time.Duration) {
	if len(a.freeing) > 0 && a.owner.Orphans() == 0 {
		for _, done := range a.freeing {
			close(done)
		}
		a.freeing = nil
	}
	if a.pace.busy || now < a.at || !a.prepared {
		return
	}
	a.pace.begin()
	a.begun, a.asked = append(a.begun, a.asked...), nil
	a.held = a.requests.withSlots()
	ids := slices.Collect(maps.Keys(a.ids))
	var keys []string
	var gone []store.LeaseID
	a.e.fetch(ctx, func(ctx context.Context) (err error) {
		keys, gone, err = attached(ctx, a.e.cfg.Backend, ids)
		return err
	}, func(err error) {
		if err != nil {
			a.end(err)
			return
		}
		a.listed(ctx, keys, gone)
	})
}

// listed reads the keys of which it is not known what they are.
func (a *audit) listed(ctx context.Context, keys []string, gone []store.LeaseID) {
	for _, id := range gone {
		delete(a.ids, id)
	}
	unmatched := a.owner.Unmatched(keys, a.all(), a.held, a.whole)
	if len(unmatched) == 0 {
		a.end(nil)
		return
	}
	var read map[string]*mvccpb.KeyValue
	a.e.fetch(ctx, func(ctx context.Context) (err error) {
		read, err = readKeys(ctx, a.e.cfg.Backend, unmatched)
		return err
	}, func(err error) {
		if err == nil {
			a.owner.Audit(read, a.all(), a.held, func(id store.LeaseID) bool { return a.ids[id] }, a.e.now())
		}
		a.end(err)
	})
}

// end ends an audit.
func (a *audit) end(err error) {
	now := a.e.now()
	a.held = nil
	if a.pace.answered(err, now); err != nil {
		a.at = a.pace.after
		return
	}
	a.at, a.whole = now+auditEvery, false
	a.freeing, a.begun = append(a.freeing, a.begun...), nil
	if len(a.asked) > 0 {
		a.at = now
	}
}

// all returns all claims of the instance.
func (a *audit) all() []*owner.Claim { return slices.Collect(maps.Keys(a.requests.of)) }

// wakes returns when the next one is due.
func (a *audit) wakes() time.Duration {
	if a.pace.busy {
		return 0
	}
	return a.at
}

// Reconcile frees slots on this instance's leases that belong to none of its claims, as the engine does by itself, and returns
// when that is done.
func (e *Engine) Reconcile(ctx context.Context) error {
	_, err := askLater(ctx, e, e.audit.want)
	return err
}
