package worker

import (
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// mode asks worker a/worker for a mode.
func (y *yard) mode(m step.WorkerMode) {
	y.t.Helper()
	state := step.WorkerState{Mode: m, At: time.Now(), By: "ann"}
	if _, changed, err := y.step.SetWorkerMode(y.t.Context(), step.WorkerID{"a", "worker"}, state); err != nil || !changed {
		y.t.Fatal(changed, err)
	}
}

// is waits until the worker has seen the mode, and has done what that says.
func (c *crew) is(t *testing.T, m step.WorkerMode) {
	t.Helper()
	eventually(t, "it is "+string(m), func() bool {
		got := make(chan step.WorkerMode, 1)
		c.post(func() { got <- c.mode.state.Mode })
		return <-got == m
	})
}

func TestAWorkerThatIsDrainedTakesNothingNewAlsoAfterARestartUntilItIsResumed(t *testing.T) {
	y, s, dir := newYard(t), newStage(), t.TempDir()
	w := y.worker("a", dir, 2, s)
	y.submit("r", fan("m", 1, 0))
	s.runs(t, "r/m/000000")
	y.mode(step.Drained)
	w.is(t, step.Drained)
	y.submit("later", fan("m", 1, 0))
	eventually(t, "it is published", func() bool { return y.status("later/m/000000") == step.Scheduled })
	w.nudge(t)
	s.runs(t, "r/m/000000") // and goes on
	w.leave()

	w = y.worker("a", dir, 2, s)
	w.is(t, step.Drained)
	eventually(t, "it has found its command", func() bool { // which a stage forgets when it ends
		found := make(chan bool, 1)
		id := store.StepID{Run: "r", Step: "m"}
		w.post(func() { found <- w.active[id] != nil && w.active[id].job != nil })
		return <-found
	})
	for range 3 {
		w.nudge(t)
	}
	s.end("r/m/000000", succeeded)
	y.is("r", run.Succeeded)
	if got := y.status("later/m/000000"); got != step.Scheduled {
		t.Errorf("what is published is %s", got)
	}
	y.mode(step.Working)
	eventually(t, "it takes again", func() bool { return s.end("later/m/000000", succeeded) })
	y.is("later", run.Succeeded)
	w.close(t)
}

func TestAWorkerThatIsStoppedEndsWhatItHas(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0, func(sp *step.Spec) { sp.OnFailure = step.Finish }))
	s.runs(t, "r/m/000000", "r/m/000001")
	y.mode(step.Stopped)
	eventually(t, "both have ended", func() bool { return y.statuses("r", "m", 2)[step.Canceled] == 2 })
	y.submit("later", fan("m", 1, 0))
	eventually(t, "it is published", func() bool { return y.status("later/m/000000") == step.Scheduled })
	w.nudge(t)
	s.runs(t)
	y.mode(step.Drained) // which is less, and has nothing go on
	w.is(t, step.Drained)
	s.runs(t)
	y.mode(step.Working)
	eventually(t, "it takes again", func() bool { return s.end("later/m/000000", succeeded) })
}

// A mode that can't be read has nothing taken; whose name is longer is another worker.
func TestAModeThatCantBeReadHasNothingTaken(t *testing.T) {
	y, s := newYard(t), newStage()
	put := func(key, value string) {
		if _, err := store.Commit(t.Context(), y.step.Backend, nil, store.Put(key, []byte(value), 0)); err != nil {
			t.Fatal(err)
		}
	}
	put(y.step.Keys.Worker("a", "worker"), `{"v":1,"mode":"resting"}`)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	w.is(t, step.Drained)
	put(y.step.Keys.Worker("a", "worker2"), `{"v":1,"mode":"drained","at":"2026-11-22T15:00:00Z","by":"ann"}`)
	y.mode(step.Working)
	w.is(t, step.Working)
}
