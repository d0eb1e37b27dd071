package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
)

// getCoordinator answers GET /v1/coordinator. Nobody may be one.
func (a *apiServer) getCoordinator(ctx context.Context, _ *struct{}) (*output[api.Coordinator], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	all, err := s.runs.Candidates(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.CoordinatorOf(all), nil)
}

// registerCoordinator registers the endpoint of the coordinator.
func (a *apiServer) registerCoordinator(h huma.API) {
	op := operation(h, "get-coordinator", http.MethodGet, api.CoordinatorPath, "coordinator", "Look who admits runs, and who would")
	op.Description = "A leader with nothing to do tells of its ticks every 10 seconds."
	handle(a, h, op, a.getCoordinator)
}
