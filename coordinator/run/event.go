package run

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
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
	RunDue      EventType = "RunDue"      // its time has come, and it joined the queue
	RunDequeued EventType = "RunDequeued" // it was admitted
	RunStarted  EventType = "RunStarted"  // an executor has it
	// RunLaunchFailed: it was admitted, and nobody started it in time.
	RunLaunchFailed EventType = "RunLaunchFailed"
	RunLost         EventType = "RunLost"     // its executor is gone
	RunRequeued     EventType = "RunRequeued" // the slots that were kept for it are gone
	RunSucceeded    EventType = "RunSucceeded"
	RunFailed       EventType = "RunFailed"
	RunCanceled     EventType = "RunCanceled"

	// Of claims that carry a run, with their pools; written by [Journal.Follow].
	StepSlotWaiting EventType = "StepSlotWaiting" // it does not fit yet
	StepSlotClaimed EventType = "StepSlotClaimed" // it has its slots
	// StepSlotRenewed: its lease was renewed for the first time, or after a gap.
	StepSlotRenewed  EventType = "StepSlotRenewed"
	StepSlotReleased EventType = "StepSlotReleased" // it gave them back
	StepSlotLost     EventType = "StepSlotLost"     // they were lost, or taken back
	// Step instances: the event's metadata says which.
	StepStarted    EventType = "StepStarted"    // its command was started
	StepSucceeded  EventType = "StepSucceeded"  // and so on: its ends
	StepFailed     EventType = "StepFailed"     // for good
	StepCanceled   EventType = "StepCanceled"   // it was stopped
	StepRetried    EventType = "StepRetried"    // it has failed, or was lost, and is tried again; or somebody has asked for that
	StepHandedBack EventType = "StepHandedBack" // its worker could not begin it
)

// ofClaim tells whether a type is about a claim that carries a run.
func (t EventType) ofClaim() bool { return strings.HasPrefix(string(t), "StepSlot") }

// metaRetry says in an event of a loss which retry it leaves the run; a loss without
// it is the run's end.
const metaRetry = "retry"

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
	// ID is the event's own, and the order of the events of one revision.
	ID string
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
	run, id, _ := strings.Cut(rest, "/")
	if !ok || ValidateID(run) != nil || ValidateID(id) != nil {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("it is no key of an event")}
	}
	var v eventValue
	if err := store.Decode(key, kv.Value, &v); err != nil {
		return LoggedEvent{}, err
	}
	if v.Type == "" {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("type: it has none")}
	}
	return LoggedEvent{Event: v.Event, Run: run, ID: id, Revision: kv.ModRevision}, nil
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
	slices.SortFunc(all, LoggedEvent.compare)
	return all, nil
}

// PoolList spells slots as in db=2,gpu=1.
func PoolList(slots map[string]int) string {
	parts := make([]string, 0, len(slots))
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		parts = append(parts, name+"="+strconv.Itoa(slots[name]))
	}
	return strings.Join(parts, ",")
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
