package sidecar

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/executor"
	"github.com/berthhq/berth/sidecar/server"
)

var runType = reflect.TypeFor[api.Run]()

// runOutput answers with a run that may be new.
type runOutput struct {
	Status int
	Body   api.Run
}

// runInput is the input of POST /v1/runs.
type runInput struct {
	Payload

	size int // of the body, in bytes
}

func (in *runInput) text() []byte {
	text := in.bytes()
	in.size = len(text)
	return text
}

// submitRun answers POST /v1/runs.
func (a *apiServer) submitRun(ctx context.Context, s *session, in *runInput, req api.RunRequest) (*runOutput, error) {
	if req.ID == "" {
		req.ID = ulid.Make().String()
	}
	graph, err := graphOf(&req, in.size)
	if err != nil {
		return nil, err
	}
	if err := maySubmit(ctx, &req, graph); err != nil {
		return nil, err
	}
	spec := run.Spec{
		Name: req.Name, Tags: req.Tags, Labels: req.Labels, Owner: req.Owner,
		Priority: req.Priority, Retries: req.Retries, Pools: req.Pools,
		NotBefore: req.NotBefore, Delay: time.Duration(req.Delay),
		MaxConcurrentSteps: req.MaxConcurrentSteps, MaxStepsPerTick: req.MaxStepsPerTick,
	}
	parent := trace.Of(ctx)
	spec.Traceparent, spec.Tracestate = parent.Traceparent, parent.Tracestate
	r, created, err := s.steps.SubmitAs(ctx, access.Of(ctx), s.runs, req.ID, spec, graph)
	if err != nil {
		return nil, err
	}
	out := &runOutput{Status: http.StatusOK, Body: inspect.RunOf(r)}
	if created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

// maySubmit refuses a run unless its submitter may submit it, and commands, to the queues of all
// steps, and may claim all slots. A run without steps has no queue, and needs the role only.
func maySubmit(ctx context.Context, req *api.RunRequest, g *step.Graph) error {
	pools := maps.Clone(req.Pools)
	if g != nil {
		if pools == nil {
			pools = api.Slots{}
		}
		for _, sh := range g.Shapes() {
			role := access.Command
			if sh.External {
				role = access.Submit
			}
			if err := access.Allow(ctx, role, sh.Queue); err != nil {
				return err
			}
			if err := mayDeclare(ctx, &sh); err != nil {
				return err
			}
			maps.Copy(pools, sh.Pools)
			if sh.Task != "" {
				pools[step.TaskPool(sh.Task)] = 1
			}
		}
	}
	if len(pools) == 0 {
		return nil
	}
	return access.Allow(ctx, access.Claim, slices.Sorted(maps.Keys(pools))...)
}

// mayDeclare refuses the limit of a task from a submitter without the role for commands in the step's
// queue: it creates a pool, which counts for the steps of all.
func mayDeclare(ctx context.Context, sh *step.Shape) error {
	if sh.TaskLimit == nil {
		return nil
	}
	err := access.Allow(ctx, access.Command, sh.Queue)
	if err == nil {
		return nil
	}
	p := problem.New(problem.CodeOf(err), "a limit creates pool '%s', for the steps of all runs: leave the limit out, or have an operator set it with 'berth pools set %s %d'; %w",
		step.TaskPool(sh.Task), step.TaskPool(sh.Task), *sh.TaskLimit, err)
	p.Field = "steps." + sh.Name + ".task.limit"
	return p
}

// mayRead refuses a caller that may view neither runs nor this one.
func (s *session) mayRead(ctx context.Context, id string) error {
	return s.reader.AllowRun(ctx, access.Of(ctx), access.View, id)
}

// orRefusal returns an error about an attempt, or the refusal for a caller that may not know of the
// run.
func (s *session) orRefusal(ctx context.Context, id string, err error) error {
	if access.Of(ctx).Grants.Has(access.Execute) || s.mayRead(ctx, id) == nil {
		return err
	}
	return access.Allow(ctx, access.Operate, access.Everything)
}

// graphOf returns the graph of a run's steps; nil without any. size is that of the body in
// bytes.
func graphOf(r *api.RunRequest, size int) (*step.Graph, error) {
	switch {
	case r.Steps != nil:
	case size > server.MaxBody: // only steps may be as long
		return nil, problem.New(problem.TooLarge, "the body is too large: use at most %d bytes for a run without steps", server.MaxBody)
	default:
		return nil, nil
	}
	return step.NewGraph(r.Steps)
}

// getRun answers GET /v1/runs/{id}.
func (a *apiServer) getRun(ctx context.Context, s *session, in *idInput) (*output[api.Run], error) {
	if err := s.mayRead(ctx, in.ID); err != nil {
		return nil, err
	}
	r, err := s.runs.Get(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.RunOf(r), nil)
}

// whyRun answers GET /v1/runs/{id}/why. All runs are read only for one that is
// queued.
func (a *apiServer) whyRun(ctx context.Context, s *session, in *idInput) (*output[api.RunWhy], error) {
	if err := s.mayRead(ctx, in.ID); err != nil {
		return nil, err
	}
	return outputOf(s.reader.WhyRun(ctx, in.ID))
}

// cancelRun answers POST /v1/runs/{id}/cancel.
func (a *apiServer) cancelRun(ctx context.Context, s *session, in *withID, req api.RunCancel) (*output[api.Run], error) {
	r, err := s.operator(ctx).CancelRun(ctx, in.ID, tidy(req.Reason), req.QueuedOnly)
	if err != nil {
		return nil, err
	}
	s.executors.Ended(in.ID, 0, string(run.Canceled))
	return outputOf(inspect.RunOf(r), nil)
}

// maxRunText bounds why a run was canceled or has failed, in bytes.
const maxRunText = 4096

// tidy makes a text of many lines fit to be kept: what is too long is cut, and
// what can't be shown becomes blank. An executor that has failed is not refused
// for the form of its message.
func tidy(s string) string {
	line := strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !pool.IsLine(string(r)) {
			return ' '
		}
		return r
	}, s)
	return text.CutWithin(line, maxRunText)
}

// startRun answers POST /v1/runs/{id}/start.
func (a *apiServer) startRun(ctx context.Context, s *session, in *withID, req api.RunStart) (*output[api.StartedRun], error) {
	begun := time.Now()
	if why := a.stopping.Load(); why != nil {
		return nil, why
	}
	ttl, err := runTTLOf(req.TTL)
	if err != nil {
		return nil, err
	}
	if err := s.reader.AllowRun(ctx, access.Of(ctx), access.Execute, in.ID); err != nil {
		return nil, err
	}
	e, err := s.executors.Start(ctx, in.ID, req.Executor, ttl)
	if err != nil {
		return nil, err
	}
	return outputOf(startedRun(s.executors.View(e), begun), nil)
}

// startedRun returns a run for its executor. The request was begun then: validity counts
// from there.
func startedRun(v executor.View, begun time.Time) api.StartedRun {
	s := api.StartedRun{Validity: validityOf(v, begun), Trace: api.Trace(v.Trace), TTL: api.Duration(v.TTL)}
	if v.Run != nil {
		s.Run = inspect.RunOf(v.Run)
	}
	return s
}

func validityOf(v executor.View, begun time.Time) (t api.Validity) {
	if v.Left > 0 {
		t.ValidUntil = v.At.Add(v.Left)
		t.ValidFor = validFor(begun, v.At, v.Left)
		t.Grace = api.Duration(v.Grace.Truncate(time.Millisecond))
	}
	return t
}

// runTTLOf returns the time to live that an executor asks for.
func runTTLOf(asked *api.Duration) (time.Duration, error) {
	if asked == nil {
		return executor.DefaultTTL, nil
	}
	ttl := time.Duration(*asked)
	if ttl != 0 && (ttl < executor.MinTTL || ttl > executor.MaxTTL) {
		return 0, problem.Field("ttl", "%s is out of range: use %s to %s, and 0s if no heartbeat is needed", asked, executor.MinTTL, executor.MaxTTL)
	}
	return ttl, nil
}

// heartbeatRun answers POST /v1/runs/{id}/heartbeat.
func (a *apiServer) heartbeatRun(ctx context.Context, s *session, in *withID, req api.RunHeartbeat) (*output[api.StartedRun], error) {
	begun := time.Now()
	if err := needFence(in.ID, req.Fence); err != nil {
		return nil, err
	}
	e, err := s.executors.Heartbeat(ctx, in.ID, store.Fence(req.Fence))
	if err != nil {
		return nil, s.orRefusal(ctx, in.ID, err)
	}
	return outputOf(startedRun(s.executors.View(e), begun), nil)
}

// finishRun answers POST /v1/runs/{id}/finish. It may be any host's.
func (a *apiServer) finishRun(ctx context.Context, s *session, in *withID, req api.RunFinish) (*output[api.Run], error) {
	if err := needFence(in.ID, req.Fence); err != nil {
		return nil, err
	}
	r, err := s.runs.Finish(ctx, in.ID, store.Fence(req.Fence), run.Status(req.Status), tidy(req.Error), func(e *run.Executor) error {
		return executor.MayReport(ctx, e)
	})
	if err != nil {
		return nil, s.orRefusal(ctx, in.ID, err)
	}
	s.executors.Ended(in.ID, store.Fence(req.Fence), req.Status)
	return outputOf(inspect.RunOf(r), nil)
}

// needFence refuses what can't be about an attempt.
func needFence(id string, fence int64) error {
	if err := run.ValidateID(id); err != nil {
		return err
	}
	if fence <= 0 {
		return problem.Field("fence", "%d is no fence: send the one that the start was answered with", fence)
	}
	return nil
}

// registerRuns registers the endpoints of runs.
func (a *apiServer) registerRuns(h huma.API) {
	const tag, one = "runs", api.RunsPath + "/{id}"
	body := func(in *withID) []byte { return in.RawBody }
	op := operation(h, "submit-run", http.MethodPost, api.RunsPath, tag, "Submit a run")
	op.Description = "A run with steps is whole before it is queued. Its body can be 16 MiB long."
	op.DefaultStatus = http.StatusCreated
	op.Responses["200"] = &huma.Response{Description: "There was this run already", Content: map[string]*huma.MediaType{
		"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(runType, true, "")},
	}}
	handleBody(a, h, op, true, (*runInput).text, a.submitRun)

	op = operation(h, "list-runs", http.MethodGet, api.RunsPath, tag, "List runs")
	op.Description = "By id; those that are queued, if only they are selected, in the order of the queue. Records that can't be read are listed separately."
	handle(a, h, op, a.listRuns)
	handle(a, h, operation(h, "get-run", http.MethodGet, one, tag, "Get a run"), a.getRun)
	handle(a, h, operation(h, "why-run", http.MethodGet, one+"/why", tag, "Explain why a run waits"), a.whyRun)

	op = operation(h, "cancel-run", http.MethodPost, one+"/cancel", tag, "Cancel a run")
	op.Description = "Its executor, if it has one, learns of it with its next heartbeat. A run that was canceled already is no error."
	handleBody(a, h, op, true, body, a.cancelRun)
	op = operation(h, "start-run", http.MethodPost, one+"/start", tag, "Start a run that was admitted")
	op.Description = "The caller is its executor from now on, and sends heartbeats to this server."
	handleBody(a, h, op, true, body, a.startRun)
	op = operation(h, "heartbeat-run", http.MethodPost, one+"/heartbeat", tag, "Report that the executor of a run lives")
	handleBody(a, h, op, false, body, a.heartbeatRun)
	op = operation(h, "finish-run", http.MethodPost, one+"/finish", tag, "Report how a run has ended")
	handleBody(a, h, op, false, body, a.finishRun)
}

// listRuns answers GET /v1/runs.
func (a *apiServer) listRuns(ctx context.Context, s *session, in *api.RunListInput) (*output[api.RunList], error) {
	filter, err := in.Filter()
	if err != nil {
		return nil, err
	}
	page := filter.NewPage()
	if _, err := s.runs.Each(ctx, filter.After(), page.Take); err != nil {
		return nil, err
	}
	list := page.List()
	return outputOf(list, s.reader.Explain(ctx, list.Items))
}
