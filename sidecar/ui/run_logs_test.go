package ui

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// detailOf is an instance in the middle of a step of 5.
func detailOf(rec step.Record, change ...func(*step.Detail)) *step.Detail {
	d := &step.Detail{
		Instance: step.Instance{StepID: store.StepID{Run: "r", Step: "x", Index: 2}, Record: rec},
		Run:      &run.Run{ID: "r"}, Shape: step.Shape{Name: "x", Count: 5, Queue: "big"},
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func TestWhereThereIsNoOutputItIsSaidWhy(t *testing.T) {
	for _, tc := range []struct {
		detail *step.Detail
		want   string
	}{
		{detailOf(step.Record{Status: step.Running, Attempt: 1}), "it is running, and its worker has not reported any"},
		{detailOf(step.Record{Status: step.Running, Attempt: 1}, func(d *step.Detail) { d.Shape.External = true }), "its executor hands its output in at the end"},
		{detailOf(step.Record{Status: step.Scheduled}), "it has not started"},
		{detailOf(step.Record{Status: step.Requested}), "it has not started"},
		{detailOf(step.Record{Status: step.Canceled}), "it was canceled before it started"},
		{detailOf(step.Record{Status: step.Succeeded, StartedAt: afterNoon(1)}), "it has written nothing, or that was longer ago than output is kept"},
		{
			detailOf(step.Record{Status: step.Succeeded, StartedAt: afterNoon(1)}, func(d *step.Detail) { d.Shape.External = true }),
			"its executor has handed in none, or that was longer ago than output is kept",
		},
	} {
		if got := instanceLogOf(&step.Seen{Detail: tc.detail}); !strings.Contains(got.None, tc.want) || got.Text != "" || len(got.Notes) != 0 {
			t.Errorf("%s: %+v", tc.want, got)
		}
	}
}

func TestOutputSaysWhatItIsNot(t *testing.T) {
	const revision = 9
	last, now := store.FenceAt(5), store.FenceAt(revision)
	ended := step.Record{Status: step.Succeeded, Attempt: 1, StartedAt: afterNoon(1), EndedAt: afterNoon(2), EndFence: last}
	running := step.Record{Status: step.Running, Attempt: 2, EndFence: last}
	external := func(d *step.Detail) { d.Shape.External = true }
	for _, tc := range []struct {
		detail *step.Detail
		log    step.Log
		note   string
		notes  []string
		none   string
	}{
		{detailOf(ended), step.Log{Fence: last, Ended: true, Text: []byte("fine\n")}, "", nil, ""},
		{detailOf(ended), step.Log{Fence: last}, "", nil, "it has written nothing"},
		{
			detailOf(ended), step.Log{Fence: last, Ended: true, Text: []byte("end\n"), Before: 2048, Host: "one", File: "/kept\x1b[2J"},
			"", []string{"2 KiB before this are left out: all of it is on host 'one' for a day, in /kept^[[2J."}, "",
		},
		{detailOf(ended), step.Log{Fence: last - 1, Ended: true, Text: []byte("old\n")}, "this is of an earlier attempt", nil, ""},
		{detailOf(ended), step.Log{Fence: now, Text: []byte("lost\n")}, "this is of an attempt that was lost", nil, ""},
		{detailOf(running), step.Log{Fence: now, Text: []byte("one\n")}, "so far", nil, ""},
		{detailOf(running), step.Log{Fence: now}, "so far", nil, "it has written nothing"},
		{
			detailOf(running), step.Log{Fence: last, Ended: true, Text: []byte("old\n")},
			"this is of an earlier attempt", nil, "",
		},
		{
			detailOf(running, external), step.Log{Fence: last, Ended: true, Text: []byte("old\n")},
			"this is of an earlier attempt", nil, "",
		},
		{
			detailOf(step.Record{Status: step.Requested, Attempt: 1, EndFence: last}), step.Log{Fence: last, Ended: true, Text: []byte("fine\n")},
			"it is tried again", nil, "",
		},
	} {
		tc.detail.Revision = revision
		got := instanceLogOf(&step.Seen{Detail: tc.detail, Log: &tc.log})
		if d := cmp.Diff(tc.notes, got.Notes); d != "" || got.Note != tc.note || got.None != tc.none || got.Text != string(tc.log.Text) {
			t.Errorf("%s: %q, %q\n%s", tc.log.Text, got.Note, got.None, d)
		}
	}
	// The page says why the output so far is not shown.
	got := instanceLogOf(&step.Seen{Detail: detailOf(running), Unasked: errors.New("no\x1b")})
	if d := cmp.Diff([]string{"Its output so far can't be shown: no^[."}, got.Notes); d != "" || got.None == "" {
		t.Errorf("%q\n%s", got.None, d)
	}
}

func TestOutputLeadsToTheNeighbours(t *testing.T) {
	of := func(index int) [2]string {
		l := instanceLogOf(&step.Seen{Detail: detailOf(step.Record{Status: step.Requested}, func(d *step.Detail) { d.Index = index })})
		return [2]string{l.Previous, l.Next}
	}
	got := [][2]string{of(0), of(2), of(4)}
	want := [][2]string{
		{"", "/runs/r?index=1&step=x&tab=logs"},
		{"/runs/r?index=1&step=x&tab=logs", "/runs/r?index=3&step=x&tab=logs"},
		{"/runs/r?index=3&step=x&tab=logs", ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestOfManyStepsTheFirstAreToChooseFrom(t *testing.T) {
	var lines []string
	for _, name := range strings.Fields(strings.Repeat("s ", stepsChosen+3)) {
		lines = append(lines, name+strings.Repeat("x", len(lines)%50)+string(rune('a'+len(lines)/50))+":")
	}
	seen := seenOf(t, lines...)
	sum := &seen.overview.Steps[0]
	sum.Shape.Count, sum.Counts = 9, map[step.Status]int{step.Failed: 2, step.Requested: 7}
	tab := logChoices(seen, onTab("r", tabLogs).in(sum.Shape.Name))
	if len(tab.Steps) != stepsChosen || tab.More != 3 || tab.None != "" {
		t.Errorf("%d steps, %d more, %s", len(tab.Steps), tab.More, tab.None)
	}
	name := sum.Shape.Name
	want := logChoice{Name: name, Count: 9, Chosen: true, Counts: "2 failed, 7 requested", Href: "/runs/r?index=0&step=" + name + "&tab=logs", Failed: "/runs/r?status=failed&step=" + name + "&tab=steps"}
	if d := cmp.Diff(want, tab.Steps[0]); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}
