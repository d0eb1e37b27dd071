package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
)

const coordinatorPath = "/v1/coordinator"

// getCoordinator answers GET /v1/coordinator. Nobody may be one.
func (a *api) getCoordinator(ctx context.Context, _ *struct{}) (*output[Coordinator], error) {
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
func (a *api) registerCoordinator(h huma.API) {
	op := operation(h, "get-coordinator", http.MethodGet, coordinatorPath, "coordinator", "Look who admits runs, and who would")
	op.Description = "A leader with nothing to do tells of its ticks every 10 seconds."
	handle(a, h, op, a.getCoordinator)
}
