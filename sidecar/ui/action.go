package ui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

// actionTimeout bounds an action, its records included. It goes on if the browser
// disconnects.
const actionTimeout = 20 * time.Second

// action is something that operators do on the pages. A page asks for confirmation first.
type action struct {
	// owned means that the owner of the object needs no role.
	owned bool
	// confirm says what will happen, to an operator who may do it.
	confirm func(ctx context.Context, s *Session, o inspect.Operator, q url.Values) (*confirmation, error)
	// may returns why the sender of a confirmed form may not do it. What else the form says
	// is judged only then.
	may func(ctx context.Context, s *Session, o inspect.Operator, form url.Values) error
	// task reads the confirmed form of an operator.
	task func(who string, form url.Values) (task, error)
}

// task is a confirmed action.
type task struct {
	query url.Values // of the page that asks for confirmation
	back  string     // the page to show then, unless the form names another
	// do carries out the action, and returns a sentence about what happened. If the object
	// has changed since the confirmation, its error is a Precondition problem, and the
	// operator is asked again.
	do func(ctx context.Context, s *Session, o inspect.Operator) (result string, err error)
}

// actions are all actions by the last part of their address.
var actions = map[string]action{
	"cancel": {true, confirmOn("Cancel", cancelOf), mayChangeRun, taskOn("canceled", doCancel)},
	"retry":  {true, confirmOn("Retry", retryOf), mayChangeRun, taskOn("retried", doRetry)},
	"pause":  {false, onPool(pauseOf), mayOperatePool, pausedTask(true)},
	"resume": {false, onPool(resumeOf), mayOperatePool, pausedTask(false)},
	"limit":  {false, onPool(limitOf), mayOperatePool, limitTask},
	"delete": {false, onPool(deleteOf), mayOperatePool, deleteTask},
	"revoke": {true, confirmRevoke, mayRevoke, revokeTask},
}

// actionOf returns the action of an address.
func actionOf(r *http.Request) (name string, a action, err error) {
	name = r.PathValue("action")
	a, known := actions[name]
	if !known {
		err = problem.New(problem.NotFound, "there is no action %q", problem.Clip(name))
	}
	return name, a, err
}

// confirmation says what an action will do.
type confirmation struct {
	Action   string // its name
	Question string // the heading
	Facts    []fact // about its object
	// Effects say what will happen, and Warning what can go wrong.
	Effects []string
	Warning string
	// Not says why the action is not possible now; then there is no form.
	Not string

	// Stopped are claims whose holders are stopped, of StoppedAll.
	Stopped    []claimFact
	StoppedAll int

	// Hidden are hidden fields of the form.
	Hidden []pair
	// MaxReason is set if the form asks for a reason, of at most so many bytes.
	MaxReason int
	// Limit is set if the page asks for a limit first.
	Limit *limitQuestion
	// Sure is a sentence that the operator has to confirm.
	Sure string
	// Other is another way to do it, as a query of the same address; OtherWhat explains it.
	Other                          url.Values
	OtherText, OtherWhat, OtherURL string

	Button string // its text
	Danger bool   // it can't be undone
	Back   string // the page to return to
}

// fact is a property of the object of an action.
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

// actionPath is the address of an action.
func actionPath(name string) string { return actionsPath + "/" + name }

// actionURL is the address of an action that leads back to the page of a frame.
func actionURL(f *frame, name string, pairs ...any) string {
	q := url.Values{backKey: {f.Refresh}}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
	}
	return addressOf(actionPath(name), q)
}

const actionsPath = "/actions"

// backKey is the field of the page to show after an action.
const backKey = "back"

// backTo returns the page to show after an action: that of the form, or else the usual one.
func backTo(form url.Values, usual string) string {
	if to := form.Get(backKey); to != "" {
		return OwnPath(to)
	}
	return usual
}

// viewAction reads the page that asks for confirmation of an action.
func (p *Pages) viewAction(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	name, a, err := actionOf(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	c, err := a.confirm(ctx, s, p.operator(ctx, s), q)
	if err != nil {
		return nil, err
	}
	c.Action, c.Back = name, backTo(q, c.Back)
	if c.Other != nil {
		if q.Has(backKey) {
			c.Other.Set(backKey, c.Back)
		}
		c.OtherURL = addressOf(actionPath(name), c.Other)
	}
	c.Hidden = append(c.Hidden, pair{backKey, c.Back})
	return &view{Title: c.Question, Data: c}, nil
}

// Permit refuses a form that its sender may not send, whatever it says: it needs a role, unless it may own
// what the form names. Callers that are not authenticated own nothing.
func Permit(r *http.Request) error {
	name, acts := strings.CutPrefix(r.URL.Path, actionsPath+"/")
	if r.Method != http.MethodPost || !acts || actions[name].owned && access.Of(r.Context()).Authenticated() {
		return nil
	}
	return access.Allow(r.Context(), access.Operate)
}

// operator returns the verbs for who sends a request.
func (p *Pages) operator(ctx context.Context, s *Session) inspect.Operator {
	return inspect.NewOperator(s.reader(p.log), audit.Caller{Identity: access.Of(ctx), From: cmp.Or(server.AddressOf(ctx), s.Client.Host()), RequestID: server.RequestIDOf(ctx)})
}

// act carries out a confirmed action.
func (p *Pages) act(ctx context.Context, s *Session, r *http.Request) (to string, err error) {
	name, a, err := actionOf(r)
	if err != nil {
		return "", err
	}
	o := p.operator(ctx, s)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actionTimeout)
	defer cancel()
	if err := a.may(ctx, s, o, r.PostForm); err != nil {
		return "", err
	}
	t, err := a.task(o.By.String(), r.PostForm)
	if err != nil {
		return "", err
	}
	result, err := t.do(ctx, s, o)
	switch {
	case problem.CodeOf(err) == problem.Precondition:
		if back := r.PostForm.Get(backKey); back != "" {
			t.query.Set(backKey, OwnPath(back))
		}
		return p.withMessage(addressOf(actionPath(name), t.query), "Nothing was done: "+err.Error()), nil
	case err != nil:
		return "", err
	}
	return p.withMessage(backTo(r.PostForm, t.back), result), nil
}

// stale is the error of a task whose object has changed since the confirmation.
func stale(format string, args ...any) error {
	return problem.New(problem.Precondition, format, args...)
}
