package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// counts are of a step by status: REQUESTED, SCHEDULED, RUNNING, SUCCEEDED, FAILED.
func counts(s *step.Summary, numbers ...int) {
	s.Counts, s.Shape.Count, s.EndedAt = map[step.Status]int{}, 0, time.Time{}
	for i, n := range numbers {
		s.Counts[step.Statuses[i]] = n
		s.Shape.Count += n
	}
	if s.Counts[step.Requested]+s.Counts[step.Scheduled]+s.Counts[step.Running] == 0 {
		s.EndedAt = afterNoon(1)
	}
}

func TestAStepSaysWhatItWaitsFor(t *testing.T) {
	full := step.Around{
		Space:   pool.NewSpace(pool.Status{Name: "db", Spec: pool.Spec{Limit: 3}, Claimed: 3}),
		Workers: []step.Worker{{Queues: []string{step.DefaultQueue}, Capacity: 4, Active: 1}},
	}
	for name, tc := range map[string]struct {
		status  run.Status
		a, b, c []int // counts
		window  int   // of c, which needs a and b
		pools   map[string]int
		worker  bool // it is for one
		around  step.Around
		want    saying
	}{
		"what it needs":         {a: []int{1}, b: []int{0, 1}, c: []int{5}, want: saying{Text: "5 wait: it needs a, b"}},
		"one of them":           {a: []int{0, 0, 0, 1}, b: []int{0, 1}, c: []int{5}, want: saying{Text: "5 wait: it needs b"}},
		"in vain":               {a: []int{0, 0, 0, 1}, b: []int{0, 0, 0, 0, 1}, c: []int{5}, want: saying{Text: "it never runs: not all of b has succeeded"}},
		"needs of a queued run": {status: run.Queued, a: []int{1}, b: []int{0, 0, 0, 1}, c: []int{5}, want: saying{Text: "5 wait: its run is queued"}},
		"its run":               {status: run.Queued, a: []int{0, 0, 0, 1}, b: []int{0, 0, 0, 1}, c: []int{5}, want: saying{Text: "5 wait: its run is queued"}},
		"a run that has ended":  {status: run.Canceled, a: []int{1}, b: []int{1}, c: []int{5}},
		"nothing":               {c: []int{0, 0, 1, 1}},
		"a window":              {c: []int{4000, 0, 3}, window: 3, want: saying{Text: "4,000 wait: the window of its step is full (3/3 in flight)"}},
		"a full pool":           {c: []int{4, 2, 3}, pools: map[string]int{"db": 1}, worker: true, around: full, want: saying{Text: "2 wait: pool 'db' full (3/3 slots)"}},
		"one of several":        {c: []int{0, 1, 3}, pools: map[string]int{"db": 1}, worker: true, around: full, want: saying{Text: "1 waits: pool 'db' full (3/3 slots)"}},
		"the only one":          {c: []int{0, 1}, worker: true, want: saying{Text: "waits: no worker is running: start 'berth worker'"}},
		"an external executor":  {c: []int{0, 1}, want: saying{Text: "waits: no executor has taken it from queue 'default' over HTTP yet"}},
		"nothing in the way":    {c: []int{0, 1}, worker: true, around: full, want: saying{Text: "waits: the worker of queue 'default' can take it (1/4 in progress)", Soon: true}},
		"no coordinator":        {c: []int{2, 0, 1}, around: step.Around{Leaderless: true}, want: saying{Text: "2 wait: no coordinator is running, so nothing is published"}},
	} {
		seen := seenOf(t, "a:", "b:", "c: a b")
		if tc.status != "" {
			seen.run.Status = tc.status
		}
		for n, c := range [][]int{tc.a, tc.b, tc.c} {
			if c == nil {
				c = []int{0, 0, 0, 1}
			}
			counts(&seen.overview.Steps[n], c...)
		}
		c := &seen.overview.Steps[2].Shape
		c.Concurrency, c.Pools, c.External = tc.window, tc.pools, !tc.worker
		seen.among(tc.around)
		if d := cmp.Diff(tc.want, saysOf(seen, 2)); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
	if got, want := fewNames(strings.Fields("a b c d e f g h i j k l")), "a, b, c, d, e, f, g, h, i, j, 2 more"; got != want {
		t.Errorf("%s", got)
	}
}

// Of an expanded step it is shown by status, and of an instance only what is its own.
func TestAnExpandedStepTellsWhatItsInstancesWaitFor(t *testing.T) {
	seen := seenOf(t, "x:", "y: x")
	x := &seen.overview.Steps[0]
	counts(x, 1500, 2)
	x.Shape.Concurrency = 2
	seen.among(step.Around{})
	instance := func(index int, rec step.Record) *step.Instance {
		return &step.Instance{StepID: store.StepID{Run: "r", Step: "x", Index: index}, Record: rec}
	}
	again := instance(7, step.Record{Status: step.Requested, Attempt: 1, Pause: 30 * time.Second})
	list := &step.Instances{Items: []*step.Instance{instance(0, step.Record{Status: step.Scheduled}), again}}
	open := openStepOf(seen, 0, list, onTab("r", tabSteps).in("x"))
	want := []string{"2 scheduled: no executor has taken it from queue 'default' over HTTP yet", "1,500 requested: the window of its step is full (2/2 in flight)"}
	if d := cmp.Diff(want, open.Waits); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got, want := open.Rows[1].Waits, "it is retried 30s after the end of its last attempt"; open.Rows[0].Waits != "" || got != want {
		t.Errorf("%q, %q", open.Rows[0].Waits, got)
	}
	if got := openStepOf(seen, 1, list, onTab("r", tabSteps).in("y")).Waits; got != nil {
		t.Errorf("what it needs is shown by the tree: %q", got)
	}
	// Next to its output an instance has all of it, if what is around was read for it.
	for text, i := range map[string]*step.Instance{
		"no executor has taken it from queue 'default' over HTTP yet": list.Items[0],
		"it is retried 30s after the end of its last attempt":         again,
		"": instance(1, step.Record{Status: step.Running}),
	} {
		if got := waitOf(seen, i); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	counts(x, 1502)
	if got := waitOf(seen, list.Items[0]); got != "" {
		t.Errorf("it was let go since: %s", got)
	}
}

// The reason of a run names what its steps wait for, on all tabs.
func TestTheHeadSaysWhatStepsWaitFor(t *testing.T) {
	seen := seenOf(t, "a:", "b:", "c:", "d:", "e:", "f:")
	for n := range seen.overview.Steps {
		counts(&seen.overview.Steps[n], 0, 2)
		seen.overview.Steps[n].Shape.External = false
		seen.overview.Steps[n].Shape.Queue = fmt.Sprintf("q%d", max(1, n))
	}
	seen.overview.Steps[5].Shape.Queue, seen.overview.Steps[5].Shape.Pools = step.DefaultQueue, map[string]int{"db": 1}
	seen.among(step.Around{
		Workers: []step.Worker{{Queues: []string{step.DefaultQueue}, Capacity: 1}},
		Space:   pool.NewSpace(pool.Status{Name: "db", Spec: pool.Spec{Limit: 1}, Claimed: 1}),
	})
	const want = "; waiting: a, b: no worker takes from queue 'q1': start 'berth worker --queue q1'" +
		"; c: no worker takes from queue 'q2': start 'berth worker --queue q2'" +
		"; d: no worker takes from queue 'q3': start 'berth worker --queue q3'; and "
	if got := headOf(seen).Reason; !strings.Contains(got, want) {
		t.Errorf("the reason is %q", got)
	}
}
