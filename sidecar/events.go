package sidecar

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/server"
)

var eventType = reflect.TypeFor[api.Event]()

// eventsInput is the input of GET /v1/events.
type eventsInput struct {
	Claim string `query:"claim" doc:"Only events of this claim, which must be one of this server's. If several callers use the id, they are those of the caller's own claim; a caller that has none, and may view, gets those of all."`
	Pool  string `query:"pool" doc:"Only events that concern this pool."`

	ClientToken string `header:"Berth-Client-Token" doc:"The client_token of the request for the claim: it shows that the claim is the caller's own, if the caller has no identity."`
	LastEventID string `header:"Last-Event-ID" doc:"Where to resume: the id of the last event that was received. If events since then are no longer known, lagged follows hello."`
}

// events answers GET /v1/events, as a stream.
func (a *apiServer) events(ctx context.Context, s *session, in *eventsInput) (*huma.StreamResponse, error) {
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
	caller := callerOf(ctx, access.View, in.ClientToken)
	if err := a.mayFollow(s, caller, in.Claim); err != nil {
		return nil, err
	}
	if why := a.stopping.Load(); why != nil && in.Claim == "" {
		return nil, why
	}
	which := server.Selection{Topic: in.Claim, Tag: in.Pool, Owner: caller.Owner().Key()}
	if held, ended := s.holders.Owned(caller, in.Claim); !held && !ended && !a.waits.owned(caller, in.Claim) {
		which.Others = caller.May(nil) == nil
	}
	leave, err := a.streams.Enter(server.KeyOf(ctx))
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer leave()
		r, w := humago.Unwrap(ctx)
		a.metrics.http.Streams.Inc()
		defer a.metrics.http.Streams.Dec()
		events, at := s.hub.Subscribe(which, in.LastEventID)
		defer s.hub.Unsubscribe(events)
		stream := server.NewStream(r.Context(), w)
		hello := a.hello(s, caller, in.Claim)
		if in.LastEventID != "" && at == in.LastEventID {
			hello = hello[:1] // how the claim ended follows, unless it was received
		}
		for _, ev := range hello {
			m := messageOf(ev)
			m.ID = at // the stream is complete from there on
			stream.Add(m)
		}
		server.Follow(stream, events.Wake(), func(struct{}) bool { return addAll(stream, events, in.Claim) })
	}}, nil
}

// mayFollow refuses a caller that may not read, unless it follows a claim of its own.
func (a *apiServer) mayFollow(s *session, caller claims.Caller, id string) error {
	if id == "" {
		return caller.May(nil)
	}
	switch k := a.knownOf(s, caller, id); {
	case k.any():
		return nil
	case k.refused != nil:
		return k.refused
	}
	return caller.May(nil)
}

// hello returns the events with the state at the beginning of a stream. A claim that has
// ended is reported as if it had ended just now.
func (a *apiServer) hello(s *session, caller claims.Caller, id string) []api.Event {
	hello := api.Event{Type: api.EventHello, Host: s.client.Host(), Instance: s.client.Instance(), Claim: id}
	if id == "" {
		return []api.Event{hello}
	}
	k := a.knownOf(s, caller, id)
	switch {
	case k.ended != nil:
		why := problem.Of(k.ended)
		hello.Status = "ended"
		return []api.Event{hello, {Type: api.EventClaimEnded, Claim: id, Code: string(why.Code), Reason: why.Error()}}
	case k.holder != nil:
		hello.Status = api.ClaimHeld
	case k.waits:
		hello.Status = api.ClaimWaiting
	default:
		hello.Status = "unknown"
	}
	return []api.Event{hello}
}

// addAll adds what a subscription has, and reports whether that was the end.
func addAll(to *server.Stream, s *server.Subscription, claim string) (last bool) {
	queue, lagged, stopping, ended := s.Take()
	for _, m := range queue {
		to.Add(m)
	}
	if lagged {
		to.Add(messageOf(api.Event{Type: api.EventLagged, Claim: claim}))
	}
	if stopping {
		to.Add(messageOf(api.Event{Type: api.EventStopping}))
	}
	return ended
}

// messageOf writes an event that has no id: a stream does not resume there.
func messageOf(ev api.Event) server.Message {
	return server.Message{Event: ev.Type, Data: server.Encode(ev)}
}

// source is where the events of claims that wait come from. Its channel is never closed.
type source func(ctx context.Context) (<-chan pool.Event, error)

// relay hands events to a hub. What becomes of claims after they have waited is published
// by their [claims.Holders].
func (subscribe source) relay(ctx context.Context, h *server.Hub) (func(), error) {
	events, err := subscribe(ctx)
	return relay(ctx, h, events), err
}

// poolSource is where the changes of pools come from. Its channel is never closed.
type poolSource func(ctx context.Context, pools ...string) (<-chan pool.Event, error)

// relay hands the changes of a pool to a hub; without a name, of all pools.
func (subscribe poolSource) relay(ctx context.Context, h *server.Hub, name string) (func(), error) {
	var names []string
	if name != "" {
		names = append(names, name)
	}
	events, err := subscribe(ctx, names...)
	return relay(ctx, h, events), err
}

// relay hands events to a hub until ctx ends.
func relay(ctx context.Context, h *server.Hub, events <-chan pool.Event) func() {
	return func() {
		for {
			select {
			case ev := <-events:
				if ev.Lagged {
					h.Lag()
				}
				switch ev.Type {
				case pool.PoolChanged:
					h.Publish(noticeOf(api.Event{Type: api.EventPoolChanged, Pools: ev.Pools}, claims.Owner{}))
				case pool.ClaimWaiting:
					owner := claims.OwnerOf(pool.Holder{ClaimedBy: ev.ClaimedBy, Bind: ev.Bind})
					h.Publish(noticeOf(api.Event{Type: api.EventClaimWaiting, Pools: ev.Pools, Claim: ev.Claim, Reason: ev.Reason}, owner))
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// noticeOf returns an event for the streams of its claim, which has an owner, and of its pools.
func noticeOf(ev api.Event, owner claims.Owner) server.Notice {
	return server.Notice{Event: ev.Type, Topic: ev.Claim, Tags: ev.Pools, Owner: owner.Key(), Data: ev}
}

// publish makes a function that publishes what happens to claims.
func publish(h *server.Hub) func(claims.Change) {
	return func(c claims.Change) {
		ev := api.Event{Claim: c.Claim, Pools: c.Pools}
		switch c.Kind {
		case claims.Granted:
			ev.Type = api.EventClaimGranted
		case claims.Ended:
			ev.Type, ev.Code, ev.Reason = api.EventClaimEnded, string(c.Why.Code), c.Why.Error()
		case claims.Released:
			ev.Type = api.EventClaimReleased
		}
		h.Publish(noticeOf(ev, c.Owner))
	}
}

// registerEvents registers the stream of events.
func (a *apiServer) registerEvents(h huma.API) {
	op := operation(h, "events", http.MethodGet, api.EventsPath, "events", "Follow what happens to pools, and to claims of this server")
	op.Description = "Server-sent events. The first is hello: read the state then. After lagged, read it again. A stream with Last-Event-ID begins with the events since then, after hello. " +
		"Types: " + api.EventHello + ", " + api.EventPoolChanged + ", " + api.EventClaimWaiting + ", " + api.EventClaimGranted + ", " +
		api.EventClaimEnded + " (with a code: " + string(problem.ClaimLost) + ", " + string(problem.ClaimRevoked) + ", or why a wait without a connection has failed), " +
		api.EventClaimReleased + ", " + api.EventLagged + ", " + api.EventStopping + "."
	op.Responses["200"] = &huma.Response{
		Description: "Events, each with an Event as its data.",
		Content:     map[string]*huma.MediaType{server.StreamType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
	h.OpenAPI().Components.Schemas.Schema(eventType, true, "") // for its readers
	handle(a, h, op, a.events)
}
