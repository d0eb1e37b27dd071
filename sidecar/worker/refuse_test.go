package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
)

// submitAs submits a run for a user.
func (y *yard) submitAs(user, id string, specs ...step.Spec) {
	y.t.Helper()
	g, err := step.NewGraph(specs)
	if err == nil {
		_, _, err = y.step.SubmitAs(y.t.Context(), access.Identity{Kind: access.User, Name: user}, y.runs, id, run.Spec{}, g)
	}
	if err != nil {
		y.t.Fatal(err)
	}
}

// refusedBy checks that the only attempt of an instance was refused by a worker.
func (y *yard) refusedBy(host, id, submitter string) {
	y.t.Helper()
	i, err := y.step.Get(y.t.Context(), idOf(y.t, id))
	if err != nil {
		y.t.Fatal(err)
	}
	want := fmt.Sprintf("worker %s/worker runs no commands of runs %s: its setting commands_from allows user:alice, token:*", host, submitter)
	if i.Status != step.Failed || i.Attempt != 1 || i.Error != want {
		y.t.Errorf("%+v, want %q", i.Record, want)
	}
}

func retried(s *step.Spec) { s.Retries = 3 }

// A worker that has no free capacity refuses what it does not run, also what needs slots that
// are not free, and runs the commands of the submitters that it serves.
func TestAWorkerRunsCommandsOfItsSubmittersOnly(t *testing.T) {
	y := newYard(t)
	y.pool("full", 0)
	y.from = access.Patterns{"user:alice", "token:*"}
	s := newStage()
	w := y.worker("one", "", 1, s)
	defer w.close(t)
	y.submitAs("alice", "hers", fan("m", 1, 0))
	eventually(t, "the command of alice runs", func() bool { return w.Active() == 1 })
	y.submitAs("bob", "his", fan("m", 1, 0, retried))
	y.submitAs("bob", "slots", fan("m", 1, 0, retried, func(s *step.Spec) { s.Pools = map[string]int{"full": 1} }))
	y.submit("unowned", fan("m", 1, 0, retried))
	y.submitAs("bob", "many", fan("m", 3*maxRefusing, 0, func(s *step.Spec) { s.OnFailure = step.Finish }))
	for _, id := range []string{"his", "slots", "unowned", "many"} {
		y.is(id, run.Failed)
	}
	y.refusedBy("one", "his/m/000000", "that user:bob has submitted")
	y.refusedBy("one", "slots/m/000000", "that user:bob has submitted")
	y.refusedBy("one", "unowned/m/000000", "whose submitter is not recorded")
	y.refusedBy("one", fmt.Sprintf("many/m/%06d", 3*maxRefusing-1), "that user:bob has submitted")
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Join(s.seen, " ") != "hers/m/000000" {
		t.Errorf("it ran %v", s.seen)
	}
}

// Instances without a recorded submitter are run by a worker that serves all, and
// external ones are left to executors.
func TestAWorkerRefusesNoExternalInstances(t *testing.T) {
	y := newYard(t)
	y.from = access.Patterns{"user:alice"}
	s := newStage()
	s.auto = true
	w := y.worker("one", "", 1, s)
	defer w.close(t)
	y.submitAs("bob", "far", step.Spec{Name: "m", External: true})
	y.submitAs("alice", "hers", fan("m", 1, 0))
	y.is("hers", run.Succeeded) // it was published later
	if got := y.status(store.StepID{Run: "far", Step: "m"}.String()); got != step.Scheduled {
		t.Errorf("it is %s", got)
	}
}
