package sidecar

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// retryRun answers POST /v1/runs/{id}/retry.
func (a *apiServer) retryRun(ctx context.Context, in *withID, req api.RunRetry) (*output[api.Run], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
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
func (a *apiServer) retryStep(ctx context.Context, in *stepBodyInput, req api.StepRetry) (*output[api.StepInstance], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	which := step.Which{Step: in.Step, Index: in.Index}
	if _, err := s.operator(ctx).RetryRun(ctx, in.ID, tidy(req.Reason), which); err != nil {
		return nil, err
	}
	return outputOfStep(s.steps.Get(ctx, in.id()))
}

// cancelStep answers POST /v1/runs/{id}/steps/{step}/{index}/cancel.
func (a *apiServer) cancelStep(ctx context.Context, in *stepInput) (*output[api.StepInstance], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
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
