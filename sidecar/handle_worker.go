package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/ui"
)

const workersPath = "/v1/workers"

// Worker is a worker as it is now.
type Worker struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	State    string `json:"state" enum:"working,draining,drained,stopping,stopped" doc:"draining and stopping while it has something still."`

	Queues      []string  `json:"queues,omitempty" nullable:"false" doc:"Queues that it takes step instances from."`
	Concurrency int       `json:"concurrency" doc:"How many step instances it runs at a time; 0 of one that is not seen."`
	Active      int       `json:"active" doc:"How many it has now."`
	Version     string    `json:"version,omitempty"`
	Since       time.Time `json:"since,omitzero" doc:"When it took its name."`
	Gone        bool      `json:"gone,omitempty" doc:"It is not seen. It is listed while something is its own still, or while it is not to work when it comes back."`
	WorkLeft    Duration  `json:"work_left,omitzero" doc:"Of one that is gone: how long what it has stays its own unless it comes back."`

	ChangedAt time.Time `json:"changed_at,omitzero" doc:"When it was drained or stopped."`
	ChangedBy string    `json:"changed_by,omitempty" doc:"Who has done that, and from where."`
	Reason    string    `json:"reason,omitempty"`
}

// WorkerChange says why the mode of a worker is changed.
type WorkerChange struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"One line, kept with the worker and its action."`
}

// Workers are the workers among the instances that are seen or have something still, and
// those that are not to work when they come back; by name.
func Workers(hosts []Host, states map[step.WorkerID]step.WorkerState) []Worker {
	all, known := []Worker{}, map[step.WorkerID]bool{}
	add := func(id step.WorkerID, w Worker) {
		known[id] = true
		s := states[id]
		w.Host, w.Instance, w.State = id[0], id[1], s.Name(w.Active)
		w.ChangedAt, w.ChangedBy, w.Reason = s.At, s.By, s.Reason
		if s.From != "" {
			w.ChangedBy += " from " + s.From
		}
		all = append(all, w)
	}
	for _, h := range hosts {
		id := step.WorkerID{h.Host, h.Instance}
		if _, kept := states[id]; h.Capacity > 0 || h.Gone && (h.ActiveSteps > 0 || kept) {
			add(id, Worker{
				Queues: h.Queues, Concurrency: h.Capacity, Active: h.ActiveSteps, Version: h.Version, Since: h.Since,
				Gone: h.Gone, WorkLeft: h.WorkLeft,
			})
		}
	}
	for id := range states {
		if !known[id] {
			add(id, Worker{Gone: true})
		}
	}
	slices.SortFunc(all, func(a, b Worker) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance)) })
	return all
}

// WithStates has hosts say whether the workers among them work. Of one that is gone that is
// known only if it is not to work when it comes back.
func WithStates(hosts []Host, states map[step.WorkerID]step.WorkerState) []Host {
	for i := range hosts {
		h := &hosts[i]
		s, kept := states[step.WorkerID{h.Host, h.Instance}]
		if h.Capacity > 0 || kept {
			h.State = s.Name(h.ActiveSteps)
		}
	}
	return hosts
}

// WorkerVerbs are what operators can ask of workers, by the mode that it leads to.
var WorkerVerbs = map[string]step.WorkerMode{"drain": step.Drained, "stop": step.Stopped, "resume": step.Working}

// ControlWorker asks a worker for what a verb says, and records that among the actions, in
// one transaction. Hosts are read first, so that a worker that nobody knows is a NotFound
// problem. It returns the worker as it is then.
func ControlWorker(ctx context.Context, runs run.Store, steps step.Store, hosts func(context.Context) ([]Host, error), verb string, id step.WorkerID, by step.WorkerState) (w Worker, changed bool, err error) {
	if by.Reason != "" && (len(by.Reason) > pool.MaxText*8 || !pool.IsLine(by.Reason)) {
		return w, false, problem.Field("reason", "it must be one line of at most %d bytes, without characters that change its direction", pool.MaxText*8)
	}
	find := func() error {
		seen, err := hosts(ctx)
		if err != nil && len(seen) == 0 {
			return err
		}
		states, _, err := steps.WorkerStates(ctx)
		if err != nil {
			return err
		}
		all := Workers(seen, states)
		i := slices.IndexFunc(all, func(w Worker) bool { return w.Host == id[0] && w.Instance == id[1] })
		if i < 0 {
			return problem.New(problem.NotFound, "there is no worker %s: 'berth worker list' shows those that are seen", id)
		}
		w = all[i]
		return nil
	}
	known := find()
	if known != nil && problem.CodeOf(known) != problem.NotFound {
		return w, false, known
	}
	if known != nil && !bad(ctx, steps, id) { // what can't be read is mended by a change
		return w, false, known
	}
	by.Mode, by.At = WorkerVerbs[verb], time.Now()
	changed, err = steps.SetWorkerMode(ctx, id, by, func(ctx context.Context, before step.WorkerMode) (*pb.RequestOp, error) {
		return ui.ActionOp(ctx, runs, ui.Action{
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

// hosts are the instances that are seen, and those that are gone and have something still.
func (s *session) hosts(ctx context.Context) ([]Host, error) {
	seen, bad := s.client.Hosts(ctx)
	if bad != nil && len(seen) == 0 {
		return nil, bad
	}
	active, err := s.runs.steps.Active(ctx)
	if err != nil {
		return nil, err
	}
	return HostsWithGone(ctx, s.runs.store.Backend, s.runs.store.Keys, seen, active, nil)
}

// listWorkers answers GET /v1/workers.
func (a *api) listWorkers(ctx context.Context, _ *struct{}) (*output[List[Worker]], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	hosts, err := s.hosts(ctx)
	if err != nil {
		return nil, err
	}
	states, err := a.workerStates(ctx, s)
	if err != nil {
		return nil, err
	}
	return outputOf(List[Worker]{Items: Workers(hosts, states)}, nil)
}

// workerStates reads what is kept of workers. What can't be read is left out, and in the log.
func (a *api) workerStates(ctx context.Context, s *session) (map[step.WorkerID]step.WorkerState, error) {
	states, unread, err := s.runs.steps.WorkerStates(ctx)
	for _, err := range unread {
		a.log.Warn("the mode of a worker can't be read", keyError, err)
	}
	return states, err
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
		if p, ok := peerOf(ctx); ok && p.known {
			by.By, by.From = fmt.Sprintf("uid %d", p.uid), s.client.Host()
		}
		w, changed, err := ControlWorker(ctx, s.runs.store, s.runs.steps, s.hosts, verb, id, by)
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
