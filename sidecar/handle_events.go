package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

const eventsPath = "/v1/events"

var eventType = reflect.TypeFor[Event]()

const (
	// heartbeat keeps a stream from looking dead to whoever is in between.
	heartbeat = 15 * time.Second
	// writeTimeout bounds the wait for a reader that takes nothing.
	writeTimeout = 10 * time.Second
)

// eventsInput is the input of GET /v1/events.
type eventsInput struct {
	Claim string `query:"claim" doc:"Only events of this claim, which must be this server's to be heard of."`
	Pool  string `query:"pool" doc:"Only events that concern this pool."`
}

// events answers GET /v1/events, as a stream.
func (a *api) events(_ context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	if in.Claim != "" {
		if err := pool.ValidateID(in.Claim); err != nil {
			return nil, err
		}
	}
	if in.Pool != "" {
		if err := pool.ValidateName(in.Pool); err != nil {
			return nil, err
		}
	}
	if why := a.stopping.Load(); why != nil && in.Claim == "" {
		return nil, why
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		r, w := humago.Unwrap(ctx)
		a.metrics.streams.Inc()
		defer a.metrics.streams.Dec()
		stream := s.hub.subscribe(in.Claim, in.Pool)
		defer s.hub.unsubscribe(stream)
		newSSE(w, r.Context()).serve(stream, s.hello(in)...)
	}}, nil
}

// hello tells where things stand at the beginning of a stream. A claim that has
// ended is told as if it had just now.
func (s *session) hello(in *eventsInput) []Event {
	hello := Event{Type: EventHello, Host: s.client.Host(), Instance: s.client.Instance(), Claim: in.Claim}
	if in.Claim == "" {
		return []Event{hello}
	}
	h, err := s.holders.find(in.Claim)
	switch {
	case err != nil:
		why := problemError(err)
		hello.State = "ended"
		return []Event{hello, {Type: EventClaimEnded, Claim: in.Claim, Code: string(why.Code), Reason: why.Error()}}
	case h != nil:
		hello.State = StateHeld
	default:
		hello.State = "unknown"
	}
	return []Event{hello}
}

// sse writes a stream of server-sent events.
type sse struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	done context.Context
	buf  []byte
}

func newSSE(w http.ResponseWriter, ctx context.Context) *sse {
	return &sse{w: w, ctl: http.NewResponseController(w), done: ctx}
}

// serve writes the first events, then those of a stream until one side ends it.
func (e *sse) serve(s *stream, first ...Event) {
	e.begin()
	for _, ev := range first {
		e.add(message{event: ev.Type, data: encodeEvent(ev)})
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for e.flush() == nil {
		select {
		case <-s.wake:
			if e.addAll(s) {
				_ = e.flush() // it is the last
				return
			}
		case <-beat.C:
			e.beat()
		case <-e.done.Done():
			return
		}
	}
}

// begin says what follows.
func (e *sse) begin() {
	header := e.w.Header()
	header.Set("Content-Type", streamType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
}

// beat adds a heartbeat.
func (e *sse) beat() { e.buf = append(e.buf, ": still here\n\n"...) }

// addAll adds what a stream has, and tells whether that was the end.
func (e *sse) addAll(s *stream) bool {
	queue, lagged, stopping, ended := s.take()
	for _, m := range queue {
		e.add(m)
	}
	if lagged {
		e.add(message{event: EventLagged, data: encodeEvent(Event{Type: EventLagged, Claim: s.claim})})
	}
	if stopping {
		e.add(message{event: EventStopping, data: encodeEvent(Event{Type: EventStopping})})
	}
	return ended
}

func (e *sse) add(m message) {
	if m.id != "" {
		e.buf = append(append(append(e.buf, "id: "...), m.id...), '\n')
	}
	e.buf = fmt.Appendf(e.buf, "event: %s\ndata: %s\n\n", m.event, m.data)
}

// flush sends what was added.
func (e *sse) flush() error {
	if err := e.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := e.w.Write(e.buf)
	e.buf = e.buf[:0]
	return errors.Join(err, e.ctl.Flush())
}

// registerEvents registers the stream of events.
func (a *api) registerEvents(h huma.API) {
	op := operation(h, "events", http.MethodGet, eventsPath, "events", "Follow what happens to pools, and to claims of this server")
	op.Description = "Server-sent events. The first is hello: read the state then. After lagged, read it again. " +
		"Types: " + EventHello + ", " + EventPoolChanged + ", " + EventClaimWaiting + ", " + EventClaimGranted + ", " +
		EventClaimEnded + " (with a code: " + string(problem.ClaimLost) + ", " + string(problem.ClaimRevoked) + "), " +
		EventClaimReleased + ", " + EventLagged + ", " + EventStopping + "."
	op.Responses["200"] = &huma.Response{
		Description: "Events, each with an Event as its data.",
		Content:     map[string]*huma.MediaType{streamType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
	h.OpenAPI().Components.Schemas.Schema(eventType, true, "") // for its readers
	handle(a, h, op, a.events)
}
