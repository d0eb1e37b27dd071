package pool

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// EventType tells what an [Event] is about.
type EventType string

// The types of events.
const (
	// PoolChanged: a pool's spec, holders or line changed, on any host.
	PoolChanged EventType = "pool_changed"
	// ClaimWaiting, and what follows, are claims of this instance.
	ClaimWaiting  EventType = "claim_waiting"
	ClaimGranted  EventType = "claim_granted"
	ClaimReleased EventType = "claim_released"
	ClaimEnded    EventType = "claim_ended" // lost or revoked: see Reason
)

// Event is something that happened to pools or claims.
type Event struct {
	Type EventType `json:"type"`
	// Pools concerned.
	Pools []string `json:"pools"`
	// Claim is the claim's id, empty for a pool.
	Claim string `json:"claim,omitempty"`
	// Reason why a claim waits, or ended.
	Reason string `json:"reason,omitempty"`
	// Lagged tells that events before this one were left out, because the
	// reader was too slow: read the state again.
	Lagged bool `json:"lagged,omitempty"`
}

// eventBuffer is how many events a reader may be behind.
const eventBuffer = 256

// subscriber gets events in order; a slow one loses some and is told so.
type subscriber struct {
	events chan Event
	lagged bool
}

// broker hands events to subscribers. Only the loop uses it.
type broker struct {
	subs []*subscriber
	any  atomic.Bool // for a cheap look
}

func (b *broker) publish(ev Event) {
	for _, s := range b.subs {
		ev.Lagged = s.lagged
		select {
		case s.events <- ev:
			s.lagged = false
		default:
			s.lagged = true
		}
	}
}

func (b *broker) add(s *subscriber) {
	b.subs = append(b.subs, s)
	b.any.Store(true)
}

func (b *broker) remove(s *subscriber) {
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
	}
	b.any.Store(len(b.subs) > 0)
}

// publish tells of a claim of this instance.
func (c *core) publish(t EventType, e *entry, reason string) {
	if c.broker.any.Load() {
		c.broker.publish(Event{Type: t, Pools: poolNames(e.req.Slots), Claim: e.req.ID, Reason: reason})
	}
}

// Subscribe returns events from now on, until ctx ends. The channel is never
// closed. The sender does not wait for the reader: see [Event.Lagged].
func (e *Engine) Subscribe(ctx context.Context) (<-chan Event, error) {
	s := &subscriber{events: make(chan Event, eventBuffer)}
	if err := e.send(ctx, func(c *core, _ time.Time) { c.broker.add(s) }); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		_ = e.send(context.Background(), func(c *core, _ time.Time) { c.broker.remove(s) })
	})
	return s.events, nil
}
