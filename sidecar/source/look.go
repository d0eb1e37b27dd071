package source

import (
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

const (
	// logMost bounds what one look tells of items in the log.
	logMost = 10
	// maxTold bounds a text of what others see of a look, in bytes.
	maxTold = 1 << 10
)

// look lists what there is, submits what is new, and tells what came of it. Its error is
// one that the look has failed with.
func (t *term) look(ctx context.Context, wished int64) error {
	begun := time.Now()
	l := Look{
		By: t.cfg.Host, Interval: t.cfg.Spec.Interval, At: stamp(begun), LastGood: t.last.LastGood, Wake: wished,
	}
	refused, err := t.submitNew(ctx, &l)
	if ctx.Err() != nil || errors.Is(err, election.ErrDeposed) {
		return err
	}
	l.Took = time.Since(begun).Truncate(time.Millisecond)
	l.Refused = len(refused)
	if len(refused) > 0 {
		l.Refusal = text.Cut(refused[0].String(), maxTold)
	}
	switch {
	case err != nil:
		l.Error, l.Failures = text.Cut(err.Error(), maxTold), t.last.Failures+1
		if l.Failures == 1 { // once in a row
			t.cfg.Logger.Warn("the look failed, trying again", "error", err)
		}
	default:
		l.LastGood = l.At
		if t.last.Failures > 0 {
			t.cfg.Logger.Info("looks succeed again", "failed", t.last.Failures)
		}
	}
	t.tellRefused(refused, err == nil)
	t.metrics.looked(l, time.Since(begun))
	t.last = l
	if !l.worthTelling(t.told) {
		return err
	}
	if _, told := t.commit(ctx, "the look could not be noted", store.Put(t.cfg.Keys.SourcePoll(t.cfg.Spec.Name), l.encode(), 0)); told != nil {
		if err == nil { // or it is told of already
			t.cfg.Logger.Debug("what the look came to can't be shown", "error", told)
		}
		if errors.Is(told, election.ErrDeposed) {
			return told
		}
		return err
	}
	t.told = l
	return err
}

// submitNew makes runs of what is listed and new, and keeps the marks.
func (t *term) submitNew(ctx context.Context, l *Look) ([]Refusal, error) {
	if err := t.remember(ctx); err != nil {
		return nil, err
	}
	output, err := t.cfg.List(ctx)
	if err != nil {
		return nil, err
	}
	items, refused, err := t.cfg.Spec.Decode(output)
	if err != nil {
		return nil, err
	}
	l.Listed = len(items) + len(refused)
	d := t.marks.due(items, t.cfg.Spec.Forget, stamp(time.Now()))
	more, err := t.submitAll(ctx, d.submit, l)
	refused = append(refused, more...)
	if err != nil {
		return refused, err
	}
	if err := t.write(ctx, d.change); err != nil {
		return refused, err
	}
	return refused, t.forget(ctx, d.forget)
}

// submitAll submits items in their order, each as a run, and marks them.
func (t *term) submitAll(ctx context.Context, items []Item, l *Look) (refused []Refusal, err error) {
	done := marks{}
	flush := func() error {
		err := t.write(ctx, done)
		clear(done)
		return err
	}
	for _, it := range items {
		created, err := t.submit(ctx, it)
		switch code := problem.CodeOf(err); {
		case err == nil:
			done[it.ID] = mark{At: stamp(time.Now())}
		case ctx.Err() == nil && (code == problem.Invalid || code == problem.IDInUse):
			// It is this item's fault: the others go on.
			refused = append(refused, Refusal{it.Where, `"` + it.ID + `": ` + err.Error()})
		default:
			return refused, errors.Join(err, flush())
		}
		if created {
			l.Submitted++
		}
		if len(done) == markBatch {
			if err := flush(); err != nil {
				return refused, err
			}
		}
	}
	return refused, flush()
}

// submit makes the run of an item, if there is none.
func (t *term) submit(ctx context.Context, it Item) (created bool, err error) {
	sub, err := t.cfg.Spec.submission(it)
	if err != nil {
		return false, err
	}
	if sub.graph == nil {
		_, created, err = t.runs.Submit(ctx, sub.id, sub.spec)
	} else {
		steps := step.Store{Backend: t.cfg.Backend, Keys: t.cfg.Keys, Journal: t.runs.Journal, Group: &store.Group{}}
		_, created, err = steps.Submit(ctx, t.runs, sub.id, sub.spec, sub.graph)
	}
	if problem.CodeOf(err) == problem.IDInUse && t.isOurs(ctx, sub) {
		return false, nil
	}
	return created, err
}

// isOurs tells whether the run of an id is that of the item, made when the source or the
// item said something else.
func (t *term) isOurs(ctx context.Context, sub submission) bool {
	r, err := t.runs.Get(ctx, sub.id)
	return err == nil && r.Status != run.Storing &&
		r.Spec.Labels[LabelSource] == sub.spec.Labels[LabelSource] && r.Spec.Labels[LabelItem] == sub.spec.Labels[LabelItem]
}

// tellRefused logs what was refused and was not at the look before. One that failed has
// not come to the items.
func (t *term) tellRefused(refused []Refusal, good bool) {
	if !good && len(refused) == 0 {
		return
	}
	now, fresh := make(map[string]bool, len(refused)), 0
	for _, r := range refused {
		now[r.Why] = true
		if t.known[r.Why] {
			continue
		}
		if fresh++; fresh <= logMost {
			t.cfg.Logger.Warn("an item is refused", "at", r.Where, "reason", r.Why)
		}
	}
	if fresh > logMost {
		t.cfg.Logger.Warn("more items are refused", "count", fresh-logMost)
	}
	t.known = now
}
