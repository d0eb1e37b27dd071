package run

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// followLinger is for how long a run that has ended is followed on after its last
	// event: its claims are often released a moment later.
	followLinger = time.Second
	// followLook is how often the record is looked at besides: it may be gone without
	// an event.
	followLook = 15 * time.Second
)

// Place is a place among the events of a run. The zero value is before all.
type Place struct {
	Revision int64
	// ID is that of an event of the revision; empty after all of that revision.
	ID string
}

// String writes a place: REVISION-ID.
func (p Place) String() string {
	text := strconv.FormatInt(p.Revision, 10)
	if p.ID != "" {
		text += "-" + p.ID
	}
	return text
}

// ParsePlace reads a place; an empty text is the zero value. Its errors are problems
// of the field.
func ParsePlace(field, text string) (Place, error) {
	if text == "" {
		return Place{}, nil
	}
	number, id, more := strings.Cut(text, "-")
	rev, err := strconv.ParseInt(number, 10, 64)
	if err != nil || rev < 0 || more && ValidateID(id) != nil {
		return Place{}, problem.Field(field, "%.100q is no place among events: it is the id of one that was told, or the revision of one", text)
	}
	return Place{rev, id}, nil
}

// Place is the place right after the event.
func (e LoggedEvent) Place() Place { return Place{e.Revision, e.ID} }

// before tells whether an event comes after the place.
func (p Place) before(e LoggedEvent) bool {
	return e.Revision > p.Revision || e.Revision == p.Revision && p.ID != "" && e.ID > p.ID
}

// ends tells whether an event is the end of its run.
func (e Event) ends() bool {
	switch e.Type {
	case RunSucceeded, RunFailed, RunCanceled:
		return true
	case RunLost, RunLaunchFailed:
		return e.Metadata[metaRetry] == ""
	}
	return false
}

// FollowEvents tells the events of a run that come after a place, first those that
// there are and then each as it comes, in order and none twice. It returns nil when
// the run has ended, or is gone, and nothing more has come for a second; events of
// its claims that come later still are among [Store.Events] alone. Before that it
// returns the cause of ctx's end, what tell returns, or a problem if an event can't
// be read. While etcd is away, it waits for it.
//
// The next events wait until tell returns.
func (s Store) FollowEvents(ctx context.Context, id string, after Place, tell func([]LoggedEvent) error) error {
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
	return f.follow(ctx, feed, tell)
}

// eventFollower follows the events of one run.
type eventFollower struct {
	store Store
	id    string
	place Place // up to which all was told
	known int64 // revision up to which all is known
	ended bool  // the run has, as far as is known
}

func (f *eventFollower) follow(ctx context.Context, feed *store.Feed, tell func([]LoggedEvent) error) error {
	look := time.NewTicker(followLook)
	defer look.Stop()
	quiet := time.NewTimer(followLinger) // since something was told
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
				f.look(ctx)
			}
			if len(fresh) > 0 {
				if err := tell(fresh); err != nil {
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
		case <-look.C:
			if f.look(ctx); f.ended {
				quiet.Reset(followLinger)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take returns what is new in a message, in order.
func (f *eventFollower) take(m store.FeedMessage) ([]LoggedEvent, error) {
	var kvs []*mvccpb.KeyValue
	if m.Snapshot != nil {
		kvs, f.ended = m.Snapshot.KVs, false
		if m.Snapshot.Revision < f.place.Revision {
			f.place = Place{} // etcd was restored from a backup, or the place is another etcd's
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

// look looks at the record, whose end may have left no event. What fails is tried
// again: it was not for this that somebody asked.
func (f *eventFollower) look(ctx context.Context) {
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
