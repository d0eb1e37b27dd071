package step

import (
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func TestACancelThatIsRepeated(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("r", wide("a", 2))
		s.at("r", run.Running)
		one := store.StepID{Run: "r", Step: "a"}
		for range 2 {
			if i, err := s.Cancel(t.Context(), s.runs, one); err != nil || i.Status != Canceled {
				t.Errorf("%+v, %v", i, err)
			}
		}
		s.at("r", run.Failed)
		if i, err := s.Cancel(t.Context(), s.runs, one); err != nil || i.Status != Canceled {
			t.Errorf("its run has ended by that: %+v, %v", i, err)
		}
		one.Index = 1
		if _, err := s.Cancel(t.Context(), s.runs, one); problem.CodeOf(err) != problem.RunEnded {
			t.Errorf("another: %v", err)
		}
	})
}
