package sidecar

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/executor"
	"github.com/berthhq/berth/sidecar/server"
)

// maxReadyWait bounds the wait for something to take.
const maxReadyWait = 5 * time.Minute

// readyInput is the input of GET /v1/queues/{queue}/ready.
type readyInput struct {
	Queue string `path:"queue"`
	Wait  string `query:"wait" example:"30s" doc:"How long to wait for something to take, 0s to 5m; not at all if left out."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many to answer at most."`
}

// listReady answers GET /v1/queues/{queue}/ready.
func (a *apiServer) listReady(ctx context.Context, s *session, in *readyInput) (*output[api.ReadyList], error) {
	if pool.ValidateName(in.Queue) != nil {
		return nil, problem.Field("queue", "%s is no name of a queue: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Quote(in.Queue))
	}
	if err := access.Allow(ctx, access.Execute, in.Queue); err != nil {
		return nil, err
	}
	wait, err := parseWait(in.Wait, 0, maxReadyWait)
	if err != nil {
		return nil, err
	}
	ready := func(ctx context.Context) (executor.Found, error) {
		leave, err := a.reads.Enter(ctx)
		if err != nil {
			return executor.Found{}, err
		}
		defer leave()
		return executor.Ready(ctx, s.steps, in.Queue, in.Limit)
	}
	found, err := ready(ctx)
	if err == nil && len(found.Items) == 0 && wait > 0 {
		found, err = a.awaitReady(ctx, s, in, found, wait, ready)
	}
	if err != nil {
		return nil, err
	}
	list := api.ReadyList{Items: make([]api.ReadyStep, len(found.Items)), Unreadable: inspect.UnreadableOf(found.Bad)}
	for i, p := range found.Items {
		list.Items[i] = inspect.ReadyStepOf(p)
	}
	return outputOf(list, nil)
}

// awaitReady waits for something to take: until there is, or a stop of the server.
func (a *apiServer) awaitReady(ctx context.Context, s *session, in *readyInput, before executor.Found, wait time.Duration, ready func(context.Context) (executor.Found, error)) (executor.Found, error) {
	leave, err := a.watching.Enter(server.KeyOf(ctx))
	if err != nil {
		return executor.Found{}, err
	}
	defer leave()
	ctx, one, err := a.waits.enter(ctx, "", nil)
	if err != nil {
		return executor.Found{}, err
	}
	defer a.waits.leave(one)
	found, err := executor.AwaitReady(ctx, s.steps, a.log, in.Queue, before, wait, ready)
	if ended := a.waits.ended(one); ended != nil {
		return executor.Found{}, ended
	}
	return found, err
}

// takeStep answers POST /v1/runs/{id}/steps/{step}/{index}/take.
func (a *apiServer) takeStep(ctx context.Context, s *session, in *stepBodyInput, req api.StepTake) (*output[api.TakenStep], error) {
	begun := time.Now()
	if why := a.stopping.Load(); why != nil {
		return nil, why
	}
	ttl, err := runTTLOf(req.TTL)
	if err != nil {
		return nil, err
	}
	waiter := executor.Waiter{ID: ulid.Make().String()}
	if req.Wait != nil {
		wait := time.Duration(*req.Wait)
		if err := instance.ValidateWait(wait); err != nil {
			return nil, err
		}
		waiter.Wait = &wait
	}
	ctx, wait, err := a.waits.enter(ctx, waiter.ID, nil)
	if err != nil {
		return nil, err
	}
	defer a.waits.leave(wait)
	e, err := s.executors.Take(ctx, in.id(), req.Executor, ttl, waiter)
	if err != nil {
		if ended := a.waits.ended(wait); ended != nil {
			return nil, ended
		}
		return nil, err
	}
	return outputOf(takenStep(s.executors.View(e), begun), nil)
}

// takenStep returns a step instance for its executor. The request was begun then.
func takenStep(v executor.View, begun time.Time) api.TakenStep {
	t := api.TakenStep{Validity: validityOf(v, begun), Trace: api.Trace(v.Trace), TTL: api.Duration(v.TTL)}
	if v.Step != nil {
		t.StepWork = inspect.TakenWorkOf(v.Step)
	}
	return t
}

// renewStep answers POST /v1/runs/{id}/steps/{step}/{index}/renew.
func (a *apiServer) renewStep(ctx context.Context, s *session, in *stepBodyInput, req api.StepRenewal) (*output[api.TakenStep], error) {
	begun := time.Now()
	if err := needFence(in.ID, req.Fence); err != nil {
		return nil, err
	}
	e, err := s.executors.Heartbeat(ctx, in.id().String(), store.Fence(req.Fence))
	if err != nil {
		return nil, s.orRefusal(ctx, in.ID, err)
	}
	return outputOf(takenStep(s.executors.View(e), begun), nil)
}

// finishStep answers POST /v1/runs/{id}/steps/{step}/{index}/finish. It may be any
// host's.
func (a *apiServer) finishStep(ctx context.Context, s *session, in *stepBodyInput, req api.StepFinish) (*output[api.StepInstance], error) {
	if err := needFence(in.ID, req.Fence); err != nil {
		return nil, err
	}
	as := step.Status(req.Status)
	if as != step.Succeeded && as != step.Failed && as != step.Canceled {
		return nil, problem.Field("status", "a step instance can't finish as %s: use %s, %s and %s", problem.Quote(req.Status), step.Succeeded, step.Failed, step.Canceled)
	}
	i, err := s.finishAttempt(ctx, in.id(), req, as)
	if err != nil {
		return nil, s.orRefusal(ctx, in.ID, err)
	}
	s.executors.Ended(in.id().String(), store.Fence(req.Fence), req.Status)
	return outputOf(inspect.StepInstanceOf(i), nil)
}

// finishAttempt finishes an attempt of a step instance, for the identity that took it, or an
// operator.
func (s *session) finishAttempt(ctx context.Context, id store.StepID, req api.StepFinish, as step.Status) (*step.Instance, error) {
	r, err := s.steps.Raw(ctx, id)
	if err != nil {
		return nil, err
	}
	if r.Fence() == store.Fence(req.Fence) {
		err = executor.MayReport(ctx, r.Executor)
	} else { // it changes nothing
		err = s.orRefusal(ctx, id.Run, nil)
	}
	switch {
	case err != nil:
		return nil, err
	case !r.Shape.External:
		return nil, problem.New(problem.StepTaken, "step %q of run %q is no external one: the worker finishes it that runs it", id.Step, id.Run)
	case as == step.Canceled && !r.RunEnded && !r.Canceled && r.Status == step.Running:
		return nil, problem.Field("status", "%s is for step instances that were canceled, or whose runs were or have failed: use %s and %s", as, step.Succeeded, step.Failed)
	}
	return s.steps.FinishAttempt(ctx, r, store.Fence(req.Fence), step.Outcome{
		Status: as, ExitCode: req.ExitCode, Error: tidy(req.Error), Output: []byte(req.Output),
	})
}

// registerTaking registers the endpoints of executors of step instances.
func (a *apiServer) registerTaking(h huma.API) {
	const tag, one = "steps", stepsPath + "/{step}/{index}"
	body := func(in *stepBodyInput) []byte { return in.RawBody }
	op := operation(h, "list-ready", http.MethodGet, api.QueuesPath+"/{queue}/ready", tag, "List what executors can take of a queue")
	op.Description = "Step instances that are external and can be taken now, in order. What workers take is not among them."
	handle(a, h, op, a.listReady)
	op = operation(h, "take-step", http.MethodPost, one+"/take", tag, "Take a step instance that can be taken")
	op.Description = "With its slots, for which it may wait: hanging up withdraws it. The caller is its executor from now on, and renews it through this server."
	handleBody(a, h, op, true, body, a.takeStep)
	op = operation(h, "renew-step", http.MethodPost, one+"/renew", tag, "Report that the executor of a step instance lives")
	handleBody(a, h, op, false, body, a.renewStep)
	op = operation(h, "finish-step", http.MethodPost, one+"/finish", tag, "Report how the attempt of a step instance has ended")
	handleBody(a, h, op, false, body, a.finishStep)
}
