package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
)

// followRun is the function [followRun] through the sidecar.
func (w way) followRun(ctx context.Context, id string) error {
	progress := newProgress(w.r.Context, id)
	polling, cancel := context.WithCancel(ctx)
	defer cancel()
	polled := inBackground(func() error { return w.pollRun(polling, id, progress) })
	err := w.sidecar.FollowRunEvents(ctx, id, func(api.RunEvent) error { return nil })
	cancel()
	<-polled
	progress.end()
	return err
}

// pollRun reports the progress of a run until the context ends. It ignores errors: it asks again.
func (w way) pollRun(ctx context.Context, id string, p *progress) error {
	after := firstPlacePoll
	for pause(ctx, after) == nil {
		begun := time.Now()
		text, steps, err := w.progressOf(ctx, id, p.line)
		if err == nil && text != "" {
			p.report(text)
		}
		least := placePoll
		if steps {
			least = stepsPoll
		}
		after = max(least, placeShare*time.Since(begun))
	}
	return nil
}

// progressOf describes a run that has not ended, and reports whether its steps run. It returns no text for a run
// that has ended.
func (w way) progressOf(ctx context.Context, id string, fine bool) (text string, steps bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	why, err := w.sidecar.WhyRun(ctx, id)
	if err != nil || run.Status(why.Run.Status).Ended() {
		return "", false, err
	}
	switch run.Status(why.Run.Status) {
	case run.Queued:
		c, err := w.sidecar.Coordinator(ctx)
		return queuedText(why, err == nil && c.Leader == nil && len(c.Others) == 0), false, nil
	case run.Running:
		if why.Run.Steps > 0 {
			all, _, err := w.sidecar.Steps(ctx, id)
			return stepsProgress(summaries(all), fine) + firstHold(all, why.Steps, fine), true, err
		}
	}
	return why.Run.StatusText(), false, nil
}

// queuedText is [progressText] of a queued run that a sidecar explains.
func queuedText(why *api.RunWhy, noLeader bool) string {
	text := "queued"
	switch {
	case noLeader:
		text += ", " + inspect.NoLeader
	case why.Position > 0:
		text += fmt.Sprintf(", position %d of %d", why.Position, why.Waiting)
	}
	reason, _, _ := strings.Cut(why.Run.Reason(), " (in ") // which changes each second
	if reason != "" && reason != text {
		text += ": " + reason
	}
	return text
}

// firstHold is what holds up the steps of a run, as [runView.holdText] has it.
func firstHold(steps []api.Step, holds []api.StepHold, fine bool) string {
	if len(holds) == 0 {
		return ""
	}
	first := holds[0]
	runs := slices.ContainsFunc(steps, func(s api.Step) bool { return s.Counts.Running > 0 })
	if runs && !fine && first.BlockKind != string(step.WaitNoWorker) && first.BlockKind != string(step.WaitCoordinator) {
		return ""
	}
	text, _, _ := strings.Cut(first.BlockReason, " (in ")
	return " (" + text + ")"
}

// summaries returns steps as a sidecar has answered them.
func summaries(steps []api.Step) []step.Summary {
	all := make([]step.Summary, len(steps))
	for i, s := range steps {
		c := s.Counts
		all[i] = step.Summary{
			Shape: step.Shape{Name: s.Name, Count: s.Count}, StartedAt: s.StartedAt, EndedAt: s.EndedAt,
			Counts: map[step.Status]int{
				step.Requested: c.Requested, step.Scheduled: c.Scheduled, step.Running: c.Running,
				step.Succeeded: c.Succeeded, step.Failed: c.Failed, step.Canceled: c.Canceled,
			},
		}
	}
	return all
}

// failureText is the function [failureText] through the sidecar.
func (w way) failureText(one *api.Run) string {
	if one.Steps == 0 || run.Status(one.Status) != run.Failed {
		return ""
	}
	ctx, cancel := context.WithTimeout(w.r.ctx(), silence)
	defer cancel()
	steps, _, err := w.sidecar.Steps(ctx, one.ID)
	at := slices.IndexFunc(steps, func(s api.Step) bool { return s.Counts.Failed > 0 })
	if err != nil || at < 0 {
		return ""
	}
	failed, _, err := w.sidecar.StepInstances(ctx, one.ID, steps[at].Name, string(step.Failed))
	if err != nil || len(failed) == 0 {
		return ""
	}
	return "; " + instanceName(failed[0]) + ": " + clean(firstLine(failed[0].Error))
}

// cancelStep cancels one step instance through the sidecar.
func (w way) cancelStep() error {
	r := w.r
	which, err := stepToCancel(r.Context)
	if err != nil {
		return err
	}
	all, _, err := w.sidecar.Steps(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(s api.Step) bool { return s.Name == which.Step })
	if at < 0 {
		return step.NoStep(r.args[0], which.Step)
	}
	one, err := which.In(r.args[0], &summaries(all)[at].Shape)
	if err != nil {
		return err
	}
	i, err := w.sidecar.CancelStep(r.ctx(), one.Run, one.Step, one.Index)
	if err != nil {
		return err
	}
	return printCanceledStep(r.printer, canceledStep{Run: i.RunID, Step: i.Step, Index: i.Index, Status: i.Status})
}

// retrySteps retries step instances of a run through the sidecar.
func (w way) retrySteps(which []step.Which) error {
	r, c := w.r, w.sidecar
	why, err := w.reasonOrBy("retried")
	if err != nil {
		return err
	}
	before, err := c.Run(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	request := api.RunRetry{Reason: why}
	for _, one := range which {
		request.Steps = append(request.Steps, one.String())
	}
	ended, err := w.unsuccessful(before.ID, which)
	if err != nil {
		return err
	}
	after, err := c.RetryRun(r.ctx(), before.ID, request)
	if err != nil {
		return err
	}
	done := &step.Retried{Run: &run.Run{ID: after.ID, Record: run.Record{Status: run.Status(after.Status)}}, Requested: ended}
	done.Queued = run.Status(before.Status).Ended() && !run.Status(after.Status).Ended()
	return printRetried(r.printer, which, done)
}

// unsuccessful counts the named instances that have failed or were canceled.
func (w way) unsuccessful(id string, which []step.Which) (int, error) {
	seen := map[string]bool{}
	for _, one := range which {
		all, _, err := w.sidecar.StepInstances(w.r.ctx(), id, one.Step, string(step.Failed), string(step.Canceled))
		if err != nil {
			return 0, err
		}
		for _, i := range all {
			if one.Index == step.Every || one.Index == i.Index {
				seen[instanceName(i)] = true
			}
		}
	}
	return len(seen), nil
}

// controlWorker drains, stops or resumes a worker through the sidecar.
func (w way) controlWorker(verb string, id step.WorkerID) error {
	r, c := w.r, w.sidecar
	all, err := c.Workers(r.ctx())
	if err != nil {
		return err
	}
	after, err := c.ControlWorker(r.ctx(), id[0], id[1], verb, r.String("reason"))
	if err != nil {
		return err
	}
	same := slices.ContainsFunc(all, func(b api.Worker) bool {
		return b.Host == id[0] && b.Instance == id[1] && b.Status == after.Status
	})
	return printWorker(r.printer, id, *after, !same)
}
