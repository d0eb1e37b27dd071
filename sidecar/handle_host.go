package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
)

// listHosts answers GET /v1/hosts. An entry that can't be read is left out, and logged.
func (a *apiServer) listHosts(ctx context.Context, _ *struct{}) (*output[api.List[api.Host]], error) {
	f, err := a.fleet(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(api.List[api.Host]{Items: f.Hosts}, nil)
}

// fleet reads all instances, and logs what can't be read.
func (a *apiServer) fleet(ctx context.Context) (*inspect.Fleet, error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	f, err := s.reader.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	for _, err := range f.Bad {
		a.log.Warn("an instance or the mode of a worker can't be read", keyError, err)
	}
	return f, nil
}

// registerHosts registers the endpoint of hosts.
func (a *apiServer) registerHosts(h huma.API) {
	op := operation(h, "list-hosts", http.MethodGet, api.HostsPath, "hosts", "List the instances that are seen now")
	op.Description = "And those that are gone and have something that is their own still."
	handle(a, h, op, a.listHosts)
}
