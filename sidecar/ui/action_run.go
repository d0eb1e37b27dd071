package ui

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// maxReason bounds the reason of an action, in bytes.
const maxReason = 500

// target is what an action on a run is about: the run, or a step or step instance of it.
type target struct {
	run string
	// which is nil if it is the run.
	which *step.Which
}

// targetOf reads the fields run, step and index.
func targetOf(q url.Values) (target, error) {
	t := target{run: q.Get("run")}
	name, index := q.Get("step"), q.Get("index")
	switch {
	case name != "" && index != "":
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 {
			return t, problem.Field("index", "%q is not the index of a step instance", problem.Clip(index))
		}
		t.which = &step.Which{Step: name, Index: i}
	case name != "":
		t.which = &step.Which{Step: name, Index: step.Every}
	case index != "":
		return t, problem.Field("step", "it is missing: index is the index of an instance of a step")
	}
	return t, run.ValidateID(t.run)
}

// pairs are the fields that [targetOf] reads.
func (t target) pairs() []pair {
	all := []pair{{"run", t.run}}
	if t.which != nil {
		all = append(all, pair{"step", t.which.Step})
		if t.which.Index != step.Every {
			all = append(all, pair{"index", strconv.Itoa(t.which.Index)})
		}
	}
	return all
}

func (t target) query() url.Values {
	q := url.Values{}
	for _, p := range t.pairs() {
		q.Set(p.Key, p.Value)
	}
	return q
}

// String names the target.
func (t target) String() string {
	switch {
	case t.which == nil:
		return "run " + t.run
	case t.which.Index == step.Every:
		return "step " + t.which.Step + " of run " + t.run
	}
	return "step instance " + t.which.String() + " of run " + t.run
}

// seenTarget is a target as it is now.
type seenTarget struct {
	target
	overview *step.Overview
	// instance is set if the target is one, and step if it is one, or an instance of it.
	instance *step.Instance
	step     *step.Summary
}

// confirmOn reads a target, and asks for confirmation of an action on it. Of says what the
// action will do, or why it is not possible.
func confirmOn(verb string, of func(ctx context.Context, s *Session, c *confirmation, t seenTarget) error) func(context.Context, *Session, inspect.Operator, url.Values) (*confirmation, error) {
	return func(ctx context.Context, s *Session, o inspect.Operator, q url.Values) (*confirmation, error) {
		t, err := targetOf(q)
		if err != nil {
			return nil, err
		}
		seen := seenTarget{target: t}
		if seen.overview, err = s.Steps.Overview(ctx, t.run); err != nil {
			return nil, err
		}
		if err := o.MayChangeRun(seen.overview.Run.SubmittedBy); err != nil {
			return nil, err
		}
		if t.which != nil {
			for n := range seen.overview.Steps {
				if one := &seen.overview.Steps[n]; one.Shape.Name == t.which.Step {
					seen.step = one
				}
			}
			if seen.step == nil {
				return nil, problem.New(problem.StepNotFound, "run %q has no step %q", t.run, problem.Clip(t.which.Step))
			}
			if t.which.Index != step.Every {
				if seen.instance, err = s.Steps.Get(ctx, t.id()); err != nil {
					return nil, err
				}
			}
		}
		c := confirmationOn(verb, seen)
		return c, of(ctx, s, c, seen)
	}
}

// id is the id of a target that is a step instance.
func (t target) id() store.StepID {
	return store.StepID{Run: t.run, Step: t.which.Step, Index: t.which.Index}
}

// confirmationOn returns a confirmation with the facts of a target.
func confirmationOn(verb string, t seenTarget) *confirmation {
	r := t.overview.Run
	kind := "run"
	if t.which != nil {
		kind = map[bool]string{true: "step instance", false: "step"}[t.instance != nil]
	}
	c := &confirmation{
		Question: verb + " " + t.String() + "?", Button: verb + " the " + kind, MaxReason: maxReason, Hidden: t.pairs(), Back: runLink(r.ID),
		Facts: []fact{{Name: "Run", Value: r.ID, Link: runLink(r.ID)}},
	}
	if r.Name != "" {
		c.Facts = append(c.Facts, fact{Name: "Name", Value: r.Name})
	}
	switch {
	case t.instance != nil:
		return c.with("Step instance", t.which.String(), "Status", string(t.instance.Status))
	case t.which != nil:
		return c.with("Step", t.which.Step, "Status", countsText(t.step.Counts))
	}
	c.with("Status", statusText(r))
	c.Facts = append(c.Facts, fact{Name: "Queued", At: r.QueuedAt})
	return c
}

// with adds facts.
func (c *confirmation) with(pairs ...string) *confirmation {
	for i := 0; i+1 < len(pairs); i += 2 {
		c.Facts = append(c.Facts, fact{Name: pairs[i], Value: pairs[i+1]})
	}
	return c
}

// cancelOf says what canceling a run or a step instance will do.
func cancelOf(ctx context.Context, s *Session, c *confirmation, t seenTarget) error {
	c.Danger = true
	if t.which != nil && t.instance == nil {
		return problem.Field("index", "it is missing: a step is canceled by its instances")
	}
	if t.instance != nil {
		c.MaxReason = 0
		switch r := t.overview.Run; {
		case r.Status.Ended():
			c.Not = "Its run has ended already: it " + endText(r) + "."
		case t.instance.Status.Ended():
			c.Not = "It has ended already, and there is nothing to cancel: its status is " + string(t.instance.Status) + "."
		case t.instance.Status == step.Running:
			c.Effects = []string{"Its worker stops it: its command gets TERM, and KILL after a grace period.", countsAsFailed}
		default:
			c.Effects = []string{"It does not start.", countsAsFailed}
		}
		return nil
	}
	held, waiting, err := s.Client.Claims(ctx)
	if err != nil {
		return err
	}
	cancelRunOf(c, t.overview.Run, t.overview.Steps, held, waiting)
	return nil
}

const countsAsFailed = "It counts as failed: steps that need it do not run."

// cancelRunOf says what canceling a run will do.
func cancelRunOf(c *confirmation, r *run.Run, steps []step.Summary, held []pool.HolderStatus, waiting []pool.WaiterStatus) {
	if r.Status.Ended() {
		c.Not = "It has ended already, and there is nothing to cancel: it " + endText(r) + "."
		return
	}
	has := claimsOf(r, held, waiting)
	for _, h := range has.stopped {
		c.addStopped(h)
	}
	c.Effects = cancelEffects(r, steps, has)
}

// retryOf says what retrying a run, a step or a step instance will do.
func retryOf(_ context.Context, _ *Session, c *confirmation, t seenTarget) error {
	r := t.overview.Run
	const retries = "with as many retries as at first."
	requeued := "The run goes on meanwhile."
	if r.Status.Ended() {
		requeued = "Run " + r.ID + " goes back to its old place in the queue. Instances that had not started, or were stopped because the run ended, are run as well."
	}
	switch {
	case t.which == nil:
		if err := r.Retriable(); err != nil {
			c.Not = err.Error()
			return nil
		}
		c.Effects = []string{"It goes back to its old place in the queue."}
		counts, all := totalOf(t.overview.Steps)
		if all > 0 {
			left := all - counts[step.Succeeded]
			c.Effects = append(c.Effects, fmt.Sprintf("%d of its %s have not succeeded, and are run again, %s", left, plural(all, "step instance", "step instances"), retries))
		}
	case t.instance != nil:
		if is := t.instance.Status; is != step.Failed && is != step.Canceled {
			c.Not = "It has not failed, and was not canceled: its status is " + string(is) + "."
			return nil
		}
		c.Effects = []string{"It is requested again, " + retries, requeued}
	default:
		n := t.step.Counts[step.Failed] + t.step.Counts[step.Canceled]
		if n == 0 {
			c.Not = "None of its instances has failed or was canceled."
			return nil
		}
		c.Effects = []string{plural(n, "step instance is", "step instances are") + " requested again, " + retries, requeued}
	}
	return nil
}

// runClaims are the claims of a run.
type runClaims struct {
	stopped []pool.HolderStatus // their holders are stopped
	slots   int                 // of them
	kept    int                 // slots that the coordinator holds until the run starts
	waiting int                 // claims that wait
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

// cancelEffects says what canceling a run that has not ended will do.
func cancelEffects(r *run.Run, steps []step.Summary, has runClaims) []string {
	var say []string
	switch r.Status {
	case run.Storing, run.Queued:
		say = append(say, "It leaves the queue, and does not run.")
	case run.NotStarted:
		say = append(say, "It is admitted and has not started: it will not start.")
	case run.Running:
		if r.Executor != nil && r.Steps == 0 {
			say = append(say, "Its executor on host "+r.Executor.Host+" gets that as the answer to its next heartbeat, and has to stop by itself.")
		}
		say = append(say, "It does not count against the limits any more.")
	}
	if r.Steps > 0 {
		say = append(say, "No more of its step instances start.")
		active := 0
		for _, s := range steps {
			active += s.Counts[step.Running]
		}
		switch {
		case active == 1:
			say = append(say, "1 step instance runs now. Its worker stops it: its command gets TERM, and KILL after a grace period.")
		case active > 1:
			say = append(say, text.Number(int64(active))+" step instances run now. Their workers stop them: their commands get TERM, and KILL after a grace period.")
		}
	}
	if has.kept > 0 {
		say = append(say, plural(has.kept, "slot is", "slots are")+" held until it starts, and are free then.")
	}
	if n := len(has.stopped); n > 0 {
		say = append(say, "It holds "+plural(has.slots, "slot", "slots")+" by "+plural(n, "claim", "claims")+", listed below. They are revoked: their holders are stopped.")
	}
	if has.waiting > 0 {
		say = append(say, plural(has.waiting, "claim of it waits", "claims of it wait")+" for slots, and no longer will.")
	}
	return append(say, "It can be retried later.")
}

// addStopped lists a claim whose holder is stopped.
func (c *confirmation) addStopped(h pool.HolderStatus) {
	if c.StoppedAll++; c.StoppedAll <= maxStopped {
		c.Stopped = append(c.Stopped, claimFact{
			Claim: h.Claim, Run: h.Run, Step: h.Step, Host: h.Host, Instance: h.Instance, PID: h.PID, Slots: run.PoolList(h.Pools),
		})
	}
}

// Left returns how many of the claims are not listed.
func (c *confirmation) Left() int { return c.StoppedAll - len(c.Stopped) }

// statusText writes the status of a run.
func statusText(r *run.Run) string { return strings.ReplaceAll(string(r.Status), "_", " ") }

// endText says how a run ended.
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

// reasonIn reads the reason from a form, and adds who takes the action.
func reasonIn(did, who string, form url.Values) (string, error) {
	reason := strings.Join(strings.Fields(form.Get("reason")), " ")
	if len(reason) > maxReason {
		return "", problem.Field("reason", "it is %d bytes long: use at most %d", len(reason), maxReason)
	}
	why := did + " by " + who
	if reason = text.Visible(reason); reason != "" {
		why += ": " + reason
	}
	return why, nil
}

// mayChangeRun refuses who may not change the run of a form.
func mayChangeRun(ctx context.Context, _ *Session, o inspect.Operator, form url.Values) error {
	return o.AllowRun(ctx, o.By.Identity, access.Operate, form.Get("run"))
}

// taskOn reads the target and the reason of a form.
func taskOn(did string, do func(ctx context.Context, o inspect.Operator, t target, why string) (string, error)) func(string, url.Values) (task, error) {
	return func(who string, form url.Values) (task, error) {
		t, err := targetOf(form)
		if err != nil {
			return task{}, err
		}
		why, err := reasonIn(did, who, form)
		return task{
			query: t.query(), back: runLink(t.run),
			do: func(ctx context.Context, _ *Session, o inspect.Operator) (string, error) { return do(ctx, o, t, why) },
		}, err
	}
}

// doCancel cancels a run or a step instance.
func doCancel(ctx context.Context, o inspect.Operator, t target, why string) (string, error) {
	if t.which != nil {
		i, err := o.CancelStep(ctx, t.id())
		if err != nil {
			return "", err
		}
		if i.Status == step.Running {
			return "The worker stops " + t.String() + ".", nil
		}
		return "Step instance " + t.which.String() + " of run " + t.run + " is canceled.", nil
	}
	r, err := o.CancelRun(ctx, t.run, why, false)
	switch {
	case err != nil:
		return "", err
	case r.Error != why:
		return "Run " + t.run + " was canceled already: " + r.Error, nil
	}
	return "Run " + t.run + " is canceled.", nil
}

// doRetry retries a run, a step or a step instance.
func doRetry(ctx context.Context, o inspect.Operator, t target, why string) (string, error) {
	var which []step.Which
	if t.which != nil {
		which = append(which, *t.which)
	}
	done, err := o.RetryRun(ctx, t.run, why, which...)
	switch {
	case err != nil:
		return "", err
	case t.which != nil && done.Requested > 0:
		return plural(done.Requested, "step instance of run "+t.run+" is", "step instances of run "+t.run+" are") + " requested again.", nil
	case done.Queued:
		return "Run " + t.run + " is queued again.", nil
	}
	if err := done.Run.Retriable(); err != nil {
		return "", err
	}
	return "Nothing of run " + t.run + " was requested again.", nil
}
