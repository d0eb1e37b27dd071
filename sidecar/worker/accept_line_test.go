package worker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/pool/list"
)

// holder claims slots as another process would, until release is called.
func (y *yard) holder(slots map[string]int) (release func()) {
	y.t.Helper()
	other, err := instance.Open(y.t.Context(), instance.Options{Endpoints: []string{y.etcd.Endpoint()}, Host: "other", Instance: "sidecar"})
	if err != nil {
		y.t.Fatal(err)
	}
	claim, err := other.Claim(y.t.Context(), slots)
	if err != nil {
		y.t.Fatal(err)
	}
	return func() {
		y.t.Helper()
		if err := claim.Release(y.t.Context()); err != nil {
			y.t.Error(err)
		}
		if err := other.Close(y.t.Context()); err != nil {
			y.t.Error(err)
		}
	}
}

// waiting is how many instances are in the wait queue of a pool.
func (y *yard) waiting(name string) int {
	y.t.Helper()
	all, err := list.Read(y.t.Context(), y.runs.Backend, y.runs.Keys)
	if err != nil {
		y.t.Fatal(err)
	}
	for _, p := range all.Pools() {
		if p.Name == name {
			return p.Waiting
		}
	}
	return 0
}

// A full worker leaves the wait queue: it would have to release what it was granted then.
// It waits there again when it has capacity.
func TestAFullWorkerStandsInNoLine(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	release := y.holder(map[string]int{"db": 1})
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("slotted", fan("m", 1, 0, from("db", 1)))
	eventually(t, "it is in the wait queue", func() bool { return y.waiting("db") == 1 })
	y.submit("plain", fan("m", 1, 0))
	s.runs(t, "plain/m/000000")
	eventually(t, "the wait queue is empty", func() bool { return y.waiting("db") == 0 })
	release()
	w.nudge(t)
	if n := y.claimed("db"); n > 0 || y.status("slotted/m/000000") != step.Scheduled {
		t.Errorf("%d slots are claimed of a full worker", n)
	}
	s.end("plain/m/000000", succeeded)
	s.runs(t, "slotted/m/000000")
	s.end("slotted/m/000000", succeeded)
	y.is("slotted", run.Succeeded)
	for _, e := range y.events("slotted") {
		if e.Type == run.StepHandedBack {
			t.Errorf("it was handed back: %+v", e)
		}
	}
}

// When nothing is left of an execution, its publication is not taken again, though the
// queue may tell of it still.
func TestAPublicationThatHasEndedIsNotTakenAgain(t *testing.T) {
	y, s := newYard(t), newStage()
	var taken step.Published
	s.onRun = func(t *step.Taken) { taken = t.Ready }
	s.auto = true
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	const known, again, skipped = "the queue has been seen without it", "it would be taken again", "it is skipped"
	for i := range 20 {
		name := fmt.Sprint("r", i)
		y.submit(name, fan("m", 0, 0))
		y.is(name, run.Succeeded)
		eventually(t, "nothing is left of it", func() bool { return w.Active() == 0 })
		is := make(chan string, 1)
		w.ask(t.Context(), func() {
			q := w.queues[0]
			if w.passed[taken.Order] == 0 {
				is <- known
				return
			}
			if err := q.put(&mvccpb.KeyValue{Key: []byte(taken.Key(w.keys)), Value: taken.Encode(), ModRevision: taken.Revision}, time.Now()); err != nil {
				t.Error(err)
			}
			if w.skips(&offer{Published: &taken}) {
				is <- skipped
			} else {
				is <- again
			}
			q.remove(taken.Key(w.keys))
		})
		switch got := <-is; got {
		case skipped:
			return
		case again:
			t.Fatal(got)
		}
	}
	t.Error("the queue was always seen without it before")
}

// A more urgent instance takes the place of a less urgent one in the wait queue, and goes first.
// The other comes back when there is capacity.
func TestAMoreUrgentInstanceGoesFirstOfThoseThatWaitForSlots(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	release := y.holder(map[string]int{"db": 1})
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("low", fan("m", 1, 0, from("db", 1)))
	eventually(t, "it is in the wait queue", func() bool { return slices.Equal(y.line("db"), []string{"m[0]"}) })
	g, err := step.NewGraph([]step.Spec{fan("urgent", 1, 0, from("db", 1))})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := y.step.Submit(t.Context(), y.runs, "high", run.Spec{Priority: 9}, g); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the urgent one stands there in its place", func() bool { return slices.Equal(y.line("db"), []string{"urgent[0]"}) })
	release()
	s.runs(t, "high/urgent/000000")
	s.end("high/urgent/000000", succeeded)
	s.runs(t, "low/m/000000")
	s.end("low/m/000000", succeeded)
	y.is("high", run.Succeeded)
	y.is("low", run.Succeeded)
}
