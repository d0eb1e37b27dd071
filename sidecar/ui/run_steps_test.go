package ui

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// seenOf is a running run with steps of lines "name: needs", of which nothing was begun.
func seenOf(t *testing.T, lines ...string) *seenRun {
	t.Helper()
	var specs []step.Spec
	for _, line := range lines {
		name, needs, _ := strings.Cut(line, ":")
		specs = append(specs, step.Spec{Name: name, Needs: strings.Fields(needs), External: true})
	}
	g, err := step.NewGraph(specs)
	if err != nil {
		t.Fatal(err)
	}
	r := &run.Run{ID: "r", Record: run.Record{Status: run.Running, Spec: run.Spec{Steps: g.Total()}, QueuedAt: afterNoon(0), AdmittedAt: afterNoon(1), StartedAt: afterNoon(1)}}
	o := &step.Overview{Run: r}
	for _, sh := range g.Shapes() {
		s := step.Summary{Shape: sh, Counts: map[step.Status]int{step.Requested: sh.Count}}
		for _, n := range sh.Needs {
			s.Needs = append(s.Needs, g.Shapes()[n].Name)
		}
		o.Steps = append(o.Steps, s)
	}
	seen := &seenRun{run: r, why: &run.Why{Run: r}, overview: o}
	seen.among(step.Around{})
	return seen
}

// among has the waits of a run judged by what is around.
func (s *seenRun) among(a step.Around) { s.around, s.waits = a, s.overview.Waits(a) }

// afterNoon is a time, so many minutes after noon.
func afterNoon(n int) time.Time {
	return time.Date(2024, 5, 6, 12, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Minute)
}

// ended has a step of one instance end.
func (s *seenRun) ended(number int, status step.Status, from, to time.Time) {
	sum := &s.overview.Steps[number]
	sum.Counts, sum.StartedAt, sum.EndedAt = map[step.Status]int{status: sum.Shape.Count}, from, to
}

// Whatever the graph and whichever page: the pages together show each step once, each
// behind the step that it stands below.
func TestPagesOfTheTreeLoseNoStepAndDoubleNone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 3*stepsShown).Draw(rt, "steps")
		var lines []string
		for i := range n {
			line := fmt.Sprintf("s%d:", i)
			if i > 0 && rapid.Bool().Draw(rt, "needs one") {
				line += fmt.Sprintf(" s%d", rapid.IntRange(0, i-1).Draw(rt, "which"))
			}
			lines = append(lines, line)
		}
		seen := seenOf(t, lines...)
		shown := map[string]bool{}
		q := onTab("r", tabSteps)
		for pages := 0; ; pages++ {
			if pages > n {
				rt.Fatal("the pages come to no end")
			}
			tab := stepsTabOf(seen, nil, q)
			if len(tab.Rows) > stepsShown {
				rt.Fatalf("%d steps on a page", len(tab.Rows))
			}
			for _, row := range tab.Rows {
				if shown[row.Name] || row.Below != "" && !shown[row.Below] || row.Deep > deepest {
					rt.Fatalf("%+v after %v", row, shown)
				}
				shown[row.Name] = true
			}
			if tab.Pages.Next == "" {
				break
			}
			q = hrefQuery(rt, tab.Pages.Next)
		}
		if len(shown) != n {
			rt.Fatalf("%d of %d steps are shown", len(shown), n)
		}
	})
}

// hrefQuery reads a link of ours.
func hrefQuery(t interface{ Fatalf(string, ...any) }, href string) runQuery {
	q, err := parseRunHref(href)
	if err != nil {
		t.Fatalf("%s: %v", href, err)
	}
	return q
}

func TestAnExpandedStepIsOnThePageThatIsShown(t *testing.T) {
	var lines []string
	for i := range 2*stepsShown + 10 {
		lines = append(lines, fmt.Sprintf("s%d:", i))
	}
	seen := seenOf(t, lines...)
	name := fmt.Sprintf("s%d", stepsShown+7)
	tab := stepsTabOf(seen, &step.Instances{}, onTab("r", tabSteps).in(name))
	if href := tab.Rows[0].Href; !strings.Contains(href, "from=100&") || strings.Contains(tab.Rows[7].Href, "step=") {
		t.Errorf("its page is left: %s, %s", href, tab.Rows[7].Href)
	}
	at := slices.IndexFunc(tab.Rows, func(r stepRow) bool { return r.Open != nil })
	if at < 0 || tab.Rows[at].Name != name || tab.Pages.First != stepsShown+1 || tab.Pages.Of != len(lines) || tab.Pages.Previous == "" {
		t.Errorf("%d: %+v", at, tab.Pages)
	}
	// A place behind the last shows the last page.
	far := onTab("r", tabSteps)
	far.from = 100_000
	if got := stepsTabOf(seen, nil, far); len(got.Rows) != 10 || got.Pages.Next != "" {
		t.Errorf("%d rows, %+v", len(got.Rows), got.Pages)
	}
}

// Whatever the counts: the bar shows each status that there is, is within its width, and
// is full only if nothing is left.
func TestABarNeverLies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts, total := map[step.Status]int{}, 0
		for _, s := range step.Statuses {
			counts[s] = rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 5), rapid.IntRange(1, 100_000)).Draw(t, string(s))
			total += counts[s]
		}
		if total == 0 {
			t.Skip("there is no step without instances")
		}
		p := progressOf(counts, total)
		at, seen := 0, map[step.Status]bool{}
		for _, part := range p.Parts {
			if part.X != at || part.Width < 1 {
				t.Fatalf("%+v", p.Parts)
			}
			at += part.Width
			seen[part.Status] = true
		}
		if full := counts[step.Requested] == 0; at > barWidth || full != (at == barWidth) {
			t.Fatalf("%v: %+v come to %d", counts, p.Parts, at)
		}
		for _, s := range barOrder {
			if seen[s] != (counts[s] > 0) {
				t.Fatalf("%v: %+v shows %s wrongly", counts, p.Parts, s)
			}
		}
		if (p.Percent() == 100) != (p.Ended == total) {
			t.Fatalf("%d %% of %+v", p.Percent(), counts)
		}
	})
}

func TestAnExpandedStepLeadsToAllOfItsInstances(t *testing.T) {
	seen := seenOf(t, "x:")
	sum := &seen.overview.Steps[0]
	sum.Shape.Count, sum.Counts = 10_000, map[step.Status]int{step.Succeeded: 9_990, step.Failed: 10}
	seen.run.Steps = 10_000
	q := onTab("r", tabSteps).in("x")
	q.status, q.after = step.Failed, 99
	list := &step.Instances{Next: 4000, Bad: []error{errors.New("key\u202e")}, Items: []*step.Instance{{
		StepID: store.StepID{Run: "r", Step: "x", Index: 100}, Record: step.Record{
			Status: step.Failed, Attempt: 3, Executor: &run.Executor{Host: "one", Instance: "worker"},
			StartedAt: afterNoon(1), EndedAt: afterNoon(3), ExitCode: 7, Error: "<b>no</b>\nsecond line\x1b[31m",
		},
	}}}
	open := stepsTabOf(seen, list, q).Rows[0].Open
	want := &openStep{
		Name: "x", All: "/runs/r?step=x&tab=steps", First: "/runs/r?status=failed&step=x&tab=steps", Next: "/runs/r?after=3999&status=failed&step=x&tab=steps",
		After: 99, Last: 9_999, Status: step.Failed, BadCount: 1, Bad: []string{`key\u202e`},
		Chips: []statusChip{{step.Succeeded, 9_990, "/runs/r?status=succeeded&step=x&tab=steps", false}, {step.Failed, 10, "/runs/r?status=failed&step=x&tab=steps", true}},
		Rows: []instanceRow{{
			Run: "r", Step: "x", Index: 100, Status: step.Failed, Attempt: 3, Host: "one", StartedAt: afterNoon(1), Took: "2m", ExitCode: 7, HasExit: true,
			Error: "<b>no</b>\nsecond line^[[31m", Brief: "<b>no</b>\nsecond line^[[31m", Log: "/runs/r?index=100&step=x&tab=logs",
		}},
	}
	if d := cmp.Diff(want, open); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for _, tc := range []struct {
		status step.Status
		after  int
		want   string
	}{
		{step.Running, -1, "No instance is running."},
		{step.Failed, 8000, "No instance after 8000 is failed."},
		{"", 20_000, "There is no instance after 20000: the last is 9999."},
	} {
		q.status, q.after = tc.status, tc.after
		if got := openStepOf(seen, 0, &step.Instances{}, q).None; got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestARunningInstanceHasNoDurationYet(t *testing.T) {
	row := instanceRowOf(&step.Instance{Record: step.Record{Status: step.Running, Attempt: 2, StartedAt: afterNoon(1)}})
	if row.Took != "" || row.HasExit || row.Host != "" {
		t.Errorf("%+v", row)
	}
}

func TestWhereThereAreNoStepsItIsSaidWhy(t *testing.T) {
	for _, tc := range []struct {
		record run.Record
		want   string
	}{
		{run.Record{Status: run.Running}, "It has no steps: its executor runs it as a whole."},
		{run.Record{Status: run.Storing, Spec: run.Spec{Steps: 12}}, "The steps are being written: 12 instances in all. They can be seen once the run is queued."},
		{run.Record{Status: run.Running, Spec: run.Spec{Steps: 1}}, "The steps can't be read."},
	} {
		seen := &seenRun{run: &run.Run{Record: tc.record}}
		if got := stepsTabOf(seen, nil, onTab("r", tabSteps)); got.None != tc.want || len(got.Rows) != 0 {
			t.Errorf("%+v, want %s", got, tc.want)
		}
		if got := logChoices(seen, onTab("r", tabLogs)); got.None == "" || len(got.Steps) != 0 {
			t.Errorf("%+v", got)
		}
	}
}
