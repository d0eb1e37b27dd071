package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/testlog"
)

// forge publishes the first instance of step m of a run, as any etcd user can who may write what
// a worker may: its record, and a key in the queue of another worker.
func (y *yard) forge(ready step.Ready) {
	y.t.Helper()
	ready.Step, ready.ScheduledAt = "m", time.Now()
	id := store.StepID{Run: ready.Run, Step: "m"}
	rec := step.Record{Status: step.Scheduled, ScheduledAt: ready.ScheduledAt}
	key := y.runs.Keys.Ready(step.DefaultQueue) + step.OrderOf(ready.Priority, 1, 0, 0, ready.Run)
	if there, err := store.ReadAll(y.t.Context(), y.runs.Backend, y.runs.Keys.Ready(step.DefaultQueue)); err == nil && len(there.KVs) > 0 {
		key = string(there.KVs[0].Key) // instead of the one that the coordinator has published
	}
	if _, err := store.Commit(y.t.Context(), y.runs.Backend, nil,
		store.Put(y.runs.Keys.Step(id), rec.Encode(), 0), store.Put(key, ready.Encode(), 0)); err != nil {
		y.t.Fatal(err)
	}
}

// The etcd users of all workers can write what is published. What they forge is not run, is
// logged, and holds up nothing else.
func TestAForgedPublicationIsNotRun(t *testing.T) {
	far := func(s *step.Spec) { s.Queue = "far" }
	alice := "user:alice"
	for name, c := range map[string]struct {
		by    string
		spec  []func(*step.Spec)
		forge step.Ready
		why   string
		// ended is set for a run that has ended before, and missing for one that does not exist.
		ended, missing bool
		here           bool // it was submitted to the worker's queue
	}{
		"its submitter":              {by: "bob", spec: []func(*step.Spec){far}, forge: step.Ready{SubmittedBy: alice}, why: "it was submitted by user:bob, not by user:alice"},
		"its queue":                  {by: "alice", spec: []func(*step.Spec){far}, forge: step.Ready{SubmittedBy: alice}, why: "its queue is 'far', not 'default'"},
		"its queue and no submitter": {by: "bob", spec: []func(*step.Spec){far}, forge: step.Ready{}, why: "does not name the submitter of its run"},
		"its priority":               {by: "alice", spec: []func(*step.Spec){far}, forge: step.Ready{SubmittedBy: alice, Priority: 900}, why: "its priority is 0, not 900"},
		"its slots":                  {by: "alice", spec: []func(*step.Spec){from("full", 1)}, forge: step.Ready{SubmittedBy: alice}, why: "its pools are full=1, not", here: true},
		"its other slots":            {by: "alice", spec: []func(*step.Spec){from("full", 1)}, forge: step.Ready{SubmittedBy: alice, Pools: map[string]int{"free": 1}}, why: "its pools are full=1, not free=1", here: true},
		"its executor":               {by: "alice", spec: []func(*step.Spec){far, func(s *step.Spec) { s.External, s.Command = true, nil }}, forge: step.Ready{SubmittedBy: alice}, why: "external is true, not false"},
		"a run that has ended":       {by: "alice", forge: step.Ready{SubmittedBy: alice}, why: "the run is succeeded", ended: true},
		"a run that does not exist":  {forge: step.Ready{SubmittedBy: alice}, why: "there is no such run", missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			y, s, log := newYard(t), newStage(), testlog.New(t)
			s.auto = true
			y.pool("full", 0)
			y.pool("free", 1)
			y.from, y.log = access.Patterns{alice}, hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error})
			w := y.worker("a", "", 1, s)
			defer w.close(t)
			switch {
			case c.ended:
				y.submitAs(c.by, "victim", fan("m", 0, 0, c.spec...))
				y.is("victim", run.Succeeded)
			case !c.missing:
				y.submitAs(c.by, "victim", fan("m", 0, 0, c.spec...))
				y.published("victim/m/000000")
			}
			before := strings.Join(s.seen, " ")
			c.forge.Run = "victim"
			y.forge(c.forge)
			eventually(t, "the worker logs it", func() bool {
				return len(log.Lines("another user of etcd", c.why)) > 0 || c.ended && y.status("victim/m/000000") == step.Canceled // the coordinator was faster
			})
			y.submitAs("alice", "after", fan("m", 2, 0))
			y.is("after", run.Succeeded)
			if got, want := strings.Join(s.seen, " "), strings.TrimSpace(before+" after/m/000000 after/m/000001"); got != want {
				t.Errorf("started were %s, want %s", got, want)
			}
			if !c.ended && !c.missing && c.forge.SubmittedBy != "" {
				// The coordinator publishes it where it was submitted to.
				y.published("victim/m/000000")
			}
			if !c.ended && !c.missing && !c.here {
				eventually(t, "it is in its queue", func() bool {
					s, err := store.ReadAll(t.Context(), y.runs.Backend, y.runs.Keys.Ready("far"))
					return err == nil && len(s.KVs) == 1
				})
			}
		})
	}
}
