package worker

import (
	"cmp"
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
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
)

// stopCause is why an execution is being stopped.
type stopCause int

const (
	notStopped stopCause = iota
	byRun                // its run was canceled, or has failed
	byWorker             // the worker was stopped
	byLoss               // the instance is lost
)

// shortCommand is the shortest time for which a command runs whose start is reported before
// its end.
const shortCommand = 20 * time.Millisecond

// finishPause is the pause between attempts to write the end of an instance.
const finishPause = time.Second

// execution is an instance of the worker, from its taking to its end. Only the loop uses
// the fields other than t, dir and place.
type execution struct {
	w     *Worker
	t     *step.Taken
	dir   string
	place place
	give  func() // releases place
	seat  *pool.Place

	job     Job
	cause   stopCause
	reason  string
	ending  bool
	gone    bool // left to the next process, or dropped
	dropped bool
	freed   bool   // it no longer occupies capacity: its end is being written
	inGroup bool   // that is written through the group
	next    func() // uses its place after that
	// mismatch is why it must not be started, if it is not what was submitted.
	mismatch *step.MismatchError
	wrote    time.Duration // duration of the write of its end
	tail     tail
	begun    begun
	unhook   func() bool

	span   trace.Span
	result result
}

// result is how an execution has ended, for its span.
type result struct {
	status string
	why    string // it failed
}

// begun is the start of a command, and the state of its event.
type begun struct {
	at        time.Time     // zero if none was started
	reporting chan struct{} // closed when the reporting ends; nil before
	// reported states that the event is written. It is read after reporting is closed.
	reported bool
}

// start runs the instance.
func (e *execution) start() {
	e.hook()
	validUntil, grace := e.validity()
	e.w.async(func() {
		job, err := e.w.cfg.Runner.Start(filepath.Join(e.dir, jobFolder), e.t, validUntil, grace)
		e.w.post(func() {
			if err != nil {
				e.fail(err)
				return
			}
			e.begun.at = time.Now()
			e.began(job)
			e.reportStartSoon(job)
		})
	})
}

// hook notifies the loop when the validity of the instance ends.
func (e *execution) hook() {
	e.unhook = context.AfterFunc(e.place.Context(), func() {
		e.w.async(func() { e.w.post(e.lost) })
	})
}

// began records the attempt that was started, or opened.
func (e *execution) began(job Job) {
	e.job = job
	if e.gone { // the worker has ended meanwhile
		job.Close()
		return
	}
	if e.cause != notStopped {
		job.Stop(e.reason)
	}
	e.w.async(func() {
		select {
		case <-job.Done():
			e.w.post(e.ended)
		case <-e.w.left:
		}
	})
}

// reportStartSoon reports the start of the command, unless it ends at once: then its end
// includes the start, without another write.
func (e *execution) reportStartSoon(job Job) {
	e.w.async(func() {
		soon := time.NewTimer(shortCommand)
		defer soon.Stop()
		select {
		case <-soon.C:
			e.w.post(e.reportStart)
		case <-job.Done():
		case <-e.w.left:
		}
	})
}

// reportStart writes the start of the command, and tries again until the attempt has
// ended.
func (e *execution) reportStart() {
	if e.ending || e.gone {
		return
	}
	done := make(chan struct{})
	e.begun.reporting = done
	job, at := e.job, e.begun.at
	e.w.async(func() {
		defer close(done)
		for {
			err := e.w.steps.Started(e.w.quit, e.t, at)
			if err == nil {
				e.begun.reported = true
				return
			}
			e.w.log.Debug("the start of a step instance could not be written to the events of its run", "run", e.t.Run, "step", e.t.Text(), "error", err)
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

// unreportedStart returns when the command was started, if the end has to report it.
func (e *execution) unreportedStart() time.Time {
	if e.begun.reporting != nil {
		if <-e.begun.reporting; e.begun.reported {
			return time.Time{}
		}
	}
	return e.begun.at
}

// validity returns until when it may run, on the boot clock, and how long it may take to
// stop before.
func (e *execution) validity() (until, grace time.Duration) {
	now := e.w.clock.Now() // before the validity, which counts from it
	left, grace := e.place.ValidFor()
	return now + left, grace
}

// extend extends its validity after a renewal of its lease.
func (e *execution) extend() {
	if e.job == nil || e.ending || e.place.Context().Err() != nil {
		return
	}
	// The validity of a lease that was taken over is unknown before its first renewal.
	// Until then, that of the earlier process holds.
	now := e.w.clock.Now() // before the validity, which counts from it
	if left, _ := e.place.ValidFor(); left > 0 {
		e.job.Extend(now + left)
	}
}

// stop stops it. The first cause counts.
func (e *execution) stop(cause stopCause, reason string) {
	if e.cause != notStopped || e.ending {
		return
	}
	e.cause, e.reason = cause, reason
	if e.job != nil {
		e.job.Stop(reason)
	}
}

// lost handles the end of the validity.
func (e *execution) lost() {
	if e.gone || problem.CodeOf(context.Cause(e.place.Context())) == problem.Stopping {
		return // the client is stopping: the next process takes over
	}
	e.w.log.Warn("a step instance is lost", "run", e.t.Run, "step", e.t.Text(), "reason", context.Cause(e.place.Context()))
	e.stop(byLoss, "it is lost")
}

// ended handles the end of the attempt.
func (e *execution) ended() {
	o := e.job.Outcome()
	switch {
	case e.cause == byLoss:
		e.w.metrics.ended("lost")
		e.ending, e.result = true, result{lostStatus, "it is lost"}
		job := e.job
		e.w.async(func() {
			e.w.keepOutput(&e.t.Ready, job)
			e.w.post(func() { e.w.drop(e) })
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

// fail ends an instance that could not be started.
func (e *execution) fail(why error) {
	e.w.log.Error("a step instance could not be started", "run", e.t.Run, "step", e.t.Text(), "error", why)
	e.finish(step.Outcome{Status: step.Failed, Error: why.Error()})
}

// ends records that the end is being written, with a status for the metrics and the span.
func (e *execution) ends(status string) {
	e.ending, e.result.status = true, status
	e.w.metrics.ended(status)
}

// finish writes the end of the instance, and tries again until the instance is lost.
func (e *execution) finish(o step.Outcome) {
	e.ends(string(o.Status))
	if o.Status != step.Succeeded {
		e.result.why = o.Error
	}
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

// reported returns the outcome with the output of the attempt.
func (e *execution) reported(o step.Outcome) func() step.Outcome {
	job := e.job
	return func() step.Outcome {
		if job == nil {
			return o
		}
		o.StartedAt = e.unreportedStart()
		if out, err := written(job); err == nil { // output that cannot be read is not kept
			o.Output, o.Before, o.Cut = out.Text, out.Before, out.Cut
		}
		e.w.outputs.reports(&e.t.Ready)
		o.File = e.w.keepOutput(&e.t.Ready, job)
		return o
	}
}

// tookOf returns the duration of an attempt.
func tookOf(o *step.Outcome, started time.Time) time.Duration {
	if o.EndedAt.IsZero() {
		return time.Since(started)
	}
	return max(0, o.EndedAt.Sub(started))
}

// handBack puts the instance back into its queue: it was not started.
func (e *execution) handBack() {
	e.ends(handedBackStatus)
	way := e.way()
	e.end(func(ctx context.Context) error {
		_, err := e.w.steps.HandBack(ctx, e.t, way)
		return err
	})
}

// way returns how the end is written: in one transaction with the release of its slots, if
// it has a claim, and with the taking of further instances.
func (e *execution) way() step.Way {
	claim, ok := e.place.(*instance.Claim)
	var once sync.Once
	free := func() {
		once.Do(func() { e.w.post(func() { e.w.free(e, !ok) }) })
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
		e.unhook() // there is nothing to stop any more
	}
	e.w.async(func() {
		for {
			err := write(e.span.With(context.Background()))
			code := problem.CodeOf(err)
			if err == nil || code == problem.StepLost || e.place.Context().Err() != nil {
				if err != nil {
					e.w.log.Warn("the end of a step instance could not be written", "run", e.t.Run, "step", e.t.Text(), "error", err)
				}
				e.w.outputs.reported(&e.t.Ready)
				e.w.post(func() { e.w.drop(e) })
				return
			}
			select {
			case <-time.After(finishPause):
			case <-e.w.left: // the next process writes the end, from the result in its folder
				return
			}
		}
	})
}

// drop removes an execution that has ended.
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
	if e.next != nil {
		e.next()
	}
	if w.active[e.t.StepID] == e {
		delete(w.active, e.t.StepID)
	}
	w.metrics.count.Store(int64(len(w.active)))
	w.pace += (min(e.wrote, longTurn/4) - w.pace) / 8
	w.dirty = true
}

// free makes the place of an execution available, since its end is about to be written:
// instances that are taken from now on in the same way, through the group or with the
// claims, are taken with that write or after it.
func (w *Worker) free(e *execution, inGroup bool) {
	if e.freed {
		return
	}
	e.freed, e.inGroup = true, inGroup
	w.freed++
	w.dirty = true
	w.early = append(w.early, e)
}

// leave releases an execution without stopping it.
func (e *execution) leave() {
	if e.gone {
		return
	}
	e.gone = true
	endSpan(e.span, cmp.Or(e.result.status, interruptedStatus), e.result.why)
	if e.unhook != nil {
		e.unhook()
	}
	if e.job != nil {
		e.job.Close()
	}
}

// check extends the validity of all executions, and considers everything again.
func (w *Worker) check() {
	w.withdrawAgain()
	w.forgetPassed()
	for _, e := range w.active {
		e.extend()
	}
	w.showFollowed()
	w.dirty = true // an obstacle may have passed
}
