package run

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// EventType is the type of an event of a run.
type EventType string

// The types.
const (
	RunQueued   EventType = "RunQueued"   // it was submitted, or queued again
	RunDue      EventType = "RunDue"      // it was due, and joined the queue
	RunDequeued EventType = "RunDequeued" // it was admitted
	RunStarted  EventType = "RunStarted"  // an executor has started it
	// RunLaunchFailed: it was admitted, but not started in time.
	RunLaunchFailed EventType = "RunLaunchFailed"
	RunLost         EventType = "RunLost"     // its executor is gone
	RunRequeued     EventType = "RunRequeued" // its slots have expired
	RunSucceeded    EventType = "RunSucceeded"
	RunFailed       EventType = "RunFailed"
	RunCanceled     EventType = "RunCanceled"

	// Of claims with a run; written by [Journal.Follow].
	StepSlotWaiting EventType = "StepSlotWaiting" // it does not fit yet
	StepSlotClaimed EventType = "StepSlotClaimed" // it has its slots
	// StepSlotRenewed: its lease was renewed for the first time, or after a gap.
	StepSlotRenewed  EventType = "StepSlotRenewed"
	StepSlotReleased EventType = "StepSlotReleased" // it released its slots
	StepSlotLost     EventType = "StepSlotLost"     // they were lost, or revoked
	// Of step instances, which the metadata names.
	StepStarted    EventType = "StepStarted"    // its command was started
	StepSucceeded  EventType = "StepSucceeded"  // its ends
	StepFailed     EventType = "StepFailed"     // for good
	StepCanceled   EventType = "StepCanceled"   // it was canceled
	StepRetried    EventType = "StepRetried"    // it has failed or was lost and is tried again, or a user retries it
	StepHandedBack EventType = "StepHandedBack" // its worker could not start it
)

// ofClaim reports whether a type is that of a claim.
func (t EventType) ofClaim() bool { return strings.HasPrefix(string(t), "StepSlot") }

// metaRetry is the number of the retry after a loss. A loss without it is the end of the
// run.
const metaRetry = "retry"

// Event is an event of a run. It is written in the transaction of the change.
type Event struct {
	Type EventType `json:"type"`
	At   time.Time `json:"at"`
	// By is the instance that wrote it: "host/instance".
	By string `json:"by,omitempty"`
	// Reason is why, if that does not follow from the type.
	Reason string `json:"reason,omitempty"`
	// Metadata has details that depend on the type.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// LoggedEvent is an event with its id and revision.
type LoggedEvent struct {
	Event
	Run string
	// ID identifies the event, and orders the events of one revision.
	ID string
	// Revision orders all events of all runs.
	Revision int64
}

// eventValue is the value of an event in etcd.
type eventValue struct {
	store.V
	Event
}

// DecodeEvent decodes an event.
func DecodeEvent(keys store.Keys, kv *mvccpb.KeyValue) (LoggedEvent, error) {
	key := string(kv.Key)
	rest, ok := strings.CutPrefix(key, keys.EventsAll())
	run, id, _ := strings.Cut(rest, "/")
	if !ok || ValidateID(run) != nil || ValidateID(id) != nil {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("it is not the key of an event")}
	}
	var v eventValue
	if err := store.Decode(key, kv.Value, &v); err != nil {
		return LoggedEvent{}, err
	}
	if v.Type == "" {
		return LoggedEvent{}, &store.CorruptError{Key: key, Reason: errors.New("type is missing")}
	}
	return LoggedEvent{Event: v.Event, Run: run, ID: id, Revision: kv.ModRevision}, nil
}

// Events returns the events of a run, in order. A deleted run may still have events.
func (s Store) Events(ctx context.Context, id string) ([]LoggedEvent, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	var all []LoggedEvent
	var wrong error
	_, err := store.Pages{Prefix: s.Keys.Events(id), Most: eventsPage}.Each(ctx, s.Backend, func(page store.Page) bool {
		for _, kv := range page.KVs {
			var e LoggedEvent
			if e, wrong = DecodeEvent(s.Keys, kv); wrong != nil {
				return false
			}
			all = append(all, e)
		}
		return true
	})
	if err = cmp.Or(err, wrong); err != nil {
		return nil, store.Problem("the events could not be read", err)
	}
	slices.SortFunc(all, LoggedEvent.compare)
	return all, nil
}

// eventsPage is how many events one request reads at most.
const eventsPage = 1000

// PoolList formats slots as db=2,gpu=1.
func PoolList(slots map[string]int) string {
	parts := make([]string, 0, len(slots))
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		parts = append(parts, name+"="+strconv.Itoa(slots[name]))
	}
	return strings.Join(parts, ",")
}

// meta returns metadata from key-value pairs, without empty values.
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
