package run

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// EventType names what has happened to a run.
type EventType string

// The types.
const (
	RunQueued   EventType = "RunQueued"   // it was submitted, or came back to the queue
	RunDequeued EventType = "RunDequeued" // it was admitted
	RunStarted  EventType = "RunStarted"  // an executor has it
	// RunLaunchFailed: it was admitted, and nobody started it in time.
	RunLaunchFailed EventType = "RunLaunchFailed"
	RunLost         EventType = "RunLost" // its executor is gone
	RunSucceeded    EventType = "RunSucceeded"
	RunFailed       EventType = "RunFailed"
	RunCanceled     EventType = "RunCanceled"

	// Of claims that carry a run, with their pools; written by [Journal.Follow].
	StepSlotWaiting  EventType = "StepSlotWaiting"  // it does not fit yet
	StepSlotClaimed  EventType = "StepSlotClaimed"  // it has its slots
	StepSlotReleased EventType = "StepSlotReleased" // it gave them back
	StepSlotLost     EventType = "StepSlotLost"     // they were lost, or taken back
)

// Event is something that happened to a run. It is written in the transaction in
// which it happens.
type Event struct {
	Type EventType `json:"type"`
	At   time.Time `json:"at"`
	// By is the instance that wrote it: "host/instance".
	By string `json:"by,omitempty"`
	// Reason says why, where that is not plain.
	Reason string `json:"reason,omitempty"`
	// Metadata says more, by the type.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// LoggedEvent is an event as it stands in etcd.
type LoggedEvent struct {
	Event
	Run string
	// Revision is the order of all events of all runs.
	Revision int64
}

// eventValue is how an event stands in etcd.
type eventValue struct {
	store.V
	Event
}

// DecodeEvent reads the event of a key.
func DecodeEvent(keys store.Keys, kv *mvccpb.KeyValue) (LoggedEvent, error) {
	key := string(kv.Key)
	rest, ok := strings.CutPrefix(key, keys.EventsAll())
	id, _, more := strings.Cut(rest, "/")
	if !ok || !more || ValidateID(id) != nil {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("it is no key of an event")}
	}
	var v eventValue
	if err := store.Decode(key, kv.Value, &v); err != nil {
		return LoggedEvent{}, err
	}
	if v.Type == "" {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("type: it has none")}
	}
	return LoggedEvent{Event: v.Event, Run: id, Revision: kv.ModRevision}, nil
}

// Events returns the events of a run, in order. A run whose record is gone may have
// some still, and one without any is none or an unknown one.
func (s Store) Events(ctx context.Context, id string) ([]LoggedEvent, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	prefix := s.Keys.Events(id)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix)})
	if err != nil {
		return nil, store.Problem("the events could not be read", err)
	}
	all := make([]LoggedEvent, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		e, err := DecodeEvent(s.Keys, kv)
		if err != nil {
			return nil, store.Problem("the events could not be read", err)
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b LoggedEvent) int { return int(a.Revision - b.Revision) })
	return all, nil
}

// meta returns metadata of an event without what is empty.
func meta(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	maps.DeleteFunc(m, func(_, v string) bool { return v == "" })
	if len(m) == 0 {
		return nil
	}
	return m
}
