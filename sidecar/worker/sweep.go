package worker

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// sweepEvery is how often what is known here is held against etcd.
	sweepEvery = 5 * time.Second
	// sweepTimeout bounds a sweep.
	sweepTimeout = 3 * time.Second
)

// doubt is an instance of which nobody knows whether it was taken, or still will be.
type doubt struct {
	p   *step.Published
	dir string
	// room is what the key of its executor would be on.
	room *instance.KeyReservation
	// seat is the place that it has while that is so.
	seat *pool.Place
}

func (w *Worker) doubted(id store.StepID) bool {
	return slices.ContainsFunc(w.doubts, func(d *doubt) bool { return d.p.ID() == id })
}

// sweep settles what is in doubt, and gives up what is on a lease of this worker and
// that nobody here knows.
func (w *Worker) sweep(ctx context.Context) {
	if w.sweeping {
		return
	}
	w.sweeping = true
	doubts := slices.Clone(w.doubts)
	known := map[store.StepID]bool{}
	for id := range w.active {
		known[id] = true
	}
	for id := range w.taking {
		known[id] = true
	}
	for _, d := range doubts {
		known[d.p.ID()] = true
	}
	w.beside(func() {
		try, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		for _, d := range doubts {
			w.settle(try, d)
		}
		w.strange(try, known)
		w.tell(func() { w.sweeping = false })
	})
}

// settle finds out what has become of an instance in doubt.
func (w *Worker) settle(ctx context.Context, d *doubt) {
	i, err := w.steps.Get(ctx, d.p.ID())
	if err != nil {
		return
	}
	var t *step.Taken
	var unread error
	switch {
	case i.Status == step.Scheduled && i.Revision == d.p.Revision && d.room.Context().Err() == nil:
		// It may still come: of two that take the same publication only one can happen.
		if t, unread = w.steps.Take(ctx, d.p, w.by, d.room.Lease()); t == nil {
			return
		}
	case i.Status == step.Running && i.Attempt == d.p.Attempt+1 && *i.Executor == w.by:
		t = &step.Taken{Instance: *i, Ready: *d.p}
		if t.Work, err = w.steps.Work(ctx, i.StepID); err != nil {
			return
		}
	}
	w.tell(func() {
		at := slices.Index(w.doubts, d)
		if at < 0 {
			return
		}
		w.doubts = slices.Delete(w.doubts, at, at+1)
		if t == nil {
			d.room.Release()
			d.seat.Give()
			w.folders.remove(d.dir)
			return
		}
		w.log.Info("an instance was taken of which the answer was lost", "run", t.Run, "step", t.Text())
		e := &execution{w: w, t: t, dir: d.dir, place: d.room, give: d.room.Release, seat: d.seat}
		w.active[t.StepID] = e
		w.metrics.count.Store(int64(len(w.active)))
		switch {
		case problem.CodeOf(unread) == problem.CorruptValue:
			e.fail(unread)
		case unread != nil || w.idle():
			e.handBack()
		default:
			e.start()
		}
	})
}

// strange gives up the keys of executors on leases of this worker that it does not know:
// they were put for a process before, too late for it to be taken over.
func (w *Worker) strange(ctx context.Context, known map[store.StepID]bool) {
	all, err := store.ReadAll(ctx, w.steps.Backend, w.keys.Active(w.by.Host))
	if err != nil {
		return
	}
	before := w.strangers
	w.strangers = map[store.StepID]int64{}
	for _, kv := range all.KVs {
		_, id, err := w.keys.ParseActive(string(kv.Key))
		if err != nil || id.Step == "" || known[id] || !w.cfg.Client.Renews(store.LeaseID(kv.Lease)) {
			continue
		}
		i, err := w.steps.Get(ctx, id)
		if err != nil || i.Status == step.Running && (i.Revision != kv.ModRevision || !mine(i, w.by)) {
			continue
		}
		// One that was taken a moment ago may not be known yet.
		if w.strangers[id] = kv.ModRevision; before[id] == kv.ModRevision {
			w.log.Warn("nobody here knows a step instance: it is taken to be lost", "run", id.Run, "step", id.Text())
			_, _ = store.Commit(ctx, w.steps.Backend, []*pb.Compare{store.ModEquals(string(kv.Key), kv.ModRevision)}, store.Delete(string(kv.Key)))
		}
	}
}

func mine(i *step.Instance, by run.Executor) bool { return i.Executor != nil && *i.Executor == by }
