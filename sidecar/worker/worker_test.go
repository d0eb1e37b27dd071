package worker

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
)

var succeeded = step.Outcome{Status: step.Succeeded}

func TestAWorkerTakesAsManyAsItMayHave(t *testing.T) {
	for concurrency := 1; concurrency <= 2; concurrency++ {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			y, s := newYard(t), newStage()
			w := y.worker("a", "", concurrency, s)
			defer w.close(t)
			y.submit("r", fan("m", 3, 0))
			all := []string{"r/m/000000", "r/m/000001", "r/m/000002"}
			s.runs(t, all[:concurrency]...)
			if got := y.statuses("r", "m", 3); got[step.Running] != concurrency || got[step.Scheduled] != 3-concurrency {
				t.Errorf("%v", got)
			}
			// An end frees capacity for the next.
			s.end(all[0], succeeded)
			s.runs(t, all[1:concurrency+1]...)
			for _, id := range all[1:] {
				eventually(t, id+" runs", func() bool { return s.end(id, succeeded) })
			}
			y.is("r", run.Succeeded)
			if s.most > concurrency {
				t.Errorf("%d ran at a time", s.most)
			}
		})
	}
}

// A worker that has all it may have takes nothing, whatever is published.
func TestAWorkerAtItsCapacityTakesNothing(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	y.submit("other", fan("m", 1, 0))
	eventually(t, "it is published", func() bool { return y.status("other/m/000000") == step.Scheduled })
	for range 3 {
		w.nudge(t)
	}
	s.runs(t, "r/m/000000", "r/m/000001")
	if got := y.status("other/m/000000"); got != step.Scheduled {
		t.Errorf("the third is %s", got)
	}
	s.end("r/m/000001", succeeded)
	s.runs(t, "other/m/000000", "r/m/000000")
}

// nudge has the worker check everything again, and waits until it has.
func (c *crew) nudge(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	c.ask(t.Context(), func() { c.dirty = true })
	c.ask(t.Context(), func() { close(done) })
	<-done
}

func TestStoppingAWorkerCancelsWhatItHas(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 3, 0, func(s *step.Spec) { s.OnFailure = step.Finish }))
	s.runs(t, "r/m/000000", "r/m/000001")
	ended := w.Drain(t.Context())
	w.Stop(t.Context())
	<-ended
	if got := y.statuses("r", "m", 3); got[step.Canceled] != 2 || got[step.Scheduled] != 1 {
		t.Errorf("%v", got)
	}
	if w.Active() != 0 {
		t.Errorf("it has %d", w.Active())
	}
}

// A drain lets what runs end, and takes nothing more.
func TestADrainWaits(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000")
	ended := w.Drain(t.Context())
	s.end("r/m/000000", succeeded)
	<-ended
	if got := y.status("r/m/000001"); got != step.Scheduled {
		t.Errorf("the next is %s", got)
	}
	// Another worker takes it.
	other := y.worker("b", "", 1, s)
	defer other.close(t)
	s.runs(t, "r/m/000001")
}

// The next process of a worker finds what the one before has left, and starts nothing
// twice.
func TestARestartFindsWhatRuns(t *testing.T) {
	y, s, dir := newYard(t), newStage(), t.TempDir()
	first := y.worker("a", dir, 2, s)
	y.submit("r", fan("m", 3, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	first.leave()
	s.end("r/m/000001", step.Outcome{Status: step.Succeeded}) // while it is not followed
	s.jobs["r/m/000001"] = &job{s: s, name: "r/m/000001", done: closed, outcome: succeeded}
	next := y.worker("a", dir, 2, s)
	defer next.close(t)
	s.runsWith(t, "r/m/000000", "r/m/000002")
	if got := y.status("r/m/000001"); got != step.Succeeded {
		t.Errorf("what has ended meanwhile is %s", got)
	}
	s.end("r/m/000000", succeeded)
	s.end("r/m/000002", succeeded)
	y.is("r", run.Succeeded)
	slices.Sort(s.seen)
	if got := strings.Join(s.seen, " "); got != "r/m/000000 r/m/000001 r/m/000002" {
		t.Errorf("started were %s", got)
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// runsWith is runs, leaving out jobs that have ended.
func (s *stage) runsWith(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, "running are "+strings.Join(want, ", "), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, j := range s.jobs {
			if j.done != closed {
				n++
			}
		}
		for _, id := range want {
			if s.jobs[id] == nil {
				return false
			}
		}
		return n == len(want)
	})
}

func TestACanceledRunStopsWhatRuns(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 3, 2))
	s.runs(t, "r/m/000000", "r/m/000001")
	if _, err := y.runs.Cancel(t.Context(), "r", "no need", false); err != nil {
		t.Fatal(err)
	}
	s.runs(t)
	eventually(t, "both are canceled", func() bool { return y.statuses("r", "m", 3)[step.Canceled] == 2 })
}

// One instance that fails stops the others of its run.
func TestAFailureStopsTheRun(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 3, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	s.end("r/m/000000", step.Outcome{Status: step.Failed, ExitCode: 3, Error: "it has ended with exit code 3"})
	y.is("r", run.Failed)
	s.runs(t)
	eventually(t, "the other is canceled", func() bool { return y.status("r/m/000001") == step.Canceled })
	i, err := y.step.Get(t.Context(), idOf(t, "r/m/000000"))
	if err != nil || i.Status != step.Failed || i.ExitCode != 3 {
		t.Errorf("%+v, %v", i, err)
	}
}

// Steps over several workers never take more of a pool than it has, also across runs,
// and those that need none go on meanwhile.
func TestSlotsAreTakenWithInstances(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 2)
	for _, host := range []string{"a", "b"} {
		w := y.worker(host, "", 3, s)
		defer w.close(t)
	}
	db := func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }
	y.submit("one", fan("m", 3, 0, db), fan("free", 1, 0))
	y.submit("two", fan("m", 2, 0, db))
	eventually(t, "two have slots, and one needs none", func() bool {
		return len(s.running()) == 3 && strings.Contains(strings.Join(s.running(), " "), "one/free/000000")
	})
	for ended := 0; ended < 6; {
		for _, id := range s.running() {
			if s.end(id, succeeded) {
				ended++
			}
		}
		if n := y.claimed("db"); n > 2 {
			t.Fatalf("%d slots of 2 are claimed", n)
		}
	}
	y.is("one", run.Succeeded)
	y.is("two", run.Succeeded)
	eventually(t, "all slots are free", func() bool { return y.claimed("db") == 0 })
	if s.most > 3 {
		t.Errorf("%d ran at a time", s.most)
	}
}

func (y *yard) claimed(name string) int {
	y.t.Helper()
	all, err := list.Read(y.t.Context(), y.runs.Backend, y.runs.Keys)
	if err != nil {
		y.t.Fatal(err)
	}
	for _, p := range all.Pools() {
		if p.Name == name {
			return p.Claimed
		}
	}
	return 0
}

// A task's limit holds over runs and workers; it can be set, raised and removed while
// steps wait.
func TestATasksLimit(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool(step.TaskPool("resize"), 1)
	for _, host := range []string{"a", "b"} {
		w := y.worker(host, "", 4, s)
		defer w.close(t)
	}
	task := func(s *step.Spec) { s.Task.Name = "resize" }
	y.submit("one", fan("m", 3, 0, task))
	y.submit("two", fan("m", 3, 0, task))
	eventually(t, "one runs", func() bool { return len(s.running()) == 1 })
	y.pool(step.TaskPool("resize"), 3)
	eventually(t, "three run", func() bool { return len(s.running()) == 3 })
	if _, err := (registry.Registry{Backend: y.runs.Backend, Keys: y.runs.Keys}).Delete(t.Context(), step.TaskPool("resize"), nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return len(s.running()) == 6 })
	for _, id := range s.running() {
		s.end(id, succeeded)
	}
	y.is("one", run.Succeeded)
	y.is("two", run.Succeeded)
}

// Four workers, two windows, a cap: all ends, in order.
func TestManyWorkersShareARun(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	for _, host := range []string{"a", "b", "c", "d"} {
		w := y.worker(host, "", 3, s)
		defer w.close(t)
	}
	y.submit("r", fan("m", 60, 5), fan("n", 40, 7), fan("last", 0, 0, func(s *step.Spec) { s.Needs = []string{"m", "n"} }))
	y.is("r", run.Succeeded)
	started := map[string]int{}
	for _, id := range s.seen {
		started[id]++
	}
	if len(started) != 101 || len(s.seen) != 101 || s.seen[100] != "r/last/000000" {
		t.Errorf("%d of %d were started, the last is %s", len(started), len(s.seen), s.seen[len(s.seen)-1])
	}
}

func idOf(t *testing.T, text string) store.StepID {
	t.Helper()
	id, err := store.ParseStepID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAWorkerThatEndsWaitsForWhatItsTasksStart(t *testing.T) {
	for range 2000 {
		w := &Worker{calls: make(chan func(), 64), quiesced: make(chan struct{}, 1)}
		var left atomic.Int32
		var start func(more int)
		start = func(more int) {
			left.Add(1)
			w.async(func() {
				if more > 0 {
					w.post(func() { start(more - 1) })
				}
				left.Add(-1)
			})
		}
		for range 3 {
			start(3)
		}
		w.await()
		if n := left.Load(); n != 0 {
			t.Fatalf("%d tasks run on", n)
		}
	}
}
