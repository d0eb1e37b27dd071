package sidecar

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
	sources "github.com/berthhq/berth/sidecar/source"
)

// maxWakeWait bounds the wait for a poll: the command of a source may take that long.
const maxWakeWait = sources.MaxTimeout

// sourceInput is the input of an endpoint of one source.
type sourceInput struct {
	Name string `path:"name"`
}

// sourceBody is sourceInput with a body.
type sourceBody struct {
	Name    string `path:"name"`
	RawBody []byte `contentType:"application/json"`
}

// sources returns the store of sources on the same connection.
func (s *session) sources() sources.Store {
	return sources.Store{Backend: s.runs.Backend, Keys: s.runs.Keys}
}

// listSources answers GET /v1/sources.
func (a *apiServer) listSources(ctx context.Context, s *session, _ *struct{}) (*output[api.List[api.Source]], error) {
	all, err := s.sources().All(ctx)
	if err != nil {
		return nil, err
	}
	list := api.List[api.Source]{Items: make([]api.Source, len(all))}
	for i, o := range all {
		list.Items[i] = api.SourceOf(o)
	}
	return outputOf(list, nil)
}

// getSource answers GET /v1/sources/{name}.
func (a *apiServer) getSource(ctx context.Context, s *session, in *sourceInput) (*output[api.Source], error) {
	o, err := s.sources().Find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return outputOf(api.SourceOf(o), nil)
}

// wakeSource answers POST /v1/sources/{name}/wake. The process that
// runs the source is notified through etcd.
func (a *apiServer) wakeSource(ctx context.Context, s *session, in *sourceBody, req api.SourceWake) (*output[api.SourceWoken], error) {
	var wait time.Duration
	if req.Wait != nil {
		wait = time.Duration(*req.Wait)
	}
	if wait < 0 || wait > maxWakeWait {
		return nil, problem.Field("wait", "%s is out of range: use 0s to %s", req.Wait, api.Duration(maxWakeWait))
	}
	if wait == 0 {
		_, err := s.sources().Wake(ctx, in.Name)
		return outputOf(api.SourceWoken{}, err)
	}
	poll, err := a.wakeAndAwait(ctx, s, in.Name, wait)
	return outputOf(api.SourceWoken{Poll: poll}, err)
}

// wakeAndAwait wakes a source, and waits for the poll until the server stops. It returns
// nil if the poll did not end in time. A request that cannot wait is refused before the
// source is woken.
func (a *apiServer) wakeAndAwait(ctx context.Context, s *session, name string, wait time.Duration) (*api.SourcePoll, error) {
	leave, err := a.watching.Enter(server.KeyOf(ctx))
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, one, err := a.waits.enter(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	defer a.waits.leave(one)
	poll, err := awaitPoll(ctx, s.sources(), name, wait)
	if ended := a.waits.ended(one); ended != nil {
		return nil, ended
	}
	return poll, err
}

// awaitPoll wakes a source, and waits for the poll.
func awaitPoll(ctx context.Context, all sources.Store, name string, wait time.Duration) (*api.SourcePoll, error) {
	request, err := all.Wake(ctx, name)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	p, err := all.Await(waiting, name, request)
	switch {
	case err == nil:
		poll := api.SourcePollOf(p)
		return &poll, nil
	case waiting.Err() != nil:
		return nil, context.Cause(ctx) // nil if only the wait is over
	}
	return nil, err
}

// registerSources registers the endpoints of sources.
func (a *apiServer) registerSources(h huma.API) {
	const tag, one = "sources", api.SourcesPath + "/{name}"
	op := operation(h, "list-sources", http.MethodGet, api.SourcesPath, tag, "List sources, their processes and their last polls")
	op.Description = "In the order of their names. A poll that changes nothing is stored every 10 seconds."
	handle(a, h, op, a.listSources)
	handle(a, h, operation(h, "get-source", http.MethodGet, one, tag, "Get a source"), a.getSource)
	op = operation(h, "wake-source", http.MethodPost, one+"/wake", tag, "Request a poll at once")
	op.Description = "The process that runs the source, on any host, runs its list command at once, or once more if that is under way. One poll fulfills simultaneous requests. If no process runs the source, the code is precondition_failed."
	handleBody(a, h, op, true, func(in *sourceBody) []byte { return in.RawBody }, a.wakeSource)
}
