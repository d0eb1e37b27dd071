package pool

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// EventType is the kind of an [Event].
type EventType string

// The types of events.
const (
	// PoolChanged: a pool's spec, holders or waiters changed, on any host.
	PoolChanged EventType = "PoolChanged"
	// ClaimWaiting, and what follows, are claims of this instance.
	ClaimWaiting EventType = "ClaimWaiting"
	ClaimGranted EventType = "ClaimGranted"
	// ClaimRenewed: the lease of a claim that carries a run was renewed, for the first
	// time, or for the first time after a gap, as its Reason says then.
	ClaimRenewed  EventType = "ClaimRenewed"
	ClaimReleased EventType = "ClaimReleased"
	ClaimEnded    EventType = "ClaimEnded" // lost or revoked: see Reason
)

// Event is something that happened to pools or claims.
type Event struct {
	Type EventType `json:"type"`
	// Pools concerned.
	Pools []string `json:"pools"`
	// Claim is the claim's id, empty for a pool; Run and Step are what it is for.
	Claim string `json:"claim,omitempty"`
	Run   string `json:"run,omitempty"`
	Step  string `json:"step,omitempty"`
	// Reason why a claim waits, or ended, or was renewed only now.
	Reason string `json:"reason,omitempty"`
	// Lagged is set if events before this one were dropped, because the reader was
	// too slow: read the state again.
	Lagged bool `json:"lagged,omitempty"`
}

// eventBuffer is how many events a reader may be behind.
const eventBuffer = 256

// subscriber gets events in order; a slow one loses some and gets [Event.Lagged].
type subscriber struct {
	events chan Event
	runs   bool // it wants those of claims that carry a run, and no others
	lagged bool
}

// broker hands events to subscribers. Only the loop uses it.
type broker struct {
	subs []*subscriber
	// For a cheap check: some subscriber wants all events, or those of runs.
	any, runs atomic.Bool
}

// wants reports whether any subscriber wants the events of an entry.
func (b *broker) wants(e *entry) bool {
	return b.any.Load() || b.runs.Load() && e.req.Holder.Run != ""
}

func (b *broker) publish(ev Event) {
	for _, s := range b.subs {
		if s.runs && ev.Run == "" {
			continue
		}
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
	b.note()
}

func (b *broker) remove(s *subscriber) {
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
	}
	b.note()
}

func (b *broker) note() {
	b.any.Store(slices.ContainsFunc(b.subs, func(s *subscriber) bool { return !s.runs }))
	b.runs.Store(slices.ContainsFunc(b.subs, func(s *subscriber) bool { return s.runs }))
}

// publish publishes an event of a claim of this instance.
func (c *core) publish(t EventType, e *entry, reason string) {
	if c.broker.wants(e) {
		c.broker.publish(Event{
			Type: t, Pools: poolNames(e.req.Slots), Claim: e.req.ID,
			Run: e.req.Holder.Run, Step: e.req.Holder.Step, Reason: reason,
		})
	}
}

// Subscribe returns events from now on, until ctx ends. The channel is never
// closed. The sender does not wait for the reader: see [Event.Lagged].
func (e *Engine) Subscribe(ctx context.Context) (<-chan Event, error) {
	return e.subscribe(ctx, &subscriber{events: make(chan Event, eventBuffer)})
}

// SubscribeRuns is [Engine.Subscribe] for those of claims that carry a run.
func (e *Engine) SubscribeRuns(ctx context.Context) (<-chan Event, error) {
	return e.subscribe(ctx, &subscriber{events: make(chan Event, eventBuffer), runs: true})
}

func (e *Engine) subscribe(ctx context.Context, s *subscriber) (<-chan Event, error) {
	if err := e.send(ctx, func(c *core, _ time.Time) { c.broker.add(s) }); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		_ = e.send(context.Background(), func(c *core, _ time.Time) { c.broker.remove(s) })
	})
	return s.events, nil
}
