package worker

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// stopCause is why an execution was told to stop.
type stopCause int

const (
	notStopped stopCause = iota
	byRun                // its run was canceled, or has failed
	byWorker             // the worker was told to stop
	byTrust              // the instance is lost to the worker
)

// shortCommand is how long a command runs at least whose start is told before its end.
const shortCommand = 20 * time.Millisecond

// finishPause is the pause between tries to tell how an instance has ended.
const finishPause = time.Second

// execution is an instance that the worker has, from its taking to its end. All but t,
// dir and place is the loop's.
type execution struct {
	w     *Worker
	t     *step.Taken
	dir   string
	place place
	give  func() // gives back what it hangs on
	seat  *pool.Place

	job     Job
	cause   stopCause
	reason  string
	ending  bool
	gone    bool // left to the next process, or dropped
	dropped bool
	freed   bool          // it takes no room any more: its end is on its way
	wrote   time.Duration // what it took to write how it has ended
	tail    tail
	begun   begun
	unhook  func() bool
}

// begun is what is known of the start of a command, and of the event that tells of it.
type begun struct {
	at      time.Time     // zero if none was started
	telling chan struct{} // closed when that is done; nil while nobody tells
	// told tells that nothing is left to tell. It is read after telling is closed.
	told bool
}

// start runs the instance.
func (e *execution) start() {
	e.hook()
	trusted, grace := e.trusted()
	e.w.beside(func() {
		job, err := e.w.cfg.Runner.Start(filepath.Join(e.dir, jobFolder), e.t, trusted, grace)
		e.w.tell(func() {
			if err != nil {
				e.fail(err)
				return
			}
			e.begun.at = time.Now()
			e.began(job)
			e.tellStartSoon(job)
		})
	})
}

// hook has the loop told when trust in the instance ends.
func (e *execution) hook() {
	e.unhook = context.AfterFunc(e.place.Context(), func() {
		e.w.beside(func() { e.w.tell(e.lost) })
	})
}

// began takes the attempt that was started, or found.
func (e *execution) began(job Job) {
	e.job = job
	if e.gone { // the worker has ended meanwhile, and leaves it
		job.Close()
		return
	}
	if e.cause != notStopped {
		job.Stop(e.reason)
	}
	e.w.beside(func() {
		select {
		case <-job.Done():
			e.w.tell(e.ended)
		case <-e.w.left:
		}
	})
}

// tellStartSoon has it told that the command was started, unless it ends at once: then its
// end tells, and no write is needed for it.
func (e *execution) tellStartSoon(job Job) {
	e.w.beside(func() {
		soon := time.NewTimer(shortCommand)
		defer soon.Stop()
		select {
		case <-soon.C:
			e.w.tell(e.tellStart)
		case <-job.Done():
		case <-e.w.left:
		}
	})
}

// tellStart has it told that the command was started, until that is written or the attempt
// has ended.
func (e *execution) tellStart() {
	if e.ending || e.gone {
		return
	}
	done := make(chan struct{})
	e.begun.telling = done
	job, at := e.job, e.begun.at
	e.w.beside(func() {
		defer close(done)
		for {
			err := e.w.steps.Started(e.w.quit, e.t, at)
			if err == nil {
				e.begun.told = true
				return
			}
			e.w.log.Debug("the start of a step instance is not among the events of its run yet", "run", e.t.Run, "step", e.t.Text(), "error", err)
			select {
			case <-time.After(finishPause):
			case <-job.Done():
				return
			case <-e.w.left:
				return
			}
		}
	})
}

// untold is when the command was started, if the end of the attempt has to tell.
func (e *execution) untold() time.Time {
	if e.begun.telling != nil {
		if <-e.begun.telling; e.begun.told {
			return time.Time{}
		}
	}
	return e.begun.at
}

// trusted is until when it may run, on the boot clock, and how long it may take to
// stop before.
func (e *execution) trusted() (until, grace time.Duration) {
	left, grace := e.place.ValidFor()
	return e.w.clock.Now() + left, grace
}

// look puts the end of its trust off, as its lease was renewed.
func (e *execution) look() {
	if e.job == nil || e.ending || e.place.Context().Err() != nil {
		return
	}
	// Nobody knows of a lease that was taken over before it is renewed: until then it
	// stays as the process before has left it.
	if left, _ := e.place.ValidFor(); left > 0 {
		e.job.Trust(e.w.clock.Now() + left)
	}
}

// stop tells it to stop. The first cause counts.
func (e *execution) stop(cause stopCause, reason string) {
	if e.cause != notStopped || e.ending {
		return
	}
	e.cause, e.reason = cause, reason
	if e.job != nil {
		e.job.Stop(reason)
	}
}

// lost takes that the instance is somebody else's, or soon will be.
func (e *execution) lost() {
	if e.gone || problem.CodeOf(context.Cause(e.place.Context())) == problem.Stopping {
		return // the client is on its way out: what is left is for the next process
	}
	e.w.log.Warn("a step instance is lost to its worker", "run", e.t.Run, "step", e.t.Text(), "reason", context.Cause(e.place.Context()))
	e.stop(byTrust, "it is lost to its worker")
}

// ended takes that nothing of the attempt runs any more.
func (e *execution) ended() {
	o := e.job.Outcome()
	switch {
	case e.cause == byTrust:
		e.w.metrics.ended("lost")
		e.ending = true
		job := e.job
		e.w.beside(func() {
			e.w.keepOutput(&e.t.Ready, job)
			e.w.tell(func() { e.w.drop(e) })
		})
		return
	case e.cause == byRun && o.Status != step.Succeeded:
		o.Status, o.Error = step.Canceled, e.reason
	case e.cause == byWorker && o.Status != step.Succeeded:
		o.Error = e.reason
		if o.Status = step.Failed; e.t.Attempt > e.t.Ready.Retries {
			o.Status = step.Canceled
		}
	}
	e.finish(o)
}

// fail ends an instance that could not be begun.
func (e *execution) fail(why error) {
	e.w.log.Error("a step instance could not be begun", "run", e.t.Run, "step", e.t.Text(), "error", why)
	e.finish(step.Outcome{Status: step.Failed, Error: why.Error()})
}

// finish tells etcd how the instance has ended, until that is known or the instance is
// lost.
func (e *execution) finish(o step.Outcome) {
	e.ending = true
	e.w.metrics.ended(string(o.Status))
	e.w.metrics.duration(tookOf(&o, e.t.StartedAt))
	way := e.way()
	whole := sync.OnceValue(e.reported(o))
	e.end(func(ctx context.Context) error {
		begun := time.Now()
		_, err := e.w.steps.Finish(ctx, e.t, whole(), way)
		e.wrote = time.Since(begun)
		e.w.metrics.finished(e.wrote)
		return err
	})
}

// reported returns an outcome with what the attempt has written, which is kept.
func (e *execution) reported(o step.Outcome) func() step.Outcome {
	job := e.job
	return func() step.Outcome {
		if job == nil {
			return o
		}
		o.StartedAt = e.untold()
		if out, err := written(job); err == nil { // what can't be read is not kept
			o.Output, o.Before, o.Cut = out.Text, out.Before, out.Cut
		}
		e.w.outputs.reports(&e.t.Ready)
		o.File = e.w.keepOutput(&e.t.Ready, job)
		return o
	}
}

// tookOf is how long an attempt has taken that was started then.
func tookOf(o *step.Outcome, started time.Time) time.Duration {
	if o.EndedAt.IsZero() {
		return time.Since(started)
	}
	return max(0, o.EndedAt.Sub(started))
}

// handBack puts the instance back into its queue: it was not begun.
func (e *execution) handBack() {
	e.ending = true
	e.w.metrics.ended("handed_back")
	way := e.way()
	e.end(func(ctx context.Context) error {
		_, err := e.w.steps.HandBack(ctx, e.t, way)
		return err
	})
}

// way is how the end is written: in one transaction with the release of its slots, if it
// has a claim, and with what is taken next.
func (e *execution) way() step.Way {
	claim, ok := e.place.(*instance.Claim)
	var once sync.Once
	free := func() {
		once.Do(func() { e.w.tell(func() { e.w.free(e, !ok) }) })
	}
	group := e.w.steps.InGroup(free)
	if !ok {
		return group
	}
	return func(ctx context.Context, x store.Extra) (int64, error) {
		rev, err := claim.ReleaseWith(ctx, x, e.seat, free)
		if errors.Is(err, pool.ErrNotCombined) || problem.CodeOf(err) == problem.Stopping {
			return group(ctx, x)
		}
		return rev, err
	}
}

// end does the last write of an execution.
func (e *execution) end(write func(context.Context) error) {
	if e.unhook != nil {
		e.unhook() // nothing runs any more that would have to stop
	}
	e.w.beside(func() {
		for {
			err := write(context.Background())
			code := problem.CodeOf(err)
			if err == nil || code == problem.StepLost || e.place.Context().Err() != nil {
				if err != nil {
					e.w.log.Warn("how a step instance has ended is not known to etcd", "run", e.t.Run, "step", e.t.Text(), "error", err)
				}
				e.w.outputs.reported(&e.t.Ready)
				e.w.tell(func() { e.w.drop(e) })
				return
			}
			select {
			case <-time.After(finishPause):
			case <-e.w.left: // the next process tells, by the result in its folder
				return
			}
		}
	})
}

// drop forgets an execution that has ended.
func (w *Worker) drop(e *execution) {
	if e.dropped {
		return
	}
	e.dropped = true
	e.leave()
	e.give()
	w.folders.remove(e.dir)
	w.free(e, false)
	w.freed--
	w.early = slices.DeleteFunc(w.early, func(o *execution) bool { return o == e })
	e.seat.Give() // unless another has it already
	if w.active[e.t.StepID] == e {
		delete(w.active, e.t.StepID)
	}
	w.metrics.count.Store(int64(len(w.active)))
	w.pace += (min(e.wrote, longTurn/4) - w.pace) / 8
	w.dirty = true
}

// free takes that nothing of an execution runs any more and that its end is about to be
// written: what is taken from now on in the same way, through the group or with the claims,
// is taken with that or after it, in the place of the execution.
func (w *Worker) free(e *execution, inGroup bool) {
	if e.freed {
		return
	}
	e.freed = true
	w.freed++
	w.dirty = true
	if inGroup {
		w.early = append(w.early, e)
	}
}

// leave lets go of an execution, without stopping it.
func (e *execution) leave() {
	if e.gone {
		return
	}
	e.gone = true
	if e.unhook != nil {
		e.unhook()
	}
	if e.job != nil {
		e.job.Close()
	}
}

// look puts off the end of trust in all that the worker has.
func (w *Worker) look() {
	w.leaveAgain()
	w.forgetPassed()
	for _, e := range w.active {
		e.look()
	}
	w.showLooked()
	w.dirty = true // also what was not to be had for a reason that has passed
}
