package step

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// end makes an executor run an instance, and ends it.
func (s *shelf) end(id store.StepID, as Status) {
	s.t.Helper()
	s.is(id.String(), Record{Status: Running, Attempt: 1, StartedAt: at(1), Executor: by("one")})
	s.commit(store.Put(s.Keys.ActiveStep("one", id), activeValue, 0))
	d, err := s.Detail(s.t.Context(), id)
	if err == nil {
		_, err = s.Finish(s.t.Context(), d.Taken(), Outcome{Status: as, Error: "as requested"}, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// The events of a run are few however many instances it has, and those that have failed
// are among them.
func TestOfManyInstancesThoseThatHaveFailedAreReported(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		const some = 23 // more than a journal has space for
		s.submit("a", external("x", eventsOf-1), external("y", some+2))
		s.submit("b", external("x", eventsOf+1))
		s.end(store.StepID{Run: "a", Step: "x", Index: eventsOf - 2}, Succeeded)
		for i := range some + 2 {
			as := Failed
			if i == 0 || i == 3 {
				as = Succeeded
			}
			s.end(store.StepID{Run: "a", Step: "y", Index: i}, as)
		}
		s.end(store.StepID{Run: "b", Step: "x", Index: eventsOf}, Failed)

		var want []string
		for i := 1; len(want) < 20; i++ {
			if i != 3 {
				want = append(want, fmt.Sprintf("StepFailed y[%d]", i))
			}
		}
		want = append([]string{fmt.Sprintf("StepSucceeded x[%d]", eventsOf-2), "StepSucceeded y[0]"}, want...)
		if d := cmp.Diff(want, s.stepEvents("a")); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
		if d := cmp.Diff([]string{fmt.Sprintf("StepFailed x[%d]", eventsOf)}, s.stepEvents("b")); d != "" {
			t.Errorf("another run: -want +got\n%s", d)
		}
	})
}

// stepEvents are the events of a run's instances, in order.
func (s *shelf) stepEvents(id string) (all []string) {
	s.t.Helper()
	events, err := s.runs.Events(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events {
		if e.Type != run.RunQueued {
			all = append(all, string(e.Type)+" "+e.Metadata["step"])
		}
	}
	return all
}
