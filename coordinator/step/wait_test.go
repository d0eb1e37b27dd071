package step

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

func space(all ...pool.Status) *pool.Space { return pool.NewSpace(all...) }

func limited(name string, limit, claimed int) pool.Status {
	return pool.Status{Name: name, Spec: pool.Spec{Limit: limit}, Claimed: claimed}
}

func TestWhatIsScheduledWaitsForSlotsOrForAWorker(t *testing.T) {
	two := []Worker{{Queues: []string{DefaultQueue, "gpu"}, Capacity: 4, Active: 1}, {Queues: []string{DefaultQueue}, Capacity: 2, Active: 2}}
	paused := limited("db", 3, 1)
	paused.Paused = true
	for name, c := range map[string]struct {
		shape  Shape
		around Around
		want   Wait
	}{
		"a full pool": {
			Shape{Pools: map[string]int{"db": 1}}, Around{Space: space(limited("db", 3, 3)), Workers: two},
			Wait{Kind: WaitPool, Text: "pool 'db' full (3/3 slots)"},
		},
		"a pool that has too little": {
			Shape{Pools: map[string]int{"db": 2}}, Around{Space: space(limited("db", 3, 2)), Workers: two},
			Wait{Kind: WaitPool, Text: "pool 'db' has too few free slots (2/3 slots, 2 wanted)"},
		},
		"two pools": {
			Shape{Pools: map[string]int{"db": 1, "gpu": 1}}, Around{Space: space(limited("db", 1, 1), limited("gpu", 2, 2)), Workers: two},
			Wait{Kind: WaitPool, Text: "pools full: 'db' (1/1 slots), 'gpu' (2/2 slots)"},
		},
		"a paused pool": {
			Shape{Pools: map[string]int{"db": 1}}, Around{Space: space(paused), Workers: two},
			Wait{Kind: WaitPool, Text: "pool 'db' is paused"},
		},
		"a pool that was deleted": {
			Shape{Pools: map[string]int{"db": 1}}, Around{Space: space(), Workers: two},
			Wait{Kind: WaitPool, Text: "pool 'db' does not exist"},
		},
		"a closed task": {
			Shape{Task: "z"}, Around{Space: space(limited("task.z", 0, 0)), Workers: two},
			Wait{Kind: WaitPool, Text: "pool 'task.z' is closed"},
		},
		"a task without a limit": {
			Shape{Task: "z"}, Around{Space: space(), Workers: two},
			Wait{Kind: WaitWorker, Text: "the 2 workers of queue 'default' can take it (3/6 in progress)", Soon: true},
		},
		"pools that were not read": {
			Shape{Pools: map[string]int{"db": 1}, Task: "z"}, Around{Workers: two},
			Wait{Kind: WaitWorker, Text: "the 2 workers of queue 'default' can take it (3/6 in progress)", Soon: true},
		},
		"workers that have enough": {
			Shape{}, Around{Workers: two[1:]},
			Wait{Kind: WaitWorker, Text: "the worker of queue 'default' can take no more (2/2 in progress)"},
		},
		"no worker at all": {
			Shape{}, Around{}, Wait{Kind: WaitNoWorker, Text: "no worker is running: start 'berth worker'"},
		},
		"no worker at all, for another queue": {
			Shape{Queue: "gpu"}, Around{}, Wait{Kind: WaitNoWorker, Text: "no worker is running: start 'berth worker --queue gpu'"},
		},
		"no worker of its queue": {
			Shape{Queue: "gpu"}, Around{Workers: two[1:]},
			Wait{Kind: WaitNoWorker, Text: "no worker takes from queue 'gpu': start 'berth worker --queue gpu'"},
		},
		"neither slots nor a worker": {
			Shape{Queue: "gpu", Task: "z"}, Around{Space: space(limited("task.z", 1, 1)), Workers: two[1:]},
			Wait{Kind: WaitNoWorker, Text: "pool 'task.z' full (1/1 slots); and no worker takes from queue 'gpu': start 'berth worker --queue gpu'"},
		},
		"a worker that does not say what it takes from": {
			Shape{Queue: "cpu"}, Around{Workers: []Worker{{Capacity: 1}}},
			Wait{Kind: WaitWorker, Text: "the worker of queue 'cpu' can take it (0/1 in progress)", Soon: true},
		},
		"a worker that can't be read": {
			Shape{}, Around{Blind: true},
			Wait{Kind: WaitWorker, Text: "a worker has to take it from queue 'default', and some workers cannot be read"},
		},
		"an executor": {
			Shape{External: true}, Around{},
			Wait{Kind: WaitExecutor, Text: "no executor has taken it from queue 'default' over HTTP yet"},
		},
		"slots before an executor": {
			Shape{External: true, Pools: map[string]int{"db": 1}}, Around{Space: space(limited("db", 2, 2))},
			Wait{Kind: WaitPool, Text: "pool 'db' full (2/2 slots)"},
		},
	} {
		if c.shape.Queue == "" {
			c.shape.Queue = DefaultQueue
		}
		pools := maps.Clone(c.shape.Pools)
		if d := cmp.Diff(c.want, c.shape.Wait(c.around)); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
		if d := cmp.Diff(pools, c.shape.Pools); d != "" {
			t.Errorf("%s: the shape has changed:\n%s", name, d)
		}
	}
}

// standing makes a summary of counts: REQUESTED, SCHEDULED, RUNNING, SUCCEEDED, FAILED.
func standing(name string, needs []int, counts ...int) Summary {
	s := Summary{Shape: Shape{Name: name, Queue: DefaultQueue, Needs: needs}, Counts: map[Status]int{}}
	for i, n := range counts {
		if n > 0 {
			s.Counts[Statuses[i]] = n
			s.Shape.Count += n
		}
	}
	for _, need := range needs {
		s.Needs = append(s.Needs, string(rune('a'+need)))
	}
	if s.Counts[Requested]+s.Counts[Scheduled]+s.Counts[Running] == 0 {
		s.EndedAt = time.Unix(1, 0)
	}
	return s
}

func TestWhatIsRequestedWaitsForItsTurn(t *testing.T) {
	window := func(s Summary, n int) Summary { s.Shape.Concurrency = n; return s }
	for name, c := range map[string]struct {
		status run.Status
		most   int // max_concurrent_steps
		steps  []Summary
		around Around
		want   string // of the last step
		soon   bool
	}{
		"its run":          {status: run.Queued, steps: []Summary{standing("a", nil, 1)}, want: "run: its run is queued"},
		"what it needs":    {steps: []Summary{standing("a", nil, 0, 0, 1), standing("b", nil, 1), standing("c", []int{0, 1}, 2)}, want: "needs: it needs a, b"},
		"one of them":      {steps: []Summary{standing("a", nil, 0, 0, 0, 1), standing("b", nil, 1), standing("c", []int{0, 1}, 2)}, want: "needs: it needs b"},
		"in vain":          {steps: []Summary{standing("a", nil, 0, 0, 0, 1, 1), standing("b", []int{0}, 1)}, want: "never: it never runs: not all of a has succeeded"},
		"a window":         {steps: []Summary{window(standing("a", nil, 5, 0, 3), 3)}, want: "window: the window of its step is full (3/3 in flight)"},
		"the run's":        {most: 4, steps: []Summary{standing("b", nil, 0, 1, 3), standing("a", nil, 5)}, want: "run_window: the window of its run is full (4/4 in flight)"},
		"without a leader": {steps: []Summary{standing("a", nil, 1)}, around: Around{Leaderless: true}, want: "coordinator: no coordinator is running, so nothing is published"},
		"a moment":         {steps: []Summary{window(standing("a", nil, 1, 0, 1), 2)}, want: "coordinator: it is about to be published", soon: true},
		"nothing":          {steps: []Summary{standing("a", nil, 0, 0, 1, 1)}},
		"an ended run":     {status: run.Failed, steps: []Summary{standing("a", nil, 1, 1)}},
		"scheduled ones":   {steps: []Summary{window(standing("a", nil, 4, 1, 0), 1)}, want: "no_worker: no worker is running: start 'berth worker'"},
	} {
		if c.status == "" {
			c.status = run.Running
		}
		o := &Overview{Run: &run.Run{Record: run.Record{Status: c.status, Spec: run.Spec{MaxConcurrentSteps: c.most}}}, Steps: c.steps}
		w, got, soon := o.Wait(len(c.steps)-1, c.around), "", false
		if w != nil {
			got, soon = string(w.Kind)+": "+w.Text, w.Soon
		}
		if got != c.want || soon != c.soon {
			t.Errorf("%s: %q (soon: %v), want %q", name, got, soon, c.want)
		}
	}
}

func TestAnInstanceThatIsTriedAgainWaitsForItsPause(t *testing.T) {
	o := &Overview{Run: &run.Run{Record: run.Record{Status: run.Running}}, Steps: []Summary{standing("a", nil, 2)}}
	for _, c := range []struct {
		rec  Record
		want string
	}{
		{Record{Status: Requested, Attempt: 1, Pause: 30 * time.Second}, "it is retried 30s after the end of its last attempt"},
		{Record{Status: Requested}, "it is about to be published"},
		{Record{Status: Scheduled}, "no worker is running: start 'berth worker'"},
		{Record{Status: Running}, ""},
		{Record{Status: Failed}, ""},
	} {
		got := ""
		if w := o.WaitOf(0, &Instance{Record: c.rec}, Around{}); w != nil {
			got = w.Text
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.rec.Status, got, c.want)
		}
	}
}

// Instances with one reason are reported together; a reason that no time cures comes first,
// and what the run's own order and windows hold back is not among them.
func TestHoldsAreTheReasonsThatAreNoneOfTheRun(t *testing.T) {
	at := func(s Summary, queue, task string) Summary { s.Shape.Queue, s.Shape.Task = queue, task; return s }
	o := &Overview{Run: &run.Run{Record: run.Record{Status: run.Running}}, Steps: []Summary{
		at(standing("a", nil, 1, 2), DefaultQueue, "z"), at(standing("b", nil, 0, 3), "gpu", ""),
		at(standing("c", nil, 0, 4), DefaultQueue, "z"), standing("d", []int{0}, 5), standing("e", nil, 0, 1), standing("f", nil, 9),
	}}
	a := Around{Space: space(limited("task.z", 0, 0)), Workers: []Worker{{Queues: []string{DefaultQueue}, Capacity: 1}}}
	var got []string
	for _, h := range o.Holds(o.Waits(a)) {
		got = append(got, string(h.Kind)+" "+string(rune('0'+h.Count))+" "+h.String())
	}
	want := []string{
		"no_worker 3 b: no worker takes from queue 'gpu': start 'berth worker --queue gpu'",
		"pool 6 a, c: pool 'task.z' is closed",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestNamesAreNotTooMany(t *testing.T) {
	if got := names(strings.Split("a b c d e f g h i j k l", " ")); got != "a, b, c, d, e, f, g, h, i, j and 2 more" {
		t.Error(got)
	}
}
