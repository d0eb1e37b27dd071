package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/sidecar/api"
)

// getLimits answers GET /v1/limits.
func (a *apiServer) getLimits(ctx context.Context, s *session, _ *struct{}) (*tagged[api.Limits], error) {
	l, rev, err := s.runs.Limits(ctx)
	return limitsOutput(l, rev, err)
}

// limitsPut is the input of PUT /v1/limits.
type limitsPut struct {
	api.Put
	Payload
}

// limitsPatch is the input of PATCH /v1/limits.
type limitsPatch struct {
	api.IfMatch
	Payload
}

// putLimits answers PUT /v1/limits.
func (a *apiServer) putLimits(ctx context.Context, s *session, in *limitsPut, c api.LimitsChange) (*tagged[api.Limits], error) {
	change := limitsChange(c)
	if change.Replace = true; change.MaxConcurrentRuns == nil {
		change.MaxConcurrentRuns = new(run.DefaultMaxRuns)
	}
	return s.setLimits(ctx, in.Put, change)
}

// patchLimits answers PATCH /v1/limits.
func (a *apiServer) patchLimits(ctx context.Context, s *session, in *limitsPatch, c api.LimitsChange) (*tagged[api.Limits], error) {
	return s.setLimits(ctx, in.IfMatch, limitsChange(c))
}

func limitsChange(c api.LimitsChange) run.LimitsChange {
	change := run.LimitsChange{MaxConcurrentRuns: c.MaxConcurrentRuns, Replace: c.Tags != nil}
	for _, t := range c.Tags {
		change.Tags = append(change.Tags, run.TagLimit(t))
	}
	return change
}

// setLimits changes the limits under the conditions of a request.
func (s *session) setLimits(ctx context.Context, when conditions, change run.LimitsChange) (*tagged[api.Limits], error) {
	o, err := s.operatorIf(ctx, when, "the limits")
	if err != nil {
		return nil, err
	}
	l, rev, err := o.SetLimits(ctx, change)
	return limitsOutput(l, rev, err)
}

func limitsOutput(l run.Limits, rev int64, err error) (*tagged[api.Limits], error) {
	if err != nil {
		return nil, err
	}
	return &tagged[api.Limits]{api.ETag(rev), limitsOf(l)}, nil
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
	op := operation(h, "put-limits", http.MethodPut, api.LimitsPath, tag, "Replace the limits under which runs are admitted")
	op.Description = "What is left out gets its default. Runs in progress go on, whatever the limits are."
	handleBody(a, h, op, false, func(in *limitsPut) []byte { return in.bytes() }, a.putLimits)
	op = operation(h, "patch-limits", http.MethodPatch, api.LimitsPath, tag, "Change the limits under which runs are admitted")
	op.Description = "What is left out stays; tags replace all that there are. Runs in progress go on, whatever the limits are."
	handleBody(a, h, op, false, func(in *limitsPatch) []byte { return in.bytes() }, a.patchLimits)
}
