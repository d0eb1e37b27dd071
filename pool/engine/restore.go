package engine

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// rememberFor is for how long what is remembered of pools counts without an answer of etcd.
const rememberFor = 4 * time.Second

// restore notices that etcd was restored, and how long it has not answered.
type restore struct {
	*loop
	cluster uint64 // that all that is known is of, and all that is sent is for; 0 before the first answer
	history uint64
	cleared bool // the memory is empty, and etcd has not answered since
}

func newRestore(l *loop) *restore { return &restore{loop: l, history: l.e.cfg.Backend.History()} }

// look forgets what does not count any longer. If another cluster answers meanwhile, nothing that is sent now counts there, and
// the next look sees another history.
func (r *restore) look(ctx context.Context) {
	r.cluster, _ = r.e.cfg.Backend.Cluster()
	if h := r.e.cfg.Backend.History(); h != r.history {
		r.history = h
		r.begin(ctx)
	}
	if gap := r.e.contact.gap(rememberFor); gap && !r.cleared {
		r.owner.Forget()
		r.cleared = true
	} else if !gap {
		r.cleared = false
	}
}

// begin has all that is known be of the history that etcd has now. Claims are judged by what is there of them.
func (r *restore) begin(ctx context.Context) {
	r.e.cfg.Logger.Warn("etcd was restored: this instance compares what it holds with what etcd has")
	r.owner.Restored()
	r.polls.succession.Forget()
	r.hosting.end()
	r.audit.restored()
	r.follows.reopen()
	r.polls.soon()
	claims := slices.Collect(maps.Keys(r.audit.ids))
	r.e.tasks.Go(func() { endRestored(ctx, r.e, claims) })
}

// endRestored ends what a snapshot has brought back of the wait queue, but for the leases of claims. Right after a restore etcd may
// not answer: it tries again until it has, or etcd is restored once more.
func endRestored(ctx context.Context, e *Engine, claims []store.LeaseID) {
	b, keys := e.cfg.Backend, e.keys
	history := b.History()
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := endEarlier(ctx, b, keys, e.cfg.Host, e.cfg.Instance, math.MaxInt64, claims)
		if err == nil || history != b.History() {
			return
		}
		e.cfg.Logger.Debug("demands that a restore has brought back could not be ended yet", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// busy reports whether not everything was read since etcd was restored.
func (r *restore) busy() bool {
	return r.history != r.e.cfg.Backend.History() || r.audit.whole || r.owner.Orphans() > 0 || !r.prepared
}

// Restoring reports whether etcd was restored, and the engine has not compared its claims with it since.
func (e *Engine) Restoring(ctx context.Context) (bool, error) { return ask(ctx, e, e.restore.busy) }
