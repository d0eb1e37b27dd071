package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/sidecar/api"
)

// getLimits answers GET /v1/limits.
func (a *apiServer) getLimits(ctx context.Context, s *session, _ *struct{}) (*output[api.Limits], error) {
	l, _, err := s.runs.Limits(ctx)
	return outputOf(limitsOf(l), err)
}

// putLimits answers PUT /v1/limits.
func (a *apiServer) putLimits(ctx context.Context, s *session, _ *withBody, c api.LimitsChange) (*output[api.Limits], error) {
	change := run.LimitsChange{MaxConcurrentRuns: c.MaxConcurrentRuns, Replace: c.Tags != nil}
	for _, t := range c.Tags {
		change.Tags = append(change.Tags, run.TagLimit(t))
	}
	l, err := s.operator(ctx).SetLimits(ctx, change)
	if err != nil {
		return nil, err
	}
	return outputOf(limitsOf(l), nil)
}

func limitsOf(l run.Limits) api.Limits {
	limits := api.Limits{MaxConcurrentRuns: l.MaxConcurrentRuns, Tags: make([]api.TagLimit, len(l.Tags))}
	for i, t := range l.Tags {
		limits.Tags[i] = api.TagLimit(t)
	}
	return limits
}

// registerLimits registers the endpoints of limits.
func (a *apiServer) registerLimits(h huma.API) {
	const tag = "limits"
	handle(a, h, operation(h, "get-limits", http.MethodGet, api.LimitsPath, tag, "Get the limits under which runs are admitted"), a.getLimits)
	op := operation(h, "put-limits", http.MethodPut, api.LimitsPath, tag, "Set the limits under which runs are admitted")
	op.Description = "What is left out stays; tags replace all that there are. Runs in progress go on, whatever the limits are."
	handleBody(a, h, op, false, func(in *withBody) []byte { return in.RawBody }, a.putLimits)
}
