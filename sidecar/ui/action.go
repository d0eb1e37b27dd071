package ui

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
)

// actionTimeout bounds an action, its records included. It goes on if whoever has asked for it
// hangs up.
const actionTimeout = 20 * time.Second

// deed is one thing that can be done from the pages: first one is told what will happen, then one
// says so.
type deed struct {
	name string // in addresses, and in records
	// confirm says what will happen.
	confirm func(ctx context.Context, s *Session, q url.Values) (*confirmation, error)
	// task reads what was confirmed.
	task func(who string, form url.Values) (task, error)
}

// task is something that was confirmed.
type task struct {
	query url.Values
	back  string // the page to show then, unless another was asked for
	// do carries it out, and returns a sentence about what happened. If what was
	// confirmed has changed since, its error is a Precondition problem, and the operator
	// is asked again.
	do func(ctx context.Context, s *Session, o inspect.Operator) (result string, err error)
}

// deeds are all there are.
var deeds = []deed{
	{name: "cancel", confirm: confirmCancel, task: cancelTask},
	{name: "pause", confirm: confirmPause, task: pauseTask},
	{name: "resume", confirm: confirmResume, task: resumeTask},
	{name: "limit", confirm: confirmLimit, task: limitTask},
	{name: "release", confirm: confirmRelease, task: releaseTask},
}

// deedOf is what an address asks for.
func deedOf(r *http.Request) (deed, error) {
	name := r.PathValue("deed")
	for _, d := range deeds {
		if d.name == name {
			return d, nil
		}
	}
	return deed{}, problem.New(problem.NotFound, "there is no action %q", problem.Clip(name))
}

// confirmation says what will happen if an action is taken.
type confirmation struct {
	Deed     string // its name
	Question string // the heading
	Facts    []fact // what it is about
	// Effects say what will happen, and Warning what may go wrong with it.
	Effects []string
	Warning string
	// Not says why it can't be done now; then there is no form.
	Not string

	// Stopped are claims whose holders are stopped, of StoppedAll.
	Stopped    []claimFact
	StoppedAll int

	// Hidden are fields of the form beside what is asked for here.
	Hidden []pair
	// Reason is asked for, of at most so many bytes.
	MaxReason int
	// Limit is asked for before anything can be confirmed.
	Limit *limitQuestion
	// Sure is a sentence that one has to say yes to.
	Sure string
	// Other is another way to do it.
	Other, OtherText, OtherWhat string

	Button string // what the button says
	Danger bool   // it can't be undone
	Back   string // where one goes back to
}

// fact is a line of what is known.
type fact struct {
	Name, Value string
	Link        string
	At          time.Time // in place of a value
}

// claimFact is a claim in a list.
type claimFact struct {
	Claim, Run, Step, Host, Instance, Slots string
	PID                                     int
}

// maxStopped bounds the claims that a page lists.
const maxStopped = 50

// actionPath is the address of a deed.
func actionPath(name string) string { return actionsPath + "/" + name }

const actionsPath = "/actions"

// backKey is the field of the page to show after an action.
const backKey = "back"

// backTo is the page that was asked for to show after an action, or one that goes with it.
func backTo(form url.Values, usual string) string {
	if to := form.Get(backKey); to != "" {
		return ownPath(to)
	}
	return usual
}

// viewAction shows what will happen if an action is taken.
func (p *Pages) viewAction(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	d, err := deedOf(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	c, err := d.confirm(ctx, s, q)
	if err != nil {
		return nil, err
	}
	c.Deed = d.name
	c.Back = backTo(q, c.Back)
	c.Hidden = append(c.Hidden, pair{backKey, c.Back})
	return &view{Title: c.Question, Data: c}, nil
}

// act carries out an action that was confirmed.
func (p *Pages) act(ctx context.Context, s *Session, r *http.Request) (to string, err error) {
	d, err := deedOf(r)
	if err != nil {
		return "", err
	}
	t, err := d.task(whoOf(ctx), r.PostForm)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actionTimeout)
	defer cancel()
	result, err := t.do(ctx, s, inspect.Operator{Reader: s.reader(p.log), By: audit.Caller{Who: whoOf(ctx), From: fromOf(ctx)}})
	switch {
	case problem.CodeOf(err) == problem.Precondition:
		if back := r.PostForm.Get(backKey); back != "" {
			t.query.Set(backKey, ownPath(back))
		}
		return p.tell(addressOf(actionPath(d.name), t.query), "Nothing was done: "+err.Error()), nil
	case err != nil:
		return "", err
	}
	return p.tell(backTo(r.PostForm, t.back), result), nil
}

// stale is what a task says that was confirmed of something else than there is now.
func stale(format string, args ...any) error {
	return problem.New(problem.Precondition, format, args...)
}
