package ui

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/coordinator/run"
)

// loggedAt are events in order, of which each is so many seconds after noon.
func loggedAt(seconds int, e run.Event) run.LoggedEvent {
	e.At = afterNoon(0).Add(time.Duration(seconds) * time.Second)
	return run.LoggedEvent{Event: e, Run: "r", ID: fmt.Sprintf("e%06d", seconds), Revision: int64(seconds + 1000)}
}

func ofClaim(seconds int, t run.EventType, claim, step, reason string) run.LoggedEvent {
	return loggedAt(seconds, run.Event{Type: t, Reason: reason, By: "one/sidecar", Metadata: map[string]string{"claim": claim, "step": step, "pools": "db,gpu"}})
}

func TestTheQueueTellsHowLongARunWaitedEachTime(t *testing.T) {
	of := func(t run.EventType, meta ...string) run.Event {
		e := run.Event{Type: t}
		if len(meta) > 0 {
			e.Metadata = map[string]string{meta[0]: meta[1]}
		}
		return e
	}
	for _, tc := range []struct {
		name   string
		events []run.Event // each 10 s after the one before it
		want   []string
		since  int // seconds; -1: it is not queued
	}{
		{"queued", []run.Event{of(run.RunQueued)}, []string{"RunQueued "}, 0},
		{"admitted", []run.Event{of(run.RunQueued), of(run.RunDequeued), of(run.RunStarted)}, []string{"RunQueued ", "RunDequeued 10s"}, -1},
		{
			"requeued", []run.Event{of(run.RunQueued), of(run.RunDequeued), of(run.RunRequeued), of(run.RunDequeued)},
			[]string{"RunQueued ", "RunDequeued 10s", "RunRequeued ", "RunDequeued 10s"}, -1,
		},
		{
			"lost and tried again", []run.Event{of(run.RunQueued), of(run.RunDequeued), of(run.RunStarted), of(run.RunLost, "retry", "1/2")},
			[]string{"RunQueued ", "RunDequeued 10s", "RunLost "}, 30,
		},
		{"lost for good", []run.Event{of(run.RunQueued), of(run.RunDequeued), of(run.RunLaunchFailed)}, []string{"RunQueued ", "RunDequeued 10s", "RunLaunchFailed "}, -1},
		{"canceled in the queue", []run.Event{of(run.RunQueued), of(run.RunCanceled)}, []string{"RunQueued ", "RunCanceled 10s"}, -1},
		{"canceled later", []run.Event{of(run.RunQueued), of(run.RunDequeued), of(run.RunCanceled)}, []string{"RunQueued ", "RunDequeued 10s"}, -1},
		{"the first events are gone", []run.Event{of(run.RunDequeued)}, []string{"RunDequeued "}, -1},
	} {
		var events []run.LoggedEvent
		for n, e := range tc.events {
			events = append(events, loggedAt(10*n, e))
		}
		all, since := queueEventsOf(events)
		var got []string
		for _, q := range all {
			got = append(got, string(q.Type)+" "+q.Waited)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, d)
		}
		if want := tc.since; want < 0 && !since.IsZero() || want >= 0 && !since.Equal(afterNoon(0).Add(time.Duration(want)*time.Second)) {
			t.Errorf("%s: in the queue since %v", tc.name, since)
		}
	}
}

func TestEventsOfClaimsAreGroupedByStep(t *testing.T) {
	tab := concurrencyOf([]run.LoggedEvent{
		loggedAt(0, run.Event{Type: run.RunQueued}),
		ofClaim(1, run.StepSlotWaiting, "c1", "load[0]", "pool 'db' full (3/3 slots)"),
		ofClaim(2, run.StepSlotClaimed, "c2", "load[1]", ""),
		ofClaim(3, run.StepSlotClaimed, "c3", "", ""),
		ofClaim(5, run.StepSlotClaimed, "c1", "load[0]", ""),
		ofClaim(7, run.StepSlotRenewed, "c2", "load[1]", ""),
		ofClaim(12, run.StepSlotReleased, "c2", "load[1]", ""),
		ofClaim(15, run.StepSlotLost, "c1", "load[0]", "the lease ended"),
		ofClaim(16, run.StepSlotWaiting, "c4", "by hand <b>", ""),
		ofClaim(20, run.StepSlotLost, "c4", "by hand <b>", "given up"),
		ofClaim(21, run.StepSlotRenewed, "c5", "load[7]", "late"),
	})
	event := func(t run.EventType, what, claim, step, after, reason string, first bool, seconds int) slotEvent {
		return slotEvent{
			Type: t, What: what, Claim: claim, For: step, Pools: "db, gpu", Reason: reason, By: "one/sidecar",
			At: afterNoon(0).Add(time.Duration(seconds) * time.Second), After: after, First: first,
		}
	}
	want := []slotGroup{
		{
			Step: "load", Claims: 3, Waiting: 1, Pools: []string{"db, gpu"}, waited: 4 * time.Second, held: 20 * time.Second,
			Events: []slotEvent{
				event(run.StepSlotWaiting, "waiting", "c1", "load[0]", "", "pool 'db' full (3/3 slots)", true, 1),
				event(run.StepSlotClaimed, "claimed", "c1", "load[0]", "waited 4s", "", false, 5),
				event(run.StepSlotLost, "lost", "c1", "load[0]", "held for 10s", "the lease ended", false, 15),
				event(run.StepSlotClaimed, "claimed", "c2", "load[1]", "", "", true, 2),
				event(run.StepSlotRenewed, "renewed", "c2", "load[1]", "held for 5s so far", "", false, 7),
				event(run.StepSlotReleased, "released", "c2", "load[1]", "held for 10s", "", false, 12),
				event(run.StepSlotRenewed, "renewed", "c5", "load[7]", "", "late", true, 21),
			},
		},
		{Claims: 1, Pools: []string{"db, gpu"}, Events: []slotEvent{event(run.StepSlotClaimed, "claimed", "c3", "", "", "", true, 3)}},
		{
			Step: "by hand <b>", Claims: 1, Waiting: 1, Pools: []string{"db, gpu"}, waited: 4 * time.Second,
			Events: []slotEvent{
				event(run.StepSlotWaiting, "waiting", "c4", "", "", "", true, 16),
				event(run.StepSlotLost, "lost", "c4", "", "waited 4s", "given up", false, 20),
			},
		},
	}
	opts := cmp.Options{cmp.AllowUnexported(slotGroup{}), cmpopts.IgnoreFields(slotEvent{}, "number", "begun")}
	if d := cmp.Diff(want, tab.Groups, opts); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if tab.All != 10 || tab.Shown != 10 || len(tab.Queue) != 1 {
		t.Errorf("%+v", tab)
	}
	if got, want := tab.Groups[0].Summary(), "3 claims; 1 had to wait, 4s in all; slots held for 20s in all"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOfManyEventsOfClaimsTheLatestAreShown(t *testing.T) {
	var events []run.LoggedEvent
	for n := range slotsShown {
		step := fmt.Sprintf("s%d[%d]", n%3, n)
		events = append(events, ofClaim(2*n, run.StepSlotClaimed, fmt.Sprint("c", n), step, ""), ofClaim(2*n+1, run.StepSlotReleased, fmt.Sprint("c", n), step, ""))
	}
	tab := concurrencyOf(events)
	shown, oldest := 0, events[len(events)-slotsShown].At
	for _, g := range tab.Groups {
		for n, e := range g.Events {
			if shown++; e.At.Before(oldest) || e.First != (n == 0 || g.Events[n-1].Claim != e.Claim) {
				t.Errorf("%+v", e)
			}
		}
	}
	if tab.All != 2*slotsShown || tab.Shown != slotsShown || shown != slotsShown || tab.Groups[0].Claims < slotsShown/3 {
		t.Errorf("%d of %d, %d in groups of %d claims", tab.Shown, tab.All, shown, tab.Groups[0].Claims)
	}
}

func TestWhatAClaimIsForIsTakenApart(t *testing.T) {
	for text, want := range map[string][2]string{
		"load[3]": {"load", "load[3]"}, "load": {"load", ""}, "": {"", ""}, "a[b]": {"a[b]", ""}, "a[]": {"a[]", ""},
		"a[1": {"a[1", ""}, "a[1]x": {"a[1]x", ""}, "a[1][2]": {"a[1][2]", ""}, "[5]": {"", "[5]"},
	} {
		if name, instance := stepOf(text); name != want[0] || instance != want[1] {
			t.Errorf("%s: %q, %q", text, name, instance)
		}
	}
}

// The pages of events, from the latest back, show each once.
func TestPagesOfEventsLoseNoneAndDoubleNone(t *testing.T) {
	for _, n := range []int{0, 1, eventsShown, eventsShown + 1, 500, 3*eventsShown + 7} {
		var events []run.LoggedEvent
		for i := range n {
			e := loggedAt(i, run.Event{Type: run.StepStarted})
			e.Revision = int64(1000 + i/7) // some came with one write
			events = append(events, e)
		}
		q, seen := onTab("r", tabEvents), 0
		for {
			tab := eventsTabOf(events, q)
			if len(tab.Rows) > eventsShown || tab.All != n || (tab.Newer != "") != (seen > 0) {
				t.Fatalf("%d: %d rows, %+v", n, len(tab.Rows), tab)
			}
			for _, row := range tab.Rows {
				if seen++; !row.At.Equal(events[n-seen].At) {
					t.Fatalf("%d: %v is at %d", n, row.At, seen)
				}
			}
			if tab.Older == "" {
				break
			}
			q = hrefQuery(t, tab.Older)
		}
		if seen != n {
			t.Errorf("%d of %d are shown", seen, n)
		}
	}
}
