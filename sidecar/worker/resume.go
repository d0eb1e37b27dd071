package worker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// resumeTimeout bounds the look at what an earlier process has left.
const resumeTimeout = 20 * time.Second

// resume takes over what an earlier process of this worker has left: instances whose
// keys are there still, with their commands, if these were begun. What is left of
// others is stopped and removed.
func (w *Worker) resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	left, err := w.folders.left()
	if err != nil {
		return err
	}
	byID := map[store.StepID]string{}
	for dir, p := range left {
		id := p.ID()
		if other, ok := byID[id]; !ok || left[other].Revision < p.Revision {
			byID[id] = dir
		}
	}
	claims, err := w.claimsLeft(ctx)
	if err != nil {
		return err
	}
	for _, room := range w.cfg.Client.AdoptedKeys() {
		_, id, err := w.keys.ParseActive(room.Adopted().Key)
		if err != nil {
			room.Release()
			continue
		}
		dir := byID[id]
		e, err := w.resumeOne(ctx, id, room, dir, left[dir].Published)
		switch {
		case err != nil:
			return err
		case e == nil:
			room.Release()
			continue
		}
		of := claimOf{room.Adopted().Revision, id.Run, id.Text()}
		if cl := claims[of]; cl != nil {
			delete(claims, of)
			e.place, e.give = cl, func() {
				w.release(cl)
				room.Release()
			}
		}
		slots := left[dir].slots
		delete(left, dir)
		w.active[id] = e
		_, holds := e.place.(*instance.Claim)
		w.reopen(e, slots && !holds)
	}
	w.metrics.count.Store(int64(len(w.active)))
	for _, cl := range claims {
		w.release(cl)
	}
	for dir, p := range left {
		w.clear(dir, p.Published)
	}
	return nil
}

// claimOf names the claim of an attempt. The fence alone does not: instances that are
// taken together have the same.
type claimOf struct {
	fence     int64
	run, step string
}

// claimsLeft are the claims of instances that were taken over.
func (w *Worker) claimsLeft(ctx context.Context) (map[claimOf]*instance.Claim, error) {
	held, err := w.cfg.Client.Held(ctx)
	if err != nil {
		return nil, err
	}
	claims := map[claimOf]*instance.Claim{}
	for _, cl := range held {
		if cl.Bind() == stepBind {
			claims[claimOf{cl.Fence(), cl.Holder.Run, cl.Holder.Step}] = cl
		}
	}
	return claims, nil
}

// resumeOne takes over one instance; nil if it is no longer this worker's, or nobody
// knows what it was published as.
func (w *Worker) resumeOne(ctx context.Context, id store.StepID, room *instance.KeyReservation, dir string, p *step.Published) (*execution, error) {
	i, err := w.steps.Get(ctx, id)
	if err != nil {
		if code := problem.CodeOf(err); code == problem.StepNotFound || code == problem.CorruptValue {
			return nil, nil
		}
		return nil, err
	}
	if p == nil || i.Status != step.Running || i.Revision != room.Adopted().Revision || !mine(i, w.by) {
		return nil, nil
	}
	work, err := w.steps.Work(ctx, id)
	if err != nil {
		return nil, err
	}
	seat := w.places.New()
	seat.Force()
	return &execution{
		w: w, t: &step.Taken{Instance: *i, Work: work, Ready: *p}, dir: dir, place: room, give: room.Release, seat: seat,
	}, nil
}

// reopen finds the command of an instance that was taken over, or begins it if it was
// not begun. One whose slots are gone is stopped, or handed back. That it can't be looked at now, as without descriptors, is no sign that it
// has ended: it is tried until the instance is lost.
func (w *Worker) reopen(e *execution, bare bool) {
	e.hook()
	w.beside(func() {
		for {
			job, err := w.cfg.Runner.Open(filepath.Join(e.dir, jobFolder), e.t)
			if err == nil {
				w.tell(func() { w.found(e, job, bare) })
				return
			}
			w.log.Warn("a step instance can't be found again, trying again", "run", e.t.Run, "step", e.t.Text(), "error", err)
			select {
			case <-time.After(finishPause):
			case <-e.place.Context().Done():
				w.tell(func() { w.drop(e) })
				return
			case <-w.left:
				return
			}
		}
	})
}

// found goes on with an instance that was taken over.
func (w *Worker) found(e *execution, job Job, bare bool) {
	switch {
	case bare && job == nil:
		e.handBack()
		return
	case bare:
		e.began(job)
		e.stop(byTrust, "its slots are gone")
		return
	case job == nil:
		e.unhook()
		e.start()
		return
	}
	w.log.Info("found a step instance again", "run", e.t.Run, "step", e.t.Text())
	e.begun.at = e.t.StartedAt
	e.began(job)
	e.tellStart() // the process before may not have come to it
	e.look()
}

// clear stops what may be left of an instance that is not this worker's any more, and
// removes its folder.
func (w *Worker) clear(dir string, p *step.Published) {
	id := p.ID()
	w.beside(func() {
		job, err := w.cfg.Runner.Open(filepath.Join(dir, jobFolder), &step.Taken{Instance: step.Instance{StepID: id}, Ready: *p})
		if err != nil {
			w.log.Warn("what is left of a step instance can't be found", "run", id.Run, "step", id.Text(), "error", err)
			return // the next process looks again
		}
		if job != nil {
			job.Stop("it is lost to its worker")
			select {
			case <-job.Done():
			case <-w.left:
				job.Close()
				return
			}
			job.Close()
			w.keepOutput(p, job)
		}
		w.folders.remove(dir)
	})
}
