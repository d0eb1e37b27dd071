package ui

import (
	"context"
	"net/url"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// maxReason bounds the reason that is asked for, in bytes.
const maxReason = 500

// confirmCancel says what becomes of a run that is canceled.
func confirmCancel(ctx context.Context, s *Session, q url.Values) (*confirmation, error) {
	o, err := s.Steps.Overview(ctx, q.Get("run"))
	if err != nil {
		return nil, err
	}
	held, waiting, err := s.Client.Claims(ctx)
	if err != nil {
		return nil, err
	}
	return cancelOf(o.Run, o.Steps, held, waiting), nil
}

// cancelOf says what becomes of a run that is canceled.
func cancelOf(r *run.Run, steps []step.Summary, held []pool.HolderStatus, waiting []pool.WaiterStatus) *confirmation {
	c := &confirmation{
		Question: "Cancel run " + r.ID + "?", Button: "Cancel the run", Danger: true,
		MaxReason: maxReason, Hidden: []pair{{"run", r.ID}}, Back: runLink(r.ID),
		Facts: []fact{{Name: "Run", Value: r.ID, Link: runLink(r.ID)}},
	}
	if r.Name != "" {
		c.Facts = append(c.Facts, fact{Name: "Name", Value: r.Name})
	}
	c.Facts = append(c.Facts, fact{Name: "Status", Value: statusText(r)}, fact{Name: "Queued", At: r.QueuedAt})
	if r.Status.Ended() {
		c.Not = "It has ended already, and there is nothing to cancel: it " + endText(r) + "."
		return c
	}
	has := claimsOf(r, held, waiting)
	for _, h := range has.stopped {
		c.addStopped(h)
	}
	c.Effects = cancelEffects(r, steps, has)
	return c
}

// runClaims are the claims that carry a run.
type runClaims struct {
	stopped []pool.HolderStatus // whoever holds them is stopped
	slots   int                 // of them
	kept    int                 // slots that the coordinator keeps for whoever starts the run
	waiting int                 // claims in line
}

func claimsOf(r *run.Run, held []pool.HolderStatus, waiting []pool.WaiterStatus) (c runClaims) {
	for _, h := range held {
		switch {
		case h.Run != r.ID:
		case h.Bind == run.BindBridge:
			c.kept += h.Slots
		default:
			c.stopped, c.slots = append(c.stopped, h), c.slots+h.Slots
		}
	}
	for _, w := range waiting {
		if w.Run == r.ID {
			c.waiting++
		}
	}
	return c
}

// cancelEffects says what happens to a run that has not ended.
func cancelEffects(r *run.Run, steps []step.Summary, has runClaims) []string {
	var say []string
	switch r.Status {
	case run.Storing, run.Queued:
		say = append(say, "It leaves the queue, and never runs.")
	case run.NotStarted:
		say = append(say, "It was admitted and nobody has started it: nobody will.")
	case run.Running:
		if r.Executor != nil && r.Steps == 0 {
			say = append(say, "Its executor on host "+r.Executor.Host+" is told with its next heartbeat, and has to stop by itself.")
		}
		say = append(say, "Its place under the limits is free at once.")
	}
	if r.Steps > 0 {
		say = append(say, "None of its step instances starts any more.")
		active := 0
		for _, s := range steps {
			active += s.Counts[step.Running]
		}
		switch {
		case active == 1:
			say = append(say, "1 step instance runs now. Its worker stops it: its command gets TERM, and KILL after a grace.")
		case active > 1:
			say = append(say, text.Number(int64(active))+" step instances run now. Their workers stop them: their commands get TERM, and KILL after a grace.")
		}
	}
	if has.kept > 0 {
		say = append(say, plural(has.kept, "slot is", "slots are")+" kept for whoever starts it, and free again then.")
	}
	if n := len(has.stopped); n > 0 {
		say = append(say, "It holds "+plural(has.slots, "slot", "slots")+" by "+plural(n, "claim", "claims")+", listed below. They are asked back: whoever holds them has to stop.")
	}
	if has.waiting > 0 {
		say = append(say, plural(has.waiting, "claim of it waits", "claims of it wait")+" for slots: taken out of the line.")
	}
	return append(say, "It can be put into the queue again: berth runs retry "+r.ID+".")
}

// addStopped lists a claim whose holder is stopped.
func (c *confirmation) addStopped(h pool.HolderStatus) {
	if c.StoppedAll++; c.StoppedAll <= maxStopped {
		c.Stopped = append(c.Stopped, claimFact{
			Claim: h.Claim, Run: h.Run, Step: h.Step, Host: h.Host, Instance: h.Instance, PID: h.PID, Slots: run.PoolList(h.Pools),
		})
	}
}

// Left is how many of the claims are not listed.
func (c *confirmation) Left() int { return c.StoppedAll - len(c.Stopped) }

// statusText is a run's status in words.
func statusText(r *run.Run) string { return strings.ReplaceAll(string(r.Status), "_", " ") }

// endText says how a run has ended.
func endText(r *run.Run) string {
	text := "was canceled"
	switch r.Status {
	case run.Succeeded:
		text = "has succeeded"
	case run.Failed:
		text = "has failed"
	}
	if r.EndedAt.IsZero() {
		return text
	}
	return text + " at " + r.EndedAt.UTC().Format(exactTime)
}

// cancelTask cancels a run.
func cancelTask(who string, form url.Values) (task, error) {
	id, reason := form.Get("run"), strings.Join(strings.Fields(form.Get("reason")), " ")
	if err := run.ValidateID(id); err != nil {
		return task{}, err
	}
	if len(reason) > maxReason {
		return task{}, problem.Field("reason", "it is %d bytes long: allowed are %d", len(reason), maxReason)
	}
	reason = text.Visible(reason)
	why := "canceled by " + who
	if reason != "" {
		why += ": " + reason
	}
	return task{
		query: url.Values{"run": {id}}, back: runLink(id),
		do: func(ctx context.Context, _ *Session, o inspect.Operator) (string, error) {
			r, err := o.CancelRun(ctx, id, why, false)
			switch {
			case err != nil:
				return "", err
			case r.Error != why:
				return "Run " + id + " was canceled already: " + r.Error, nil
			}
			return "Run " + id + " is canceled.", nil
		},
	}, nil
}
