package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/server"
	"github.com/berthhq/berth/sidecar/ui"
)

const workersPath = "/v1/workers"

// WorkerChange says why the mode of a worker is changed.
type WorkerChange struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"One line, kept with the worker and its action."`
}

// WorkerVerbs are what operators can ask of workers, by the mode that it leads to.
var WorkerVerbs = map[string]step.WorkerMode{"drain": step.Drained, "stop": step.Stopped, "resume": step.Working}

// ControlWorker asks a worker for what a verb says, and records that among the actions, in
// one transaction. Hosts are read first, so that a worker that nobody knows is a NotFound
// problem. It returns the worker as it is then.
func ControlWorker(ctx context.Context, r *inspect.Reader, verb string, id step.WorkerID, by step.WorkerState) (w Worker, changed bool, err error) {
	if by.Reason != "" && (len(by.Reason) > pool.MaxText*8 || !pool.IsLine(by.Reason)) {
		return w, false, problem.Field("reason", "it must be one line of at most %d bytes, without characters that change its direction", pool.MaxText*8)
	}
	find := func() error {
		f, err := r.Fleet(ctx)
		if err != nil {
			return err
		}
		w, err = f.Worker(id)
		return err
	}
	known := find()
	if known != nil && problem.CodeOf(known) != problem.NotFound {
		return w, false, known
	}
	if known != nil && !bad(ctx, r.Steps, id) { // a change replaces what can't be read
		return w, false, known
	}
	by.Mode, by.At = WorkerVerbs[verb], time.Now()
	changed, err = r.Steps.SetWorkerMode(ctx, id, by, func(ctx context.Context, before step.WorkerMode) (*pb.RequestOp, error) {
		return ui.ActionOp(ctx, r.Runs, ui.Action{
			Who: by.By, From: by.From, At: by.At, Action: "worker-" + verb, Object: id.String(), Detail: by.Reason,
			Result: fmt.Sprintf("its mode was %s and is %s", cmp.Or(before, "one that can't be read"), by.Mode),
		})
	})
	if err != nil {
		return w, false, err
	}
	w = Worker{}
	if err := find(); problem.CodeOf(err) == problem.NotFound { // it was only known for its mode
		return Worker{Host: id[0], Instance: id[1], State: string(step.Working), Gone: true}, changed, nil
	} else if err != nil {
		return w, changed, err
	}
	return w, changed, nil
}

// bad tells whether the mode of a worker is kept and can't be read.
func bad(ctx context.Context, steps step.Store, id step.WorkerID) bool {
	resp, err := steps.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(steps.Keys.Worker(id[0], id[1])), KeysOnly: true})
	return err == nil && len(resp.Kvs) > 0
}

// listWorkers answers GET /v1/workers.
func (a *api) listWorkers(ctx context.Context, _ *struct{}) (*output[List[Worker]], error) {
	f, err := a.fleet(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(List[Worker]{Items: f.Workers}, nil)
}

// workerBody is the input of an endpoint that changes a worker.
type workerBody struct {
	Host     string `path:"host"`
	Instance string `path:"instance"`
	RawBody  []byte `contentType:"application/json"`

	from string
}

// Resolve notes where the request came from.
func (in *workerBody) Resolve(c huma.Context) []error {
	in.from = c.RemoteAddr()
	return nil
}

// controlWorker answers POST /v1/workers/{host}/{instance}/VERB.
func (a *api) controlWorker(verb string) func(context.Context, *workerBody, WorkerChange) (*output[Worker], error) {
	return func(ctx context.Context, in *workerBody, req WorkerChange) (*output[Worker], error) {
		s, err := a.ready()
		if err != nil {
			return nil, err
		}
		id, err := step.ParseWorkerID(in.Host + "/" + in.Instance)
		if err != nil {
			return nil, err
		}
		by := step.WorkerState{By: "HTTP", From: in.from, Reason: req.Reason}
		if p, ok := server.PeerOf(ctx); ok && p.Known {
			by.By, by.From = fmt.Sprintf("uid %d", p.UID), s.client.Host()
		}
		w, changed, err := ControlWorker(ctx, s.reader, verb, id, by)
		if err == nil && changed {
			a.log.Info("the mode of a worker was changed", "worker", id, "mode", WorkerVerbs[verb], "by", by.By, keyFrom, by.From)
		}
		return outputOf(w, err)
	}
}

// registerWorkers registers the endpoints of workers.
func (a *api) registerWorkers(h huma.API) {
	const tag = "workers"
	op := operation(h, "list-workers", http.MethodGet, workersPath, tag, "List workers, what they have, and whether they work")
	op.Description = "By name: those that are seen, those that are gone and have something still, and those that are not to work when they come back."
	handle(a, h, op, a.listWorkers)
	for verb, text := range map[string][2]string{
		"drain":  {"Have a worker take nothing new", "What it has goes on. It stays so, also when it restarts, until it is resumed."},
		"stop":   {"Have a worker take nothing new, and stop what it has", "Its commands get TERM, and KILL after its grace; what has retries left is tried by other workers, the rest is canceled. It stays so, also when it restarts, until it is resumed."},
		"resume": {"Have a worker take steps again", "What was asked for before counts no more."},
	} {
		op := operation(h, verb+"-worker", http.MethodPost, workersPath+"/{host}/{instance}/"+verb, tag, text[0])
		op.Description = text[1] + " The worker sees that in etcd, whatever host it is on. Who has asked is kept among the actions. Asking again changes nothing."
		handleBody(a, h, op, true, func(in *workerBody) []byte { return in.RawBody }, a.controlWorker(verb))
	}
}
