package engine

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// eventBuffer is how many events a reader may be behind.
const eventBuffer = 256

// subscriber gets events in order; a slow one loses some and gets [pool.Event.Lagged].
type subscriber struct {
	events chan pool.Event
	runs   bool // it wants those of claims that carry a run, and no others
	lagged bool
}

func newSubscriber(runs bool) *subscriber {
	return &subscriber{events: make(chan pool.Event, eventBuffer), runs: runs}
}

// send hands an event to the subscriber, or leaves it out.
func (s *subscriber) send(ev pool.Event) {
	ev.Lagged = s.lagged
	select {
	case s.events <- ev:
		s.lagged = false
	default:
		s.lagged = true
	}
}

// broker hands events of claims to subscribers. Only the loop uses it.
type broker struct{ subs []*subscriber }

// wants reports whether any subscriber wants the events of a claim.
func (b *broker) wants(r *pool.Request) bool {
	return slices.ContainsFunc(b.subs, func(s *subscriber) bool { return !s.runs || r.Holder.Run != "" })
}

// publish publishes an event of a claim of this instance.
func (b *broker) publish(t pool.EventType, r *pool.Request, reason string) {
	if !b.wants(r) {
		return
	}
	h := &r.Holder
	ev := pool.Event{
		Type: t, Pools: slices.Sorted(maps.Keys(r.Slots)), Claim: r.ID,
		Run: h.Run, Step: h.Step, Reason: reason, ClaimedBy: h.ClaimedBy, Bind: h.Bind,
	}
	for _, s := range b.subs {
		if !s.runs || h.Run != "" {
			s.send(ev)
		}
	}
}

func (b *broker) add(s *subscriber) { b.subs = append(b.subs, s) }

func (b *broker) remove(s *subscriber) {
	b.subs = slices.DeleteFunc(b.subs, func(o *subscriber) bool { return o == s })
}

// Subscribe returns the events of this instance's claims from now on, until ctx ends. The channel is never closed. The sender
// does not wait for the reader: see [pool.Event.Lagged].
func (e *Engine) Subscribe(ctx context.Context) (<-chan pool.Event, error) {
	return e.subscribe(ctx, newSubscriber(false))
}

// SubscribeRuns is [Engine.Subscribe] for those of claims that carry a run.
func (e *Engine) SubscribeRuns(ctx context.Context) (<-chan pool.Event, error) {
	return e.subscribe(ctx, newSubscriber(true))
}

func (e *Engine) subscribe(ctx context.Context, s *subscriber) (<-chan pool.Event, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	_, err := await(ctx, e, func(added chan<- struct{}) { e.broker.add(s); close(added) })
	context.AfterFunc(ctx, func() { e.inbox.put(func() { e.broker.remove(s) }) })
	if err != nil {
		return nil, err
	}
	return s.events, nil
}

// renewedAgain is the reason of a [pool.ClaimRenewed] after a gap.
const renewedAgain = "its lease could be renewed again"

// LeaseRenewed reports that a lease was renewed. Again is set for the first renewal after one that failed, or of this process.
func (e *Engine) LeaseRenewed(id store.LeaseID, again bool) {
	e.inbox.put(func() { e.requests.renewed(id, again) })
}

// renewed publishes the renewal of the claims on a lease that carry a run: of each the first one, and the first after a gap.
func (r *requests) renewed(id store.LeaseID, again bool) {
	if len(r.broker.subs) == 0 {
		return
	}
	var renewed []*entry
	for _, e := range r.byID {
		if e.holds() && e.granted.Lease == id && e.request.Holder.Run != "" && e.renews(again) {
			renewed = append(renewed, e)
		}
	}
	slices.SortFunc(renewed, func(a, b *entry) int { return strings.Compare(a.request.ID, b.request.ID) })
	reason := ""
	if again {
		reason = renewedAgain
	}
	for _, e := range renewed {
		e.renewed = true
		r.broker.publish(pool.ClaimRenewed, e.request, reason)
	}
}

// renews reports whether a renewal of the lease of a claim is to be published.
func (e *entry) renews(again bool) bool {
	return (again || !e.renewed) && e.granted.Context().Err() == nil
}
