package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// spans writes what something has done, in minutes after noon: waiting 1-2.
func spans(some []timeSpan) string {
	var all []string
	for _, s := range some {
		text := fmt.Sprintf("%s %v-%v", s.kind, s.from.Sub(afterNoon(0)).Minutes(), s.to.Sub(afterNoon(0)).Minutes())
		if s.open {
			text += "…"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestAStepWaitsFromWhenItCouldBegin(t *testing.T) {
	seen := seenOf(t, "a:", "b: a", "c: b", "d:", "e: d", "f:") // since minute 1
	seen.ended(0, step.Succeeded, afterNoon(3), afterNoon(5))
	b := &seen.overview.Steps[1]
	b.Counts, b.StartedAt = map[step.Status]int{step.Running: 1}, afterNoon(8)
	seen.ended(3, step.Failed, afterNoon(1), afterNoon(2))
	for number, want := range []string{
		"waiting 1-3, succeeded 3-5", // a
		"waiting 5-8, running 8-20…", // b
		"",                           // c waits for b
		"failed 1-2",                 // d began at once
		"",                           // e does not run
		"waiting 1-20…",              // f
	} {
		if got := spans(timeOfStep(seen.overview, number, afterNoon(20))); got != want {
			t.Errorf("%s: got %q, want %q", seen.overview.Steps[number].Shape.Name, got, want)
		}
	}
	seen.among(step.Around{})
	rows := timelineOf(seen, nil, onTab("r", tabTimeline), afterNoon(20)).Rows
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprintf("%s %s: waited %q since %v, ran %q since %v, %s", r.Name, r.Status, r.Waited, !r.WaitsSince.IsZero(), r.Ran, !r.RunsSince.IsZero(), r.Note))
	}
	want := []string{
		`the run running: waited "1m" since false, ran "" since true, `,
		`a succeeded: waited "2m" since false, ran "2m" since false, `,
		`b running: waited "3m" since false, ran "" since true, `,
		`c waiting: waited "" since false, ran "" since false, waits: it needs b`,
		`d failed: waited "" since false, ran "1m" since false, `,
		`e waiting: waited "" since false, ran "" since false, it never runs: not all of d has succeeded`,
		`f waiting: waited "" since true, ran "" since false, `,
	}
	// The tree has e below d and c below b.
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestARunWaitsInTheQueueAndForItsStart(t *testing.T) {
	now := afterNoon(20)
	for _, tc := range []struct {
		name   string
		record run.Record
		want   string
	}{
		{"queued", run.Record{Status: run.Queued, QueuedAt: afterNoon(1)}, "waiting 1-20…"},
		{"admitted", run.Record{Status: run.NotStarted, QueuedAt: afterNoon(1), AdmittedAt: afterNoon(3)}, "waiting 1-20…"},
		{"running", run.Record{Status: run.Running, QueuedAt: afterNoon(1), AdmittedAt: afterNoon(3), StartedAt: afterNoon(4)}, "waiting 1-4, running 4-20…"},
		{"failed", run.Record{Status: run.Failed, QueuedAt: afterNoon(1), StartedAt: afterNoon(4), EndedAt: afterNoon(6)}, "waiting 1-4, failed 4-6"},
		{"canceled in the queue", run.Record{Status: run.Canceled, QueuedAt: afterNoon(1), EndedAt: afterNoon(6)}, "waiting 1-6"},
		{"by a clock that is behind", run.Record{Status: run.Succeeded, QueuedAt: afterNoon(5), StartedAt: afterNoon(4), EndedAt: afterNoon(6)}, "waiting 5-5, succeeded 4-6"},
	} {
		if got := spans(timeOfRun(&run.Run{Record: tc.record}, now)); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestAnInstanceWaitsFromItsPublication(t *testing.T) {
	now := afterNoon(20)
	for _, tc := range []struct {
		name   string
		record step.Record
		want   string
	}{
		{"never published", step.Record{Status: step.Requested}, ""},
		{"published", step.Record{Status: step.Scheduled, ScheduledAt: afterNoon(2)}, "waiting 2-20…"},
		{"running", step.Record{Status: step.Running, ScheduledAt: afterNoon(2), StartedAt: afterNoon(3)}, "waiting 2-3, running 3-20…"},
		{"succeeded", step.Record{Status: step.Succeeded, ScheduledAt: afterNoon(2), StartedAt: afterNoon(3), EndedAt: afterNoon(4)}, "waiting 2-3, succeeded 3-4"},
		{"canceled before it began", step.Record{Status: step.Canceled, ScheduledAt: afterNoon(2), EndedAt: afterNoon(4)}, "waiting 2-4"},
		{"paused before a retry", step.Record{Status: step.Requested, Attempt: 1, ScheduledAt: afterNoon(2), StartedAt: afterNoon(3), EndedAt: afterNoon(4)}, "failed 3-4, waiting 4-20…"},
		{"published again", step.Record{Status: step.Scheduled, Attempt: 1, ScheduledAt: afterNoon(6), StartedAt: afterNoon(3), EndedAt: afterNoon(4)}, "failed 3-4, waiting 6-20…"},
	} {
		if got := spans(timeOfInstance(&step.Instance{Record: tc.record}, now)); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestAnExpandedStepShowsItsInstancesInTheTimeline(t *testing.T) {
	seen := seenOf(t, "a:", "x:", "y:")
	list := &step.Instances{Next: 50, Items: []*step.Instance{{StepID: store.StepID{Run: "r", Step: "x", Index: 3}, Record: step.Record{Status: step.Running, ScheduledAt: afterNoon(2), StartedAt: afterNoon(3)}}}}
	tab := timelineOf(seen, list, onTab("r", tabTimeline).in("x"), afterNoon(9))
	r := tab.Rows[3]
	if len(tab.Rows) != 5 || r.Name != "x[3]" || r.Level != 2 || r.Log != "/runs/r?index=3&step=x&tab=logs" || len(r.Bars) != 2 || tab.Next != "/runs/r?after=49&step=x&tab=timeline" {
		t.Errorf("%+v, %s", r, tab.Next)
	}
	if open, folded := tab.Rows[2].Href, tab.Rows[1].Href; open != "/runs/r?tab=timeline" || folded != "/runs/r?step=a&tab=timeline" {
		t.Errorf("%s, %s", open, folded)
	}
}

// Whatever the times: bars are in the picture and can be seen, waiting stands before
// running, and marks are few and in order.
func TestThePictureHoldsAllThatWasDone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "length"))
		at := func(name string) time.Time {
			return afterNoon(0).Add(time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, name)))
		}
		r := &run.Run{Record: run.Record{Status: run.Running, QueuedAt: at("queued"), StartedAt: at("started")}}
		now := afterNoon(0).Add(length)
		done := [][]timeSpan{timeOfRun(r, now)}
		for range rapid.IntRange(0, 5).Draw(t, "steps") {
			w := timeSpans{now: now}
			w.add(waiting, at("ready"), at("begin"))
			w.add(string(run.Succeeded), at("begin"), at("end"))
			done = append(done, w.all)
		}
		a := axisOf(r, done, now)
		if len(a.Marks) == 0 || len(a.Marks) > axisMarks+2 || a.Marks[0].X != 0 {
			t.Fatalf("%+v", a.Marks)
		}
		for n := 1; n < len(a.Marks); n++ {
			if a.Marks[n].X <= a.Marks[n-1].X || a.Marks[n].X > axisWidth {
				t.Fatalf("%+v", a.Marks)
			}
		}
		for _, some := range done {
			for _, s := range some {
				b, ok := a.bar(s)
				if !ok && !(a.Cut && s.kind == waiting) {
					t.Fatalf("%+v is not in %+v", s, a)
				}
				if ok && (b.X < 0 || b.Width < leastBar || b.X+b.Width > axisWidth) {
					t.Fatalf("%+v of %+v in %+v", b, s, a)
				}
			}
		}
	})
}

func TestOfALongQueueOnlyTheEndIsInThePicture(t *testing.T) {
	seen := seenOf(t, "a:")
	seen.run.QueuedAt, seen.run.StartedAt = afterNoon(-1000), afterNoon(1)
	seen.ended(0, step.Succeeded, afterNoon(3), afterNoon(5))
	seen.run.Status, seen.run.EndedAt = run.Succeeded, afterNoon(5)
	tab := timelineOf(seen, nil, onTab("r", tabTimeline), afterNoon(60))
	if !tab.Axis.Cut || !tab.Axis.From.Equal(afterNoon(0)) || !tab.Axis.To.Equal(afterNoon(5)) {
		t.Errorf("%+v", tab.Axis)
	}
	want := []timeBar{
		{waiting, 0, 120, "waited 16h41m, from 2024-05-05 19:20:00 UTC to 2024-05-06 12:01:00 UTC"},
		{"succeeded", 120, 480, "succeeded, it ran 4m, from 2024-05-06 12:01:00 UTC to 2024-05-06 12:05:00 UTC"},
	}
	if d := cmp.Diff(want, tab.Rows[0].Bars); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got := tab.Rows[0].Waited; got != "16h41m" {
		t.Errorf("in words: %s", got)
	}
}

// What goes on moves the end of the axis by whole marks only, so that the picture does
// not change whenever it is shown.
func TestTheAxisOfWhatGoesOnEndsAtAMark(t *testing.T) {
	seen := seenOf(t, "a:")
	tab := func(now time.Time) timeAxis { return timelineOf(seen, nil, onTab("r", tabTimeline), now).Axis }
	first, second := tab(afterNoon(5).Add(time.Second)), tab(afterNoon(5).Add(2*time.Second))
	if d := cmp.Diff(first, second); d != "" || !first.To.Equal(afterNoon(6)) {
		t.Errorf("%v\n%s", first.To, d)
	}
}
