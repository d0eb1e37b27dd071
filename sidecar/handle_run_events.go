package sidecar

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// streamType is what a stream of events is asked for by, and answered as.
	streamType = "text/event-stream"
	// maxRunStreams bounds the streams of events of runs: each has a watch in etcd.
	maxRunStreams = 256
)

// Events that a stream of a run's events ends with, beside [EventStopping].
const (
	// EventRunEnd is the last: the run has ended, and its events were told.
	EventRunEnd = "end"
	// EventRunFailed is the last, too: the events can't be told, and its data is a
	// [Problem].
	EventRunFailed = "failed"
)

// runEventsInput is the input of GET /v1/runs/{id}/events.
type runEventsInput struct {
	ID          string `path:"id"`
	LastEventID string `header:"Last-Event-ID" maxLength:"256" doc:"Of a stream: where to go on, the id of an event that was told, or the revision of one."`

	stream bool
}

// Resolve finds out which of the two is asked for. The document says so by the types
// of the answer: it may not have Accept among the parameters.
func (in *runEventsInput) Resolve(ctx huma.Context) []error {
	in.stream = accepts(ctx.Header("Accept"), streamType)
	return nil
}

// accepts tells whether a type is named among those that a client takes.
func accepts(header, kind string) bool {
	for part := range strings.SplitSeq(header, ",") {
		got, params, err := mime.ParseMediaType(part)
		q, weighed := params["q"]
		if err == nil && got == kind && (!weighed || strings.Trim(q, "0.") != "") { // q=0 is not at all
			return true
		}
	}
	return false
}

// runEvents answers GET /v1/runs/{id}/events, with a list or with a stream.
func (a *api) runEvents(ctx context.Context, in *runEventsInput) (*huma.StreamResponse, error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	after, err := run.ParsePlace("Last-Event-ID", in.LastEventID)
	if err != nil {
		return nil, err
	}
	events, err := s.runs.store.Events(ctx, in.ID)
	if err == nil && len(events) == 0 {
		_, err = s.runs.store.Get(ctx, in.ID) // which may be why
	}
	if err != nil {
		return nil, err
	}
	if in.stream {
		return a.streamRunEvents(s, in.ID, after)
	}
	list := List[RunEvent]{Items: make([]RunEvent, len(events))}
	for i, e := range events {
		list.Items[i] = inspect.RunEventOf(e)
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		_, w := humago.Unwrap(ctx)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Vary", "Accept")
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(list) // the client may be gone
	}}, nil
}

// streamRunEvents answers with a stream. What there is was just read once: so an
// unknown run, or an etcd that is away, is told as such.
func (a *api) streamRunEvents(s *session, id string, after run.Place) (*huma.StreamResponse, error) {
	if why := a.stopping.Load(); why != nil {
		return nil, why
	}
	select {
	case s.runStreams <- struct{}{}:
	default:
		return nil, problem.New(problem.Unavailable, "%d streams of events of runs are open already: close some, or ask for the list", cap(s.runStreams))
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer func() { <-s.runStreams }()
		r, w := humago.Unwrap(ctx)
		a.metrics.streams.Inc()
		defer a.metrics.streams.Dec()
		t := &runTeller{
			sse: newSSE(w, r.Context()), stopped: s.hub.stopped,
			failed: func(err error) *Problem { return a.fail("list-run-events", err) },
		}
		t.serve(func(ctx context.Context, tell func([]run.LoggedEvent) error) error {
			return s.runs.store.FollowEvents(ctx, id, after, tell)
		})
	}}, nil
}

// runTeller writes the events of a run to one reader. A reader that is slow is waited
// for, since all that it missed is in etcd; one that takes nothing is left.
type runTeller struct {
	sse     *sse
	stopped <-chan struct{} // the server is stopping
	// failed makes a problem of why the events can't be told.
	failed func(error) *Problem
}

// serve tells what follow does, until that ends or one side has enough.
func (t *runTeller) serve(follow func(context.Context, func([]run.LoggedEvent) error) error) {
	ctx, cancel := context.WithCancel(t.sse.done)
	events, end := make(chan []run.LoggedEvent), make(chan error, 1)
	go func() {
		end <- follow(ctx, func(some []run.LoggedEvent) error {
			select {
			case events <- some:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		close(end)
	}()
	defer func() {
		cancel()
		for range end { // it has ended
		}
	}()
	t.sse.begin()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for t.sse.flush() == nil {
		select {
		case some := <-events:
			for _, e := range some {
				t.sse.addRun(e)
			}
		case err := <-end:
			if ctx.Err() != nil {
				return // the client is gone
			}
			t.sse.add(t.last(err))
			_ = t.sse.flush()
			return
		case <-t.stopped:
			t.sse.add(message{event: EventStopping, data: encodeEvent(Event{Type: EventStopping})})
			_ = t.sse.flush()
			return
		case <-beat.C:
			t.sse.beat()
		case <-ctx.Done():
			return
		}
	}
}

// last is the last event: that there are no more, or why no more can be told.
func (t *runTeller) last(err error) message {
	if err == nil {
		return message{event: EventRunEnd, data: encodeEvent(Event{Type: EventRunEnd})}
	}
	return message{event: EventRunFailed, data: encodeEvent(t.failed(err))}
}

// addRun adds an event of a run.
func (e *sse) addRun(ev run.LoggedEvent) {
	e.add(message{id: ev.Place().String(), event: string(ev.Type), data: encodeEvent(inspect.RunEventOf(ev))})
}

// registerRunEvents registers the events of a run.
func (a *api) registerRunEvents(h huma.API) {
	op := operation(h, "list-run-events", http.MethodGet, runsPath+"/{id}/events", "runs", "List or follow what has happened to a run")
	op.Description = "A list, or with Accept: " + streamType + " server-sent events: those that there are, and then each as it comes. " +
		"Each has the type of a RunEvent, which is its data, and an id, from which a later stream goes on (Last-Event-ID). " +
		"The last is " + EventRunEnd + ", a second after all of a run that has ended were told; " +
		EventRunFailed + ", with a problem as its data; or " + EventStopping + "."
	schemas := h.OpenAPI().Components.Schemas
	op.Responses["200"] = &huma.Response{
		Description: "What has happened, in order.",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(reflect.TypeFor[List[RunEvent]](), true, "")},
			streamType:         {Schema: &huma.Schema{Type: huma.TypeString}},
		},
	}
	handle(a, h, op, a.runEvents)
}
