package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// stepEvents returns the events of a run's steps, as TYPE STEP[INDEX]: REASON, sorted.
func (fl *fleet) stepEvents(id string) (all []string) {
	fl.t.Helper()
	events, err := fl.Events(fl.t.Context(), id)
	if err != nil {
		fl.t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(string(e.Type), "Step") && e.Type != run.StepStarted {
			all = append(all, fmt.Sprintf("%s %s: %s", e.Type, e.Metadata["step"], e.Reason))
		}
	}
	slices.Sort(all)
	return all
}

// Only the leader is left to report what becomes of an instance whose worker is gone; what
// becomes of one that no worker had taken is reported by the process that cancels it.
func TestTheEndOfAnInstanceWithoutAWorkerIsReported(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		x, y := fl.hand("x"), fl.hand("y")
		fl.submitSteps("r", []step.Spec{fan("a", 4, 3, tries(1), func(s *step.Spec) { s.OnFailure = step.Finish })})
		fl.proceed()
		x.take(2)
		cancel := func(index int) {
			t.Helper()
			if _, err := fl.instances().Cancel(t.Context(), fl.Store, store.StepID{Run: "r", Step: "a", Index: index}); err != nil {
				t.Fatal(err)
			}
		}
		cancel(1) // it runs, and its worker dies before it stops it
		cancel(2) // it is published
		cancel(3) // it is not
		if err := fl.root.Revoke(t.Context(), x.lease); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		y.take(1)
		if err := fl.root.Revoke(t.Context(), y.lease); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		want := []string{
			"StepCanceled a[1]: its worker on host 'x' is gone", "StepCanceled a[2]: it was canceled", "StepCanceled a[3]: it was canceled",
			"StepFailed a[0]: its worker on host 'y' is gone", "StepRetried a[0]: its worker on host 'x' is gone",
		}
		if got := fl.stepEvents("r"); !slices.Equal(got, want) {
			t.Errorf("the events are\n%s", strings.Join(got, "\n"))
		}
	})
}

// An instance that was still running when its run ended is reported when its worker is gone.
func TestInstancesOfAnEndedRunAreReported(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		x := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 1, 0)})
		fl.proceed()
		x.take(1)
		if _, err := fl.Cancel(t.Context(), "r", "enough", false); err != nil {
			t.Fatal(err)
		}
		if err := fl.root.Revoke(t.Context(), x.lease); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		if got := fl.stepEvents("r"); len(got) != 1 || !strings.HasPrefix(got[0], "StepCanceled a[0]: ") {
			t.Errorf("the events are\n%s", strings.Join(got, "\n"))
		}
	})
}
