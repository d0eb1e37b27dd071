package inspect

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// WorkerModes are the modes that the verbs of workers set.
var WorkerModes = map[string]step.WorkerMode{audit.DrainWorker: step.Drained, audit.StopWorker: step.Stopped, audit.ResumeWorker: step.Working}

// Operator carries out the verbs of operators for one caller. Each verb checks what it
// is given, acts, and leaves an [audit.Action].
type Operator struct {
	*Reader
	audit.PoolOperator
}

// NewOperator returns the verbs for a caller, on what the reader reads.
func NewOperator(r *Reader, by audit.Caller) Operator {
	return Operator{r, audit.PoolOperator{Log: r.Audit, By: by, Source: r.Source}}
}

// SetLimits changes the limits of runs, and returns the new ones with their revision.
func (o Operator) SetLimits(ctx context.Context, ch run.LimitsChange) (after run.Limits, rev int64, err error) {
	if err := o.mayOperate(); err != nil {
		return after, 0, err
	}
	if err := ch.Validate(); err != nil {
		return after, 0, err
	}
	ch.If = o.If
	err = o.Act(ctx, audit.SetLimits, "limits", "", func(ctx context.Context) (audit.Effect, error) {
		var e audit.Effect
		switch before, _, err := o.Runs.Limits(ctx); {
		case err == nil:
			e.Before = LimitsText(before)
		case problem.CodeOf(err) == problem.CorruptValue:
			e.Before = "limits that can't be read" // a change of all of them replaces these
		default:
			return e, err
		}
		after, rev, err = o.Runs.SetLimits(ctx, ch)
		e.After = LimitsText(after)
		return e, err
	})
	return after, rev, err
}

// mayOperate refuses a caller that may not operate what is no pool.
func (o Operator) mayOperate() error { return o.By.Identity.Allow(access.Operate, access.Everything) }

// MayChangeRun returns why the caller may not cancel or retry a run, or its step instances, that
// an identity has submitted.
func (o Operator) MayChangeRun(submittedBy string) error {
	if o.By.Identity.Is(submittedBy) {
		return nil
	}
	return o.mayOperate()
}

// CancelRun cancels a run, and keeps the reason with it. With onlyQueued a run that has
// left the queue is a RunNotQueued problem.
func (o Operator) CancelRun(ctx context.Context, id, reason string, onlyQueued bool) (r *run.Run, err error) {
	err = o.onRun(ctx, audit.CancelRun, id, reason, func(ctx context.Context) (*run.Run, string, error) {
		r, err = o.Runs.Cancel(ctx, id, reason, onlyQueued)
		return r, "", err
	})
	return r, err
}

// RetryRun tries what failed or was canceled of a run again: all of it, or the steps and
// step instances that are named.
func (o Operator) RetryRun(ctx context.Context, id, reason string, which ...step.Which) (done *step.Retried, err error) {
	detail := reason
	for _, w := range which {
		detail = strings.TrimPrefix(detail+", "+w.String(), ", ")
	}
	err = o.onRun(ctx, audit.RetryRun, id, detail, func(ctx context.Context) (*run.Run, string, error) {
		if done, err = o.Steps.Retry(ctx, o.Runs, id, reason, which...); err != nil {
			return nil, "", err
		}
		result := ""
		if done.Requested > 0 {
			result = text.Count(done.Requested, "step instance") + " requested again"
		}
		return done.Run, result, nil
	})
	return done, err
}

// CancelStep cancels a step instance: it counts as failed.
func (o Operator) CancelStep(ctx context.Context, id store.StepID) (i *step.Instance, err error) {
	err = o.onRun(ctx, audit.CancelStep, id.Run, id.Text(), func(ctx context.Context) (*run.Run, string, error) {
		i, err = o.Steps.Cancel(ctx, o.Runs, id)
		return nil, "", err
	})
	return i, err
}

// AllowRun returns nil if an identity has a role for everything, or is the submitter of a run.
// Its executor may view it as well. Otherwise it returns the refusal; that the run is unknown
// is an error for those only who may view runs.
func (r *Reader) AllowRun(ctx context.Context, id access.Identity, role access.Role, of string) error {
	refused := id.Allow(role, access.Everything)
	if refused == nil || !id.Authenticated() {
		return refused
	}
	now, err := r.Runs.Get(ctx, of)
	switch code := problem.CodeOf(err); {
	case err == nil:
		if id.Is(now.SubmittedBy) || role == access.View && now.Executor != nil && id.Is(now.Executor.By) {
			return nil
		}
	case code != problem.RunNotFound && code != problem.Invalid && code != problem.CorruptValue || id.Grants.Has(access.View):
		return err
	}
	return refused
}

// onRun does something to a run, for an operator or the run's submitter.
func (o Operator) onRun(ctx context.Context, verb, id, detail string, do func(context.Context) (*run.Run, string, error)) error {
	if err := o.AllowRun(ctx, o.By.Identity, access.Operate, id); err != nil {
		return err
	}
	if err := run.ValidateID(id); err != nil {
		return err
	}
	return o.Act(ctx, verb, id, detail, func(ctx context.Context) (audit.Effect, error) {
		before, err := o.Runs.Get(ctx, id)
		if err != nil {
			return audit.Effect{}, err
		}
		e := audit.Effect{Before: string(before.Status)}
		after, result, err := do(ctx)
		if e.Result = result; after != nil {
			e.After = string(after.Status)
		}
		return e, err
	})
}

// maxWorkerReason bounds the reason that is kept with a worker, in bytes.
const maxWorkerReason = 1024

// CheckWorkerReason returns the problem of a reason that can't be kept with a worker.
func CheckWorkerReason(reason string) error {
	if reason != "" && (len(reason) > maxWorkerReason || !pool.IsLine(reason)) {
		return problem.Field("reason", "it must be one line of at most %d bytes, without characters that change its direction", maxWorkerReason)
	}
	return nil
}

// SetWorkerMode drains, stops or resumes a worker: verb is a key of [WorkerModes]. It
// returns the worker, and whether its mode changed. An unknown worker is a NotFound
// problem.
func (o Operator) SetWorkerMode(ctx context.Context, verb string, id step.WorkerID, reason string) (w Worker, changed bool, err error) {
	if err := o.mayOperate(); err != nil {
		return w, false, err
	}
	if err := CheckWorkerReason(reason); err != nil {
		return w, false, err
	}
	if known := o.worker(ctx, &w, id); known != nil {
		var kept bool
		// A mode that is kept for a worker can be changed, even one that can't be read.
		if kept, err = o.Steps.HasWorkerMode(ctx, id); err != nil {
			return w, false, err
		}
		if !kept || problem.CodeOf(known) != problem.NotFound {
			return w, false, known
		}
	}
	err = o.Act(ctx, verb, id.String(), reason, func(ctx context.Context) (audit.Effect, error) {
		var before step.WorkerMode
		by, err := o.By.Identify(ctx)
		if err != nil {
			return audit.Effect{}, err
		}
		to := step.WorkerState{Mode: WorkerModes[verb], At: time.Now(), By: by.Identity.String(), From: by.From, Reason: reason}
		before, changed, err = o.Steps.SetWorkerMode(ctx, id, to)
		return audit.Effect{Before: cmp.Or(string(before), "a mode that can't be read"), After: string(to.Mode)}, err
	})
	if err != nil {
		return w, false, err
	}
	if err := o.worker(ctx, &w, id); problem.CodeOf(err) == problem.NotFound { // it was known by its mode only
		return Worker{Host: id[0], Instance: id[1], Status: string(step.Working), Gone: true}, changed, nil
	} else if err != nil {
		return w, changed, err
	}
	return w, changed, nil
}

// worker reads a worker.
func (o Operator) worker(ctx context.Context, w *Worker, id step.WorkerID) error {
	f, err := o.Fleet(ctx)
	if err != nil {
		return err
	}
	*w, err = f.Worker(id)
	return err
}

// LimitsText writes the limits of runs.
func LimitsText(l run.Limits) string {
	parts := []string{"max_concurrent_runs " + pool.LimitText(l.MaxConcurrentRuns)}
	for _, t := range l.Tags {
		parts = append(parts, t.String())
	}
	return strings.Join(parts, ", ")
}

// ActionList is a page of actions, the newest first.
type ActionList struct {
	Items []audit.Entry `json:"items" nullable:"false"`
	Next  string        `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter cursor."`
	// Unreadable are actions that can't be read: they are not among the items.
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false"`
}

// Actions returns up to limit actions that are older than the one with the id before; the
// newest of all if it is empty.
func (r *Reader) Actions(ctx context.Context, before string, limit int) (ActionList, error) {
	found, next, bad, err := r.Audit.List(ctx, before, limit)
	if err != nil {
		return ActionList{}, err
	}
	return ActionList{Items: append([]audit.Entry{}, found...), Next: next, Unreadable: UnreadableOf(bad)}, nil
}
