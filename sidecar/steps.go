package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

const stepsPath = api.RunsPath + "/{id}/steps"

// stepInput is the input of an endpoint of one step instance.
type stepInput struct {
	ID    string `path:"id"`
	Step  string `path:"step"`
	Index int    `path:"index" minimum:"0"`
}

func (in *stepInput) id() store.StepID {
	return store.StepID{Run: in.ID, Step: in.Step, Index: in.Index}
}

// stepBodyInput is the input of an endpoint of one step instance with a body.
type stepBodyInput struct {
	ID      string `path:"id"`
	Step    string `path:"step"`
	Index   int    `path:"index" minimum:"0"`
	RawBody []byte `contentType:"application/json"`
}

func (in *stepBodyInput) id() store.StepID {
	return store.StepID{Run: in.ID, Step: in.Step, Index: in.Index}
}

// mayReadInstance is [session.mayRead]; the executor of the instance may read it, too. The id can also be
// that of a run.
func (s *session) mayReadInstance(ctx context.Context, id store.StepID) error {
	refused := s.mayRead(ctx, id.Run)
	if refused == nil || id.Step == "" || !access.Of(ctx).Authenticated() {
		return refused
	}
	if i, err := s.steps.Get(ctx, id); err == nil && i.Executor != nil && access.Of(ctx).Is(i.Executor.By) {
		return nil
	}
	return refused
}

// listSteps answers GET /v1/runs/{id}/steps.
func (a *apiServer) listSteps(ctx context.Context, s *session, in *idInput) (*output[api.StepList], error) {
	if err := s.mayRead(ctx, in.ID); err != nil {
		return nil, err
	}
	o, err := s.steps.Overview(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	waits, err := s.reader.Waits(ctx, o)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.StepsWaitingOf(o, waits), nil)
}

// listInstances answers GET /v1/runs/{id}/steps/{step}.
func (a *apiServer) listInstances(ctx context.Context, s *session, in *api.StepListInput) (*output[api.StepInstanceList], error) {
	page, err := in.Page()
	if err != nil {
		return nil, err
	}
	if err := s.mayRead(ctx, in.ID); err != nil {
		return nil, err
	}
	found, err := s.steps.Instances(ctx, in.ID, in.Step, page)
	if err != nil {
		return nil, err
	}
	list := api.StepInstanceList{Items: make([]api.StepInstance, len(found.Items)), Unreadable: inspect.UnreadableOf(found.Bad)}
	for n, i := range found.Items {
		list.Items[n] = inspect.StepInstanceOf(i)
	}
	if found.Next > 0 {
		list.Next = strconv.Itoa(found.Next)
	}
	return outputOf(list, nil)
}

// getInstance answers GET /v1/runs/{id}/steps/{step}/{index}.
func (a *apiServer) getInstance(ctx context.Context, s *session, in *stepInput) (*output[api.StepWork], error) {
	if err := s.mayReadInstance(ctx, in.id()); err != nil {
		return nil, err
	}
	d, err := s.steps.Detail(ctx, in.id())
	if err != nil {
		return nil, err
	}
	w := inspect.StepWorkOf(d)
	if d.Status == step.Scheduled {
		a, err := s.reader.Outlook().Around(ctx, func(of step.Status) bool { return of == step.Scheduled })
		if err != nil {
			return nil, err
		}
		wait := d.Shape.Wait(a)
		w.BlockReason, w.BlockKind = wait.Text, string(wait.Kind)
	}
	return outputOf(w, nil)
}

// registerSteps registers the endpoints of steps.
func (a *apiServer) registerSteps(h huma.API) {
	const tag, one = "steps", stepsPath + "/{step}"
	op := operation(h, "list-steps", http.MethodGet, stepsPath, tag, "List the steps of a run")
	op.Description = "In the order in which they can run, all at one revision. A run without steps has none, and so has one that is still being stored."
	handle(a, h, op, a.listSteps)
	op = operation(h, "list-step-instances", http.MethodGet, one, tag, "List the instances of a step")
	op.Description = "By index."
	handle(a, h, op, a.listInstances)
	handle(a, h, operation(h, "get-step-instance", http.MethodGet, one+"/{index}", tag, "Get an instance of a step, with what it is to do"), a.getInstance)
	a.registerLog(h)
	a.registerRetrying(h)
}

// maxLogWait bounds the wait for what an attempt has written so far.
const maxLogWait = 10 * time.Second

// logInput is the input of GET /v1/runs/{id}/steps/{step}/{index}/log.
type logInput struct {
	ID    string `path:"id"`
	Step  string `path:"step"`
	Index int    `path:"index" minimum:"0"`
	Wait  string `query:"wait" example:"2s" doc:"How long to wait, where a worker runs the instance, until it has shown what the attempt has written so far: 0s to 10s, 2s if left out."`
}

func (in *logInput) id() store.StepID {
	return store.StepID{Run: in.ID, Step: in.Step, Index: in.Index}
}

// logOutput answers with what a command has written: bytes of any kind, which no reader
// should take for a page.
type logOutput struct {
	ContentType string `header:"Content-Type"`
	Sniff       string `header:"X-Content-Type-Options"`
	Attempt     int    `header:"Berth-Output-Attempt" doc:"Which attempt has written it, 1 for the first."`
	LeftOut     int64  `header:"Berth-Output-Left-Out" doc:"How many bytes it has written before this."`
	Running     bool   `header:"Berth-Output-Running" doc:"Whether it runs still, and may write more."`
	File        string `header:"Berth-Output-File" doc:"Where all of it is, as file://HOST/PATH; left out if it is kept nowhere. The file stays for up to 24 hours after the attempt."`
	Body        []byte
}

const textType = "text/plain"

// getStepLog answers GET /v1/runs/{id}/steps/{step}/{index}/log.
func (a *apiServer) getStepLog(ctx context.Context, s *session, v *step.Viewer, in *logInput) (*logOutput, error) {
	wait, err := parseWait(in.Wait, step.ShowWithin, maxLogWait)
	if err != nil {
		return nil, err
	}
	if err := s.mayReadInstance(ctx, in.id()); err != nil {
		return nil, err
	}
	seen, err := a.see(ctx, s, v, in, wait)
	switch {
	case err != nil:
		return nil, err
	case seen.Log == nil && seen.Unasked != nil:
		return nil, seen.Unasked
	case seen.Log == nil:
		return nil, step.NoLog(in.id())
	}
	return logOutputOf(seen), nil
}

// see reads the output of an instance. It does not wait if the limit of waits is reached,
// or the server stops: what is kept is an answer, too.
func (a *apiServer) see(ctx context.Context, s *session, v *step.Viewer, in *logInput, wait time.Duration) (*step.Seen, error) {
	if leave, err := a.watching.Enter(server.KeyOf(ctx)); err == nil {
		defer leave()
	} else {
		wait = 0
	}
	waiting, one, err := a.waits.enter(ctx, "", nil)
	if err != nil {
		return v.See(ctx, s.steps, in.id(), 0)
	}
	defer a.waits.leave(one)
	seen, err := v.See(waiting, s.steps, in.id(), wait)
	if ended := a.waits.ended(one); ended != nil {
		return nil, ended
	}
	return seen, err
}

func logOutputOf(seen *step.Seen) *logOutput {
	l := seen.Log
	out := &logOutput{
		ContentType: textType + "; charset=utf-8", Sniff: "nosniff",
		Attempt: l.Attempt, LeftOut: l.Before, Running: l.Standing(&seen.Instance) == step.SoFar, Body: l.Text,
	}
	if l.File != "" {
		out.File = (&url.URL{Scheme: "file", Host: l.Host, Path: l.File}).String()
	}
	return out
}

// registerLog registers the endpoint of the output of step instances.
func (a *apiServer) registerLog(h huma.API) {
	op := operation(h, "get-step-log", http.MethodGet, stepsPath+"/{step}/{index}/log", "steps", "Read the end of what an instance's last attempt has written")
	op.Description = "At most 16 KiB: of the last attempt that has ended, or of one that a worker runs, as far as it has come. If nothing is kept, that is not_found."
	op.Responses["200"] = &huma.Response{Description: "The text", Content: map[string]*huma.MediaType{
		textType: {Schema: &huma.Schema{Type: huma.TypeString}},
	}}
	v := &step.Viewer{}
	handle(a, h, op, func(ctx context.Context, s *session, in *logInput) (*logOutput, error) {
		return a.getStepLog(ctx, s, v, in)
	})
}

// retryRun answers POST /v1/runs/{id}/retry.
func (a *apiServer) retryRun(ctx context.Context, s *session, in *withID, req api.RunRetry) (*output[api.Run], error) {
	which, err := whichOf(&req)
	if err != nil {
		return nil, err
	}
	done, err := s.operator(ctx).RetryRun(ctx, in.ID, tidy(req.Reason), which...)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.RunOf(done.Run), nil)
}

// whichOf returns the step instances that a request names; none is the whole run.
func whichOf(r *api.RunRetry) ([]step.Which, error) {
	if r.Steps != nil && len(r.Steps) == 0 {
		return nil, problem.Field("steps", "there is none: leave it out to retry the whole run")
	}
	which := make([]step.Which, len(r.Steps))
	for n, text := range r.Steps {
		var err error
		if which[n], err = step.ParseWhich(text); err != nil {
			return nil, problem.Field(fmt.Sprintf("steps[%d]", n), "%s", err)
		}
	}
	return which, nil
}

// retryStep answers POST /v1/runs/{id}/steps/{step}/{index}/retry.
func (a *apiServer) retryStep(ctx context.Context, s *session, in *stepBodyInput, req api.StepRetry) (*output[api.StepInstance], error) {
	which := step.Which{Step: in.Step, Index: in.Index}
	if _, err := s.operator(ctx).RetryRun(ctx, in.ID, tidy(req.Reason), which); err != nil {
		return nil, err
	}
	return outputOfStep(s.steps.Get(ctx, in.id()))
}

// cancelStep answers POST /v1/runs/{id}/steps/{step}/{index}/cancel.
func (a *apiServer) cancelStep(ctx context.Context, s *session, in *stepInput) (*output[api.StepInstance], error) {
	return outputOfStep(s.operator(ctx).CancelStep(ctx, in.id()))
}

// outputOfStep answers with an instance, or with an error.
func outputOfStep(i *step.Instance, err error) (*output[api.StepInstance], error) {
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.StepInstanceOf(i), nil)
}

// registerRetrying registers the endpoints that try something again, or end it.
func (a *apiServer) registerRetrying(h huma.API) {
	const one = stepsPath + "/{step}/{index}"
	op := operation(h, "retry-run", http.MethodPost, api.RunsPath+"/{id}/retry", "runs", "Queue a run once more, or try some of its step instances again")
	op.Description = "Of a run that has failed or was canceled, all is done again that has not succeeded. With steps it is those; what else has failed stays so, and a run in progress goes on meanwhile. To ask again for what is on its way already is no error, and changes nothing."
	handleBody(a, h, op, true, func(in *withID) []byte { return in.RawBody }, a.retryRun)
	op = operation(h, "retry-step", http.MethodPost, one+"/retry", "steps", "Try a step instance again that has failed or was canceled")
	op.Description = "Its run goes on, or is queued once more if it has ended. If the instance has not ended, that is no error, and changes nothing."
	handleBody(a, h, op, true, func(in *stepBodyInput) []byte { return in.RawBody }, a.retryStep)
	op = operation(h, "cancel-step", http.MethodPost, one+"/cancel", "steps", "Cancel a step instance")
	op.Description = "It counts as one that has failed, and is not tried again by itself. One that runs stays so until it was stopped. One that was canceled already is no error."
	handle(a, h, op, a.cancelStep)
}
