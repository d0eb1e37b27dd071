package worker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/trace"
)

// resumeTimeout bounds the take-over of the instances of an earlier process.
const resumeTimeout = 20 * time.Second

// resume takes over the instances of an earlier process of this worker whose keys still
// exist, with their commands, if these were started. The commands and folders of all
// others are stopped and removed.
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
	for _, reservation := range w.cfg.Client.AdoptedKeys() {
		_, id, err := w.keys.ParseActive(reservation.Adopted().Key)
		if err != nil {
			reservation.Release()
			continue
		}
		dir := byID[id]
		e, err := w.resumeOne(ctx, id, reservation, dir, left[dir].Published)
		switch {
		case err != nil:
			return err
		case e == nil:
			reservation.Release()
			continue
		}
		of := claimOf{store.FenceAt(reservation.Adopted().Revision), id.Run, id.Text()}
		if cl := claims[of]; cl != nil {
			delete(claims, of)
			e.place, e.give = cl, func() {
				w.release(cl)
				reservation.Release()
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

// claimOf identifies the claim of an attempt. The fencing token alone does not: instances
// that are taken in one transaction have the same.
type claimOf struct {
	fence     store.Fence
	run, step string
}

// claimsLeft returns the claims of instances that were taken over.
func (w *Worker) claimsLeft(ctx context.Context) (map[claimOf]*instance.Claim, error) {
	held, err := w.cfg.Client.Held(ctx)
	if err != nil {
		return nil, err
	}
	claims := map[claimOf]*instance.Claim{}
	for _, cl := range held {
		if cl.Bind() == run.BindStep {
			claims[claimOf{cl.Fence(), cl.Holder.Run, cl.Holder.Step}] = cl
		}
	}
	return claims, nil
}

// resumeOne takes over one instance. It returns nil if the instance is not this worker's
// any more, or if its folder is missing.
func (w *Worker) resumeOne(ctx context.Context, id store.StepID, reservation *instance.KeyReservation, dir string, p *step.Published) (*execution, error) {
	i, err := w.steps.Get(ctx, id)
	if err != nil {
		if code := problem.CodeOf(err); code == problem.StepNotFound || code == problem.CorruptValue {
			return nil, nil
		}
		return nil, err
	}
	if p == nil || i.Status != step.Running || i.Revision != reservation.Adopted().Revision || !w.by.Same(i.Executor) {
		return nil, nil
	}
	t := &step.Taken{Instance: *i, Ready: *p}
	unread := w.steps.Verify(ctx, t)
	if unread != nil && mismatchOf(unread) == nil {
		return nil, unread
	}
	seat := w.places.New()
	seat.Force()
	span := w.span(p, time.Now())
	span.Set(trace.Bool("berth.resumed", true))
	e := &execution{
		w: w, t: t, dir: dir, place: reservation, give: reservation.Release, seat: seat, mismatch: mismatchOf(unread),
	}
	return e.traced(span), nil
}

// reopen opens the command of an instance that was taken over, or starts it if it was not
// started. If its slots are gone, it is stopped, or handed back. An error, for example
// for lack of descriptors, does not mean that the command has ended: reopen tries again
// until the instance is lost.
func (w *Worker) reopen(e *execution, bare bool) {
	e.hook()
	w.async(func() {
		for tries := new(lograte.Tries); ; {
			job, err := w.cfg.Runner.Open(filepath.Join(e.dir, jobFolder), e.t)
			if err == nil {
				w.post(func() { w.found(e, job, bare) })
				return
			}
			if tries.Allow(err) {
				w.log.Warn("the command of a step instance cannot be opened, trying again", "run", e.t.Run, "step", e.t.Text(), "error", err)
			}
			select {
			case <-time.After(finishPause):
			case <-e.place.Context().Done():
				w.post(func() { w.drop(e) })
				return
			case <-w.left:
				return
			}
		}
	})
}

// found continues an instance that was taken over.
func (w *Worker) found(e *execution, job Job, bare bool) {
	switch {
	case bare && job == nil:
		e.handBack()
		return
	case bare:
		e.began(job)
		e.stop(byLoss, "its slots are gone")
		return
	case job == nil && e.mismatch != nil: // the earlier process had not started it
		e.returnsMismatch(e.mismatch)
		return
	case job == nil:
		e.unhook()
		e.start()
		return
	}
	w.log.Info("took over a step instance", "run", e.t.Run, "step", e.t.Text())
	e.begun.at = e.t.StartedAt
	e.began(job)
	e.reportStart() // the earlier process may not have reported it
	e.extend()
}

// clear stops the command of an instance that is not this worker's any more, and removes
// its folder.
func (w *Worker) clear(dir string, p *step.Published) {
	id := p.ID()
	w.async(func() {
		job, err := w.cfg.Runner.Open(filepath.Join(dir, jobFolder), &step.Taken{Instance: step.Instance{StepID: id}, Ready: *p})
		if err != nil {
			w.log.Warn("the command of a lost step instance cannot be opened", "run", id.Run, "step", id.Text(), "error", err)
			return // the next process tries again
		}
		if job != nil {
			job.Stop("it is lost")
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
