package run

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// followed is what a follower of events received.
type followed struct {
	events []LoggedEvent
	done   chan error
	cancel context.CancelFunc
}

func (r *rig) follow(id string, after Place) *followed {
	ctx, cancel := context.WithCancel(r.t.Context())
	f := &followed{done: make(chan error, 1), cancel: cancel}
	go func() {
		f.done <- r.FollowEvents(ctx, id, after, func(events []LoggedEvent) error {
			f.events = append(f.events, events...)
			return nil
		})
	}()
	return f
}

// wants compares what was received with what there is, once all is quiet.
func (f *followed) wants(t *testing.T, want ...EventType) {
	t.Helper()
	synctest.Wait()
	got := make([]EventType, len(f.events))
	for i, e := range f.events {
		got[i] = e.Type
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v were received, want %v", got, want)
	}
}

// ended wants the follower to have ended with nil.
func (f *followed) ended(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-f.done:
		if err != nil {
			t.Error(err)
		}
	default:
		t.Error("it has not ended")
		f.cancel()
		<-f.done
	}
}

// log writes events of a run in one transaction.
func (r *rig) log(run string, types ...EventType) {
	r.t.Helper()
	var ops []*pb.RequestOp
	for _, e := range types {
		op, err := r.Journal.Op(r.t.Context(), run, Event{Type: e, At: time.Now()})
		if err != nil {
			r.t.Fatal(err)
		}
		ops = append(ops, op)
	}
	if _, err := store.Commit(r.t.Context(), r.b, nil, ops...); err != nil {
		r.t.Fatal(err)
	}
}

func TestEventsAreFollowedUntilTheRunHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		r.submit("a-b", Spec{}) // of another run, whose id begins so
		f := r.follow("a", Place{})
		f.wants(t, RunQueued)
		r.log("a", StepSlotWaiting, StepSlotClaimed)
		f.wants(t, RunQueued, StepSlotWaiting, StepSlotClaimed)
		if _, err := r.Cancel(t.Context(), "a", "", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(followLinger / 2)
		r.log("a", StepSlotReleased) // of a claim that was released a moment later
		time.Sleep(followLinger - time.Millisecond)
		want := []EventType{RunQueued, StepSlotWaiting, StepSlotClaimed, RunCanceled, StepSlotReleased}
		f.wants(t, want...)
		time.Sleep(2 * time.Millisecond)
		f.ended(t)

		late := r.follow("a", Place{})
		time.Sleep(followLinger)
		late.wants(t, want...)
		late.ended(t)
		for i, e := range f.events { // a follower that continues from any of them misses none
			if at, err := ParsePlace("at", e.Place().String()); at != e.Place() || err != nil {
				t.Errorf("%s is read as %v, %v", e.Place(), at, err)
			}
			rest := r.follow("a", e.Place())
			time.Sleep(followLinger)
			rest.wants(t, want[i+1:]...)
			rest.ended(t)
		}
		from := r.follow("a", Place{Revision: f.events[1].Revision})
		time.Sleep(followLinger)
		from.wants(t, want[3:]...)
		from.ended(t)
	})
}

// Neither a compaction nor an unavailable etcd reports an event twice, or hides one.
func TestFollowedEventsAreReportedOnceDespiteFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		f := r.follow("a", Place{})
		f.wants(t, RunQueued)
		other := Store{Backend: r.b.Peer(), Keys: r.Keys, Journal: NewJournal(r.b.Peer(), r.Keys, "two/test", 0)}
		r.b.Down()
		if _, err := other.Cancel(t.Context(), "a", "", false); err != nil {
			t.Fatal(err)
		}
		resp, err := other.Backend.Range(t.Context(), &pb.RangeRequest{Key: []byte("x")})
		if err == nil {
			err = other.Backend.(store.Compacter).Compact(t.Context(), resp.Header.Revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		f.wants(t, RunQueued)
		r.b.Up()
		time.Sleep(10 * time.Second)
		f.wants(t, RunQueued, RunCanceled)
		f.ended(t)
	})
}

func TestALostRunThatIsTriedAgainIsFollowedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for retries, ends := range map[int]bool{0: true, 1: false} {
			rec, _ := queued(Spec{Retries: retries}, time.Now())
			rec, _ = rec.Admit("", time.Now())
			if rec, e := rec.Lose(time.Now()); e.ends() != ends || rec.Status.Ended() != ends {
				t.Errorf("with %d retries: %+v", retries, e)
			}
		}
		r := newRig(t)
		r.submit("a", Spec{})
		r.log("a", RunSucceeded, RunQueued) // of an earlier run of that id
		f := r.follow("a", Place{})
		time.Sleep(time.Hour)
		f.wants(t, RunQueued, RunSucceeded, RunQueued)
		f.cancel()
		if err := <-f.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A record that is gone without an event ends the following as well.
func TestFollowingEndsWithARecordThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		f := r.follow("a", Place{})
		f.wants(t, RunQueued)
		if _, err := store.Commit(t.Context(), r.b, nil, store.Delete(r.Keys.Run("a"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(followCheck + followLinger)
		f.ended(t)
	})
}

func TestFollowingEndsWithWhatCantBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		f := r.follow("a", Place{})
		f.wants(t, RunQueued)
		r.put(r.Keys.Event("a", "x"), "{")
		r.wants(problem.CorruptValue, <-f.done)
		r.wants(problem.Invalid, r.FollowEvents(t.Context(), "no id", Place{}, nil))
		stop := errors.New("enough")
		r.submit("b", Spec{})
		if err := r.FollowEvents(t.Context(), "b", Place{}, func([]LoggedEvent) error { return stop }); err != stop {
			t.Error(err)
		}
	})
}

// An etcd that was restored from a backup begins at an earlier revision: then all
// events are reported.
func TestAPlaceThatIsYetToComeIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		f := r.follow("a", Place{Revision: 1 << 40})
		f.wants(t, RunQueued)
		f.cancel()
		<-f.done
	})
}

func TestPlacesThatAreNone(t *testing.T) {
	for _, text := range []string{"x", "-1", "-", "1-", "1-a/b", "1.5", "99999999999999999999", "1-a b"} {
		if p, err := ParsePlace("Last-Event-ID", text); problem.CodeOf(err) != problem.Invalid {
			t.Errorf("%q is read as %v, %v", text, p, err)
		}
	}
	if p, err := ParsePlace("", ""); p != (Place{}) || err != nil {
		t.Errorf("%v, %v", p, err)
	}
}
