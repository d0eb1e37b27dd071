package ui_test

import (
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// seesWorker has a worker seen that takes from some queues, and takes nothing, until the
// test ends.
func (d *runSite) seesWorker(host string, capacity int, queues ...string) {
	d.t.Helper()
	c, err := instance.Open(d.t.Context(), instance.Options{
		Endpoints: []string{d.etcd.Endpoint()}, Host: host, Instance: "worker", Role: "worker", Capacity: capacity, Queues: queues,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Leave() })
}

// saysOf is what the row of a step says in its progress.
func (d *document) saysOf(name string) string { return d.line("step-" + name)[1] }

// What steps wait for is shown in the words of the commands, and kept new.
func TestThePageOfARunTellsWhatItsStepsWaitFor(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	stop := d.leads("lead")
	d.pool("db", 0)
	d.pool("task.z", 1)
	d.submit(api.RunRequest{ID: "w", MaxConcurrentSteps: 7, Steps: api.RunSteps{
		{Name: "load", Command: []string{"true"}, Items: items(5), Concurrency: 2, Pools: api.Slots{"db": 1}},
		{Name: "gpu", Command: []string{"true"}, Queue: "gpu"},
		{Name: "busy", Command: []string{"true"}, Items: items(3)},
		{Name: "outside", External: true},
		{Name: "late", Command: []string{"true"}, Items: items(4), Task: step.Task{Name: "z"}},
		{Name: "then", Command: []string{"true"}, Needs: []string{"gpu"}},
	}})
	page := d.until("/runs/w", "it is known that there is no worker", func(p *document) bool {
		return strings.Contains(text(p.root), "load: pool 'db' is closed; and no worker is running") && strings.Contains(text(p.root), "4 wait: the window of its run is full (7/7 in flight)")
	})
	page.says("load: pool 'db' is closed; and no worker is running: start 'berth worker'")
	for name, want := range map[string]string{
		"load": "0/5 2 wait: pool 'db' is closed; and no worker is running: start 'berth worker'",
		"gpu":  "0/1 waits: no worker is running: start 'berth worker --queue gpu'",
		"then": "0/1 waits: it needs gpu",
	} {
		if got := page.saysOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}

	s := d.stream("/runs/w?step=load")
	first := s.main()
	if got, want := text(first.must("open-load")), "2 scheduled: pool 'db' is closed; and no worker is running: start 'berth worker' 3 requested: the window of its step is full (2/2 in flight)"; !strings.Contains(got, want) {
		t.Errorf("%q does not say %q", got, want)
	}
	d.seesWorker("two", 1, step.DefaultQueue)
	busy := d.takes(store.StepID{Run: "w", Step: "busy"})
	for {
		now := s.main()
		// The steps and the workers are read one after the other, and may be of different moments.
		if got := now.saysOf("busy"); !strings.Contains(got, "2 wait") || !strings.Contains(got, "(1/1 in progress)") {
			continue
		}
		for name, want := range map[string]string{
			"load":    "0/5 2 wait: pool 'db' is closed",
			"gpu":     "0/1 waits: no worker takes from queue 'gpu': start 'berth worker --queue gpu'",
			"busy":    "0/3 2 wait: the worker of queue 'default' can take no more (1/1 in progress)",
			"outside": "0/1 waits: no executor has taken it from queue 'default' over HTTP yet",
		} {
			if got := now.saysOf(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		now.says("gpu: no worker takes from queue 'gpu': start 'berth worker --queue gpu'")
		break
	}
	d.page("/runs/w?tab=logs&step=load&index=1").says("• scheduled : pool 'db' is closed", "No output: it has not started.")
	d.page("/runs/w?tab=logs&step=then&index=0").says("◷ requested : it needs gpu")
	d.page("/runs/w?tab=timeline").says("gpu: no worker", "waits: it needs gpu")

	// No coordinator leads any more, so nothing is published.
	stop()
	d.ends(busy, step.Outcome{Status: step.Succeeded})
	d.until("/runs/w", "no coordinator is running", func(p *document) bool {
		return strings.HasSuffix(p.saysOf("late"), "wait: no coordinator is running, so nothing is published")
	}).says("late: no coordinator is running, so nothing is published")

	// One that has ended waits for nothing.
	if _, err := d.store.Cancel(t.Context(), "w", "", false); err != nil {
		t.Fatal(err)
	}
	page = d.until("/runs/w?step=load", "it is canceled", func(p *document) bool { return strings.Contains(text(p.must("run-status")), "canceled") })
	if got := page.saysOf("load"); got != "5/5" || strings.Contains(text(page.root), "wait") {
		t.Errorf("%s: %s", got, text(page.root))
	}
}
