package run

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// followBatch is how many events are written at once. While etcd is not available, at
	// most followMost events are kept; older ones are dropped.
	followBatch = 64
	followMost  = 4096
	followPause = time.Second
	followTry   = 2 * time.Second
)

// claimEvents maps events of claims to those of runs.
var claimEvents = map[pool.EventType]EventType{
	pool.ClaimWaiting:  StepSlotWaiting,
	pool.ClaimGranted:  StepSlotClaimed,
	pool.ClaimRenewed:  StepSlotRenewed,
	pool.ClaimReleased: StepSlotReleased,
	pool.ClaimEnded:    StepSlotLost,
}

// logged is an event to write. Its id is chosen before the first attempt, so that it is
// written once.
type logged struct {
	run, id string
	event   Event
	holder  pool.Holder // what is known of it
	// counted: it is among the events that the run can have, and need not be counted when it is
	// tried again.
	counted bool
}

// Followed says which events of claims [Journal.Follow] writes.
type Followed struct {
	// Host is the host of the claims.
	Host string
	// Of, if it is not nil, reports whether an event is written.
	Of func(pool.Event) bool
	// Takes, if it is not nil, reports whether a claim was made by an executor of a step
	// instance of the run that it names: see [Executor.Owns].
	Takes func(ctx context.Context, h pool.Holder) (bool, error)
	// Most bounds the events of one identity within an hour; 0 is [claimEventsMost]. Claims of
	// step instances are not counted.
	Most int
	// Dropped is called with the number of events that are dropped, because etcd was not
	// available for too long or the run has as many as it can have.
	Dropped func(n int)
}

// Follow writes the events of claims that belong to a run to the events of that run, until ctx
// ends: see [Record.Owns]. It writes none of a run that does not exist. It writes them
// separately and afterwards, so that claims and releases do not wait for it, and a full etcd
// still accepts releases. If the process is killed, the last events may be missing.
func (j *Journal) Follow(ctx context.Context, claims <-chan pool.Event, f Followed) error {
	var pending []logged
	take := func(ev pool.Event) {
		l, ok := loggedOf(ev, f.Host, time.Now())
		if !ok || f.Of != nil && !f.Of(ev) {
			return
		}
		pending = append(pending, l)
	}
	retry := time.NewTimer(followPause)
	defer retry.Stop()
	for {
		select {
		case ev := <-claims:
			take(ev)
		case <-retry.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for more := true; more; { // includes what is pending
			select {
			case ev := <-claims:
				take(ev)
			default:
				more = false
			}
		}
		for len(pending) > 0 {
			n := min(len(pending), followBatch)
			if err := j.write(ctx, pending[:n], &f); err != nil {
				break
			}
			pending = pending[n:]
		}
		if over := len(pending) - followMost; over > 0 {
			pending = pending[over:]
			f.Dropped(over)
		}
		if len(pending) > 0 {
			retry.Reset(followPause)
		}
	}
}

// loggedOf converts the event of a claim, if it is one of a run.
func loggedOf(ev pool.Event, host string, now time.Time) (logged, bool) {
	t, ok := claimEvents[ev.Type]
	if !ok || ev.Run == "" || ValidateID(ev.Run) != nil {
		return logged{}, false
	}
	return logged{
		run: ev.Run, id: eventID(ev),
		event: Event{
			Type: t, At: now, Reason: ev.Reason,
			Metadata: meta("claim", ev.Claim, "step", ev.Step, "pools", strings.Join(ev.Pools, ",")),
		},
		holder: pool.Holder{Host: host, Run: ev.Run, ClaimedBy: ev.ClaimedBy, Bind: ev.Bind},
	}, true
}

// eventID returns the id of the event of a claim. That a step instance waits is one event of each attempt, however often its
// claim leaves the wait queue and comes back.
func eventID(ev pool.Event) string {
	if ev.Type == pool.ClaimWaiting && ev.Bind == BindStep {
		sum := sha256.Sum256([]byte(ev.Claim))
		return "waits-" + hex.EncodeToString(sum[:16])
	}
	return ulid.Make().String()
}

func (f *Followed) most() int { return cmp.Or(f.Most, claimEventsMost) }

// mayOfClaim reports whether an event of a claim can be written.
func (j *Journal) mayOfClaim(ctx context.Context, l *logged, most int) (bool, error) {
	if may, err := j.may(ctx, l.run, l.event); err != nil || !may {
		return false, err
	}
	if l.holder.Bind == BindStep || j.claims.take(l.holder.ClaimedBy, most, time.Now()) {
		return true, nil
	}
	j.dropped.Add(1)
	return false, nil
}

// write writes those of the events that do not exist yet, and that belong to their runs.
func (j *Journal) write(ctx context.Context, events []logged, f *Followed) error {
	ctx, cancel := context.WithTimeout(ctx, followTry)
	defer cancel()
	m := membership{takes: f.Takes, runs: map[string]*Run{}, taken: map[string]bool{}}
	if err := m.read(ctx, Store{Backend: j.backend, Keys: j.keys}, events); err != nil {
		return err
	}
	var ops []*pb.RequestOp
	dropped, ids := 0, map[string]bool{}
	for i := range events {
		l := &events[i]
		if ids[l.run+"/"+l.id] {
			continue // etcd refuses a transaction that names a key twice
		}
		ids[l.run+"/"+l.id] = true
		if belongs, err := m.own(ctx, l.holder); err != nil {
			return err
		} else if !belongs {
			continue
		}
		if !l.counted {
			if may, err := j.mayOfClaim(ctx, l, f.most()); err != nil {
				return err
			} else if !may {
				dropped++
				continue
			}
			l.counted = true
		}
		op, err := j.once(ctx, l.run, l.id, l.event)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	if len(ops) > 0 {
		_, err := store.Commit(ctx, j.backend, nil, ops...)
		if errors.Is(err, store.ErrLeaseNotFound) {
			j.Forget()
		}
		if err != nil {
			return err
		}
	}
	if dropped > 0 {
		f.Dropped(dropped)
	}
	return nil
}

const (
	// followLinger is how long an ended run is followed after its last event: its claims
	// are often released a moment later.
	followLinger = time.Second
	// followCheck is how often the record is checked: it may be deleted without an event.
	followCheck = 15 * time.Second
)

// Place is a position in the events of a run. The zero value is before all.
type Place struct {
	Revision int64
	// ID is that of an event of the revision; empty after all of the revision.
	ID string
}

// String returns REVISION-ID.
func (p Place) String() string {
	text := strconv.FormatInt(p.Revision, 10)
	if p.ID != "" {
		text += "-" + p.ID
	}
	return text
}

// ParsePlace parses a place; an empty text is the zero value. Its errors are problems of
// the field.
func ParsePlace(field, text string) (Place, error) {
	if text == "" {
		return Place{}, nil
	}
	number, id, more := strings.Cut(text, "-")
	rev, err := strconv.ParseInt(number, 10, 64)
	if err != nil || rev < 0 || more && ValidateID(id) != nil {
		return Place{}, problem.Field(field, "%.100q is not a position in the events: use the id or the revision of an event", text)
	}
	return Place{rev, id}, nil
}

// Place returns the position after the event.
func (e LoggedEvent) Place() Place { return Place{e.Revision, e.ID} }

// before reports whether an event comes after the position.
func (p Place) before(e LoggedEvent) bool {
	return e.Revision > p.Revision || e.Revision == p.Revision && p.ID != "" && e.ID > p.ID
}

// ends reports whether an event is the end of its run.
func (e Event) ends() bool {
	switch e.Type {
	case RunSucceeded, RunFailed, RunCanceled:
		return true
	case RunLost, RunLaunchFailed:
		return e.Metadata[metaRetry] == ""
	}
	return false
}

// FollowEvents calls each with the events of a run after a position, first with the existing
// ones and then with new ones, in order and without repetition. It returns nil when the run
// has ended, or is deleted, and there was no event for a second; only [Store.Events] has
// later events of its claims. Otherwise it returns the cause of ctx, an error of each, or a
// problem if an event cannot be read. It waits while etcd is not available, and while each
// runs.
func (s Store) FollowEvents(ctx context.Context, id string, after Place, each func([]LoggedEvent) error) error {
	if err := ValidateID(id); err != nil {
		return err
	}
	fed := make(chan struct{})
	inner, cancel := context.WithCancel(ctx)
	feed := store.NewFeed(s.Backend, s.Keys.Events(id), hclog.NewNullLogger(), func() {})
	go func() {
		defer close(fed)
		_ = feed.Run(inner) // it ends with inner
	}()
	defer func() { cancel(); <-fed }()
	f := &eventFollower{store: s, id: id, place: after}
	return f.follow(ctx, feed, each)
}

// eventFollower follows the events of one run.
type eventFollower struct {
	store Store
	id    string
	place Place // up to which each was called
	known int64 // revision up to which all is known
	ended bool  // the run has ended, as far as is known
}

func (f *eventFollower) follow(ctx context.Context, feed *store.Feed, each func([]LoggedEvent) error) error {
	check := time.NewTicker(followCheck)
	defer check.Stop()
	quiet := time.NewTimer(followLinger) // since the last event
	defer quiet.Stop()
	for {
		select {
		case m, ok := <-feed.Messages():
			if !ok {
				return context.Cause(ctx)
			}
			before := f.ended
			fresh, err := f.take(m)
			if err != nil {
				return store.Problem("the events could not be read", err)
			}
			if m.Snapshot != nil {
				f.check(ctx)
			}
			if len(fresh) > 0 {
				if err := each(fresh); err != nil {
					return err
				}
			}
			if len(fresh) > 0 || f.ended && !before {
				quiet.Reset(followLinger)
			}
		case <-quiet.C:
			if f.ended {
				return nil
			}
		case <-check.C:
			if f.check(ctx); f.ended {
				quiet.Reset(followLinger)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take returns the new events of a message, in order.
func (f *eventFollower) take(m store.FeedMessage) ([]LoggedEvent, error) {
	var kvs []*mvccpb.KeyValue
	if m.Snapshot != nil {
		kvs, f.ended = m.Snapshot.KVs, false
		if m.Snapshot.Revision < f.place.Revision {
			f.place = Place{} // etcd was restored from a backup, or the position is of another etcd
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_PUT {
			kvs = append(kvs, ev.Kv)
		}
	}
	f.known = m.Revision
	all := make([]LoggedEvent, 0, len(kvs))
	for _, kv := range kvs {
		e, err := DecodeEvent(f.store.Keys, kv)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	slices.SortFunc(all, LoggedEvent.compare)
	var fresh []LoggedEvent
	for _, e := range all {
		if !e.Type.ofClaim() {
			f.ended = e.ends()
		}
		if f.place.before(e) {
			fresh = append(fresh, e)
			f.place = e.Place()
		}
	}
	return fresh, nil
}

// check checks the record, which may have ended without an event. Errors are ignored: it
// is called again.
func (f *eventFollower) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, followTry)
	defer cancel()
	r, err := f.store.read(ctx, f.id)
	if err == nil && (r == nil || r.Status.Ended() && r.Revision <= f.known) {
		f.ended = true
	}
}

// compare orders events of a run.
func (e LoggedEvent) compare(o LoggedEvent) int {
	return cmp.Or(cmp.Compare(e.Revision, o.Revision), strings.Compare(e.ID, o.ID))
}
