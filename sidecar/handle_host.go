package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/lease"
)

const hostsPath = "/v1/hosts"

// listHosts answers GET /v1/hosts. An entry that can't be read is left out, and
// told in the log. What is active is counted at another moment than hosts are listed.
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
	active, err := s.runs.steps.Active(ctx)
	if err != nil {
		return nil, err
	}
	candidates, err := s.runs.store.Candidates(ctx)
	if err != nil {
		return nil, err
	}
	hosts, err := HostsWithGone(ctx, s.runs.store.Backend, s.runs.store.Keys, all, active, candidates)
	if err != nil {
		return nil, err
	}
	states, err := a.workerStates(ctx, s)
	if err != nil {
		return nil, err
	}
	return outputOf(List[Host]{Items: WithStates(hosts, states)}, nil)
}

// HostsOf tells of the instances that are seen, with what they execute. Of the
// candidates for the coordinator's part the first leads.
func HostsOf(all []lease.PresenceRecord, active []step.Active, candidates []run.Candidate) []Host {
	counts := step.ActiveByName(active)
	hosts := make([]Host, len(all))
	for i, h := range all {
		n := counts[[2]string{h.Host, h.Instance}]
		hosts[i] = Host{
			Host: h.Host, Instance: h.Instance, Role: h.Role, Version: h.Version,
			PID: h.PID, Capacity: h.Capacity, Queues: h.Queues, Since: h.Since,
			ActiveSteps: n.Steps, ActiveRuns: n.Runs,
			Leader: len(candidates) > 0 && candidates[0].Host == h.Host && candidates[0].Instance == h.Instance,
		}
	}
	return hosts
}

// registerHosts registers the endpoint of hosts.
func (a *api) registerHosts(h huma.API) {
	op := operation(h, "list-hosts", http.MethodGet, hostsPath, "hosts", "List the instances that are seen now")
	op.Description = "And those that are gone and have something that is their own still."
	handle(a, h, op, a.listHosts)
}
