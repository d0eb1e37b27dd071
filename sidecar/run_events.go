package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// runEventsInput is the input of GET /v1/runs/{id}/events.
type runEventsInput struct {
	ID          string `path:"id"`
	LastEventID string `header:"Last-Event-ID" maxLength:"256" doc:"Of a stream: where to resume: the id of an event that was received, or the revision of one."`

	stream bool
}

// Resolve finds out which of the two is requested. The document states it by the types
// of the answer: it may not have Accept among the parameters.
func (in *runEventsInput) Resolve(ctx huma.Context) []error {
	in.stream = server.Accepts(ctx.Header("Accept"), server.StreamType)
	return nil
}

// runEvents answers GET /v1/runs/{id}/events, with a list or with a stream.
func (a *apiServer) runEvents(ctx context.Context, s *session, in *runEventsInput) (*huma.StreamResponse, error) {
	after, err := run.ParsePlace("Last-Event-ID", in.LastEventID)
	if err != nil {
		return nil, err
	}
	if err := s.mayRead(ctx, in.ID); err != nil {
		return nil, err
	}
	leave, err := a.reads.Enter(ctx)
	if err != nil {
		return nil, err
	}
	events, err := s.runs.Events(ctx, in.ID)
	if err == nil && len(events) == 0 {
		_, err = s.runs.Get(ctx, in.ID) // which may be why
	}
	if err != nil {
		leave()
		return nil, err
	}
	if in.stream {
		leave()
		return a.streamRunEvents(ctx, s, in.ID, after)
	}
	list := api.List[api.RunEvent]{Items: make([]api.RunEvent, len(events))}
	for i, e := range events {
		list.Items[i] = inspect.RunEventOf(e)
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer leave()
		_, w := humago.Unwrap(ctx)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Vary", "Accept")
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(list) // the client may be gone
	}}, nil
}

// streamRunEvents answers with a stream. What there is was just read once: so an
// unknown run, or an etcd that does not answer, is a problem.
func (a *apiServer) streamRunEvents(ctx context.Context, s *session, id string, after run.Place) (*huma.StreamResponse, error) {
	if why := a.stopping.Load(); why != nil {
		return nil, why
	}
	leave, err := a.watching.Enter(server.KeyOf(ctx))
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer leave()
		r, w := humago.Unwrap(ctx)
		a.metrics.http.Streams.Inc()
		defer a.metrics.http.Streams.Dec()
		f := &runFollower{
			to: server.NewStream(r.Context(), w), stopped: s.hub.Stopped(),
			failed: func(err error) *api.Problem { return a.fail(r.Context(), "list-run-events", err) },
		}
		f.serve(r.Context(), func(ctx context.Context, tell func([]run.LoggedEvent) error) error {
			return s.runs.FollowEvents(ctx, id, after, tell)
		})
	}}, nil
}

// runFollower streams the events of a run to one reader. A reader that is slow is waited
// for, since all that it missed is in etcd.
type runFollower struct {
	to      *server.Stream
	stopped <-chan struct{} // the server is stopping
	// failed makes a problem of why the events can't be read.
	failed func(error) *api.Problem
}

// serve streams what follow reads, until that ends, the server stops or the reader, whose
// context ctx is, has left.
func (f *runFollower) serve(ctx context.Context, follow func(context.Context, func([]run.LoggedEvent) error) error) {
	ctx, leave := context.WithCancel(ctx)
	reading, stop := context.WithCancelCause(ctx)
	messages := make(chan []server.Message)
	send := func(ctx context.Context, some []server.Message) error {
		select {
		case messages <- some:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer close(messages)
		err := follow(reading, func(some []run.LoggedEvent) error { return send(reading, runMessages(some)) })
		if ctx.Err() == nil {
			_ = send(ctx, []server.Message{f.last(reading, err)}) // the reader may leave
		}
	})
	tasks.Go(func() {
		select {
		case <-f.stopped:
			stop(errStopping)
		case <-ctx.Done():
		}
	})
	server.Follow(f.to, messages, func(some []server.Message) bool {
		for _, m := range some {
			f.to.Add(m)
		}
		return false
	})
	leave()
	tasks.Wait()
	stop(nil)
}

// last is the last message: that there are no more events, or why no more can be read.
func (f *runFollower) last(reading context.Context, err error) server.Message {
	switch {
	case err == nil:
		return messageOf(api.Event{Type: api.EventRunEnd})
	case errors.Is(context.Cause(reading), errStopping):
		return messageOf(api.Event{Type: api.EventStopping})
	}
	return server.Message{Event: api.EventRunFailed, Data: server.Encode(f.failed(err))}
}

// runMessages writes events of a run. A later stream can resume after each.
func runMessages(events []run.LoggedEvent) []server.Message {
	all := make([]server.Message, len(events))
	for i, ev := range events {
		all[i] = server.Message{ID: ev.Place().String(), Event: string(ev.Type), Data: server.Encode(inspect.RunEventOf(ev))}
	}
	return all
}

// registerRunEvents registers the events of a run.
func (a *apiServer) registerRunEvents(h huma.API) {
	op := operation(h, "list-run-events", http.MethodGet, api.RunsPath+"/{id}/events", "runs", "List or follow what has happened to a run")
	op.Description = "A list, or with Accept: " + server.StreamType + " server-sent events: those that there are, and then each as it comes. " +
		"Each has the type of a RunEvent, which is its data, and an id, from which a later stream goes on (Last-Event-ID). " +
		"The last is " + api.EventRunEnd + ", a second after all events of a run that has ended; " +
		api.EventRunFailed + ", with a problem as its data; or " + api.EventStopping + "."
	schemas := h.OpenAPI().Components.Schemas
	op.Responses["200"] = &huma.Response{
		Description: "What has happened, in order.",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(reflect.TypeFor[api.List[api.RunEvent]](), true, "")},
			server.StreamType:  {Schema: &huma.Schema{Type: huma.TypeString}},
		},
	}
	handle(a, h, op, a.runEvents)
}
