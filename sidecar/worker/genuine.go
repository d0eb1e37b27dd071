package worker

import (
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

// mismatchOf returns the error that a publication is not what was submitted; nil if err is another.
func mismatchOf(err error) *step.MismatchError {
	var m *step.MismatchError
	if errors.As(err, &m) {
		return m
	}
	return nil
}

// returnsMismatch returns an instance to the coordinator that must not run because its
// publication is not what was submitted. It reports false if err is another error.
func (e *execution) returnsMismatch(err error) bool {
	m := mismatchOf(err)
	if m == nil {
		return false
	}
	e.ends(forgedStatus)
	e.w.log.Error("a step instance is not run: its publication is not what was submitted, so another user of etcd has written it",
		"run", problem.Clip(m.ID.Run), "step", m.ID.Text(), "queue", m.Queue, "reason", m.Why)
	way := e.way()
	e.end(func(ctx context.Context) error { return e.w.steps.Return(ctx, e.t, m, way) })
	return true
}

// genuineSubmitter reports whether a publication names the submitter of its run, so that the
// worker may refuse it. It asks again while etcd does not answer.
func (w *Worker) genuineSubmitter(p *step.Published) bool {
	runs := run.Store{Backend: w.steps.Backend, Keys: w.keys}
	for {
		r, err := runs.Get(w.quit, p.Run)
		code := problem.CodeOf(err)
		switch {
		case err == nil && r.SubmittedBy == p.SubmittedBy:
			return true
		case err == nil, code == problem.RunNotFound, code == problem.CorruptValue:
			w.metrics.ended(forgedStatus)
			w.log.Error("a published step instance is ignored: it does not name the submitter of its run, so another user of etcd has written it",
				"run", problem.Clip(p.Run), "step", p.ID().Text(), "queue", p.Queue, "submitted_by", problem.Clip(p.SubmittedBy))
			return false
		}
		select {
		case <-time.After(finishPause):
		case <-w.left:
			return false
		}
	}
}
