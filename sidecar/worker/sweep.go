package worker

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// sweepEvery is how often the known instances are compared with etcd.
	sweepEvery = 5 * time.Second
	// sweepTimeout bounds a sweep.
	sweepTimeout = 3 * time.Second
)

// unresolved is an instance whose taking has an unknown outcome.
type unresolved struct {
	p   *step.Published
	dir string
	// reservation is for the key of its executor.
	reservation *instance.KeyReservation
	// seat is the place that it occupies until it is resolved.
	seat *pool.Place
}

func (w *Worker) isUnresolved(id store.StepID) bool {
	return slices.ContainsFunc(w.unresolved, func(d *unresolved) bool { return d.p.ID() == id })
}

// sweep resolves unknown outcomes, and deletes orphaned keys on the leases of this worker.
func (w *Worker) sweep(ctx context.Context) {
	if w.sweeping {
		return
	}
	w.sweeping = true
	pending := slices.Clone(w.unresolved)
	known := map[store.StepID]bool{}
	for id := range w.active {
		known[id] = true
	}
	for id := range w.taking {
		known[id] = true
	}
	for _, d := range pending {
		known[d.p.ID()] = true
	}
	w.async(func() {
		try, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		for _, d := range pending {
			w.resolve(try, d)
		}
		w.releaseOrphans(try, known)
		w.post(func() { w.sweeping = false })
	})
}

// resolve finds out whether an instance was taken.
func (w *Worker) resolve(ctx context.Context, d *unresolved) {
	i, err := w.steps.Get(ctx, d.p.ID())
	if err != nil {
		return
	}
	var t *step.Taken
	var unread error
	switch {
	case i.Status == step.Scheduled && i.Revision == d.p.Revision && d.reservation.Context().Err() == nil:
		// The earlier attempt may still commit. Only one of the two can.
		if t, unread = w.steps.Take(ctx, d.p, w.by, d.reservation.Lease()); t == nil {
			return
		}
	case i.Status == step.Running && i.Attempt == d.p.Attempt+1 && w.by.Same(i.Executor):
		t = &step.Taken{Instance: *i, Ready: *d.p}
		if unread = w.steps.Verify(ctx, t); unread != nil && mismatchOf(unread) == nil && problem.CodeOf(unread) != problem.CorruptValue {
			return
		}
	}
	w.post(func() {
		at := slices.Index(w.unresolved, d)
		if at < 0 {
			return
		}
		w.unresolved = slices.Delete(w.unresolved, at, at+1)
		if t == nil {
			d.reservation.Release()
			d.seat.Give()
			w.folders.remove(d.dir)
			return
		}
		w.log.Info("an instance was taken although the response was lost", "run", t.Run, "step", t.Text())
		e := &execution{w: w, t: t, dir: d.dir, place: d.reservation, give: d.reservation.Release, seat: d.seat}
		w.active[t.StepID] = e
		w.metrics.count.Store(int64(len(w.active)))
		switch {
		case e.returnsMismatch(unread):
		case problem.CodeOf(unread) == problem.CorruptValue:
			e.fail(unread)
		case unread != nil || w.idle():
			e.handBack()
		default:
			e.start()
		}
	})
}

// releaseOrphans deletes the executor keys on leases of this worker that it does not know:
// an earlier process put them too late to be taken over.
func (w *Worker) releaseOrphans(ctx context.Context, known map[store.StepID]bool) {
	all, err := store.ReadAll(ctx, w.steps.Backend, w.keys.Active(w.by.Host))
	if err != nil {
		return
	}
	before := w.orphans
	w.orphans = map[store.StepID]int64{}
	for _, kv := range all.KVs {
		_, id, err := w.keys.ParseActive(string(kv.Key))
		if err != nil || id.Step == "" || known[id] || !w.cfg.Client.Renews(store.LeaseID(kv.Lease)) {
			continue
		}
		i, err := w.steps.Get(ctx, id)
		if err != nil || i.Status == step.Running && (i.Revision != kv.ModRevision || !w.by.Same(i.Executor)) {
			continue
		}
		// A new one may not be known yet: it must be seen by two sweeps.
		if w.orphans[id] = kv.ModRevision; before[id] == kv.ModRevision {
			w.log.Warn("orphaned step instance: it is reported as lost", "run", id.Run, "step", id.Text())
			_, _ = store.Commit(ctx, w.steps.Backend, []*pb.Compare{store.ModEquals(string(kv.Key), kv.ModRevision)}, store.Delete(string(kv.Key)))
		}
	}
}
