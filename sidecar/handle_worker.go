package sidecar

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// listWorkers answers GET /v1/workers.
func (a *apiServer) listWorkers(ctx context.Context, _ *struct{}) (*output[api.List[api.Worker]], error) {
	f, err := a.fleet(ctx)
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
	who, from := server.CallerOf(ctx)
	return inspect.Operator{Reader: s.reader, By: audit.Caller{Who: who, From: cmp.Or(from, s.client.Host())}}
}

// controlWorker answers POST /v1/workers/{host}/{instance}/VERB.
func (a *apiServer) controlWorker(verb string) func(context.Context, *workerBody, api.WorkerChange) (*output[api.Worker], error) {
	return func(ctx context.Context, in *workerBody, req api.WorkerChange) (*output[api.Worker], error) {
		s, err := a.ready()
		if err != nil {
			return nil, err
		}
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
