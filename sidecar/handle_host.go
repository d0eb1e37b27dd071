package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

const hostsPath = "/v1/hosts"

// listHosts answers GET /v1/hosts. An entry that can't be read is left out, and
// told in the log.
func (a *api) listHosts(ctx context.Context, _ *struct{}) (*output[List[Host]], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	all, err := s.client.Hosts(ctx)
	if err != nil && len(all) == 0 {
		return nil, err
	}
	if err != nil {
		a.log.Warn("entries of hosts can't be read", keyError, err)
	}
	list := List[Host]{Items: make([]Host, len(all))}
	for i, h := range all {
		list.Items[i] = Host{
			Host: h.Host, Instance: h.Instance, Role: h.Role, Version: h.Version,
			PID: h.PID, Capacity: h.Capacity, Since: h.Since,
		}
	}
	return outputOf(list, nil)
}

// registerHosts registers the endpoint of hosts.
func (a *api) registerHosts(h huma.API) {
	handle(a, h, operation(h, "list-hosts", http.MethodGet, hostsPath, "hosts", "List the instances that are seen now"), a.listHosts)
}
