package sidecar

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// listHosts answers GET /v1/hosts. An entry that can't be read is left out, and logged.
func (a *apiServer) listHosts(ctx context.Context, s *session, _ *struct{}) (*output[api.List[api.Host]], error) {
	f, err := a.fleet(ctx, s)
	if err != nil {
		return nil, err
	}
	return outputOf(api.List[api.Host]{Items: f.Hosts}, nil)
}

// fleet reads all instances, and logs what can't be read.
func (a *apiServer) fleet(ctx context.Context, s *session) (*inspect.Fleet, error) {
	f, err := s.reader.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	for _, err := range f.Bad {
		a.faults.Log(a.log, hclog.Warn, "hosts", "an instance or the mode of a worker can't be read", server.LogArgs(ctx, keyError, err)...)
	}
	return f, nil
}

// registerHosts registers the endpoint of hosts.
func (a *apiServer) registerHosts(h huma.API) {
	op := operation(h, "list-hosts", http.MethodGet, api.HostsPath, "hosts", "List the live instances")
	op.Description = "And those that are gone and still have claims, runs or steps."
	handle(a, h, op, a.listHosts)
}

// getCoordinator answers GET /v1/coordinator. There may be no leader.
func (a *apiServer) getCoordinator(ctx context.Context, s *session, _ *struct{}) (*output[api.Coordinator], error) {
	all, err := s.runs.Candidates(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.CoordinatorOf(all), nil)
}

// registerCoordinator registers the endpoint of the coordinator.
func (a *apiServer) registerCoordinator(h huma.API) {
	op := operation(h, "get-coordinator", http.MethodGet, api.CoordinatorPath, "coordinator", "Get the coordinator's leader and its other candidates")
	op.Description = "An idle leader reports its ticks every 10 seconds."
	handle(a, h, op, a.getCoordinator)
}

// listWorkers answers GET /v1/workers.
func (a *apiServer) listWorkers(ctx context.Context, s *session, _ *struct{}) (*output[api.List[api.Worker]], error) {
	f, err := a.fleet(ctx, s)
	if err != nil {
		return nil, err
	}
	return outputOf(api.List[api.Worker]{Items: f.Workers}, nil)
}

// workerBody is the input of an endpoint that changes a worker.
type workerBody struct {
	Host     string `path:"host"`
	Instance string `path:"instance"`
	RawBody  []byte `contentType:"application/json"`
}

// operator carries out verbs for who sent a request.
func (s *session) operator(ctx context.Context) inspect.Operator {
	return inspect.NewOperator(s.reader, audit.Caller{Identity: access.Of(ctx), From: cmp.Or(server.AddressOf(ctx), s.client.Host()), RequestID: server.RequestIDOf(ctx)})
}

// conditions are the headers of a request that name the state which it requires.
type conditions interface {
	Condition(what string) (func(revision int64) error, error)
}

// operatorIf returns the verbs, under conditions on the state of what they change.
func (s *session) operatorIf(ctx context.Context, when conditions, what string) (o inspect.Operator, err error) {
	o = s.operator(ctx)
	o.If, err = when.Condition(what)
	return o, err
}

// controlWorker answers POST /v1/workers/{host}/{instance}/VERB.
func (a *apiServer) controlWorker(verb string) func(context.Context, *session, *workerBody, api.WorkerChange) (*output[api.Worker], error) {
	return func(ctx context.Context, s *session, in *workerBody, req api.WorkerChange) (*output[api.Worker], error) {
		id, err := step.ParseWorkerID(in.Host + "/" + in.Instance)
		if err != nil {
			return nil, err
		}
		w, _, err := s.operator(ctx).SetWorkerMode(ctx, verb, id, req.Reason)
		return outputOf(w, err)
	}
}

// registerWorkers registers the endpoints of workers.
func (a *apiServer) registerWorkers(h huma.API) {
	const tag = "workers"
	op := operation(h, "list-workers", http.MethodGet, api.WorkersPath, tag, "List workers, what they have, and whether they work")
	op.Description = "By name: those that are seen, those that are gone and have something still, and those that are not to work when they come back."
	handle(a, h, op, a.listWorkers)
	for verb, text := range map[string][2]string{
		"drain":  {"Have a worker take nothing new", "What it has goes on. It stays so, also when it restarts, until it is resumed."},
		"stop":   {"Have a worker take nothing new, and stop what it has", "Its commands get TERM, and KILL after its grace; what has retries left is tried by other workers, the rest is canceled. It stays so, also when it restarts, until it is resumed."},
		"resume": {"Have a worker take steps again", "What was asked for before counts no more."},
	} {
		op := operation(h, verb+"-worker", http.MethodPost, api.WorkersPath+"/{host}/{instance}/"+verb, tag, text[0])
		op.Description = text[1] + " The worker sees that in etcd, whatever host it is on. Who has asked is kept among the actions. Asking again changes nothing."
		handleBody(a, h, op, true, func(in *workerBody) []byte { return in.RawBody }, a.controlWorker(verb+"-worker"))
	}
}

// actionListInput is the input of GET /v1/actions.
type actionListInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many to answer at most."`
	Cursor string `query:"cursor" maxLength:"64" doc:"Where to begin: next of the page before."`
}

// listActions answers GET /v1/actions.
func (a *apiServer) listActions(ctx context.Context, s *session, in *actionListInput) (*output[inspect.ActionList], error) {
	return outputOf(s.reader.Actions(ctx, in.Cursor, in.Limit))
}

// registerActions registers the endpoint of actions.
func (a *apiServer) registerActions(h huma.API) {
	op := operation(h, "list-actions", http.MethodGet, api.ActionsPath, "actions", "List what operators asked for, the newest first")
	op.Description = "Each action has who asked for it and from where, the state before and after, and its outcome; whether it was asked for over HTTP, by the berth command or on a page. Actions are kept as long as the events of runs."
	handle(a, h, op, a.listActions)
}
