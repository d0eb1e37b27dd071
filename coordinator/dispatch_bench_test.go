package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// What a plan costs with a million instances that wait to be published, with a thousand
// for comparison: it must not go with how many there are.
func BenchmarkDispatch(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		for _, tc := range []struct {
			name            string
			window, running int // of each run
			published       int
		}{
			{"nothing is held up", 0, 0, min(n, maxPublish)},
			{"one of a window has ended", 10, 9, max(1, n/step.MaxItems)},
			{"all windows are full", 10, 10, 0},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, tc.name), func(b *testing.B) {
				s := &StepSnapshot{
					Now: planNow, Tick: time.Second, Most: maxPublish,
					Alive: func(_ store.StepID, _ step.Record, _ int64) bool { return true },
				}
				for left := n; left > 0; left -= step.MaxItems {
					s.Runs = append(s.Runs, waitingRun(b, len(s.Runs), min(left, step.MaxItems), tc.window, tc.running))
				}
				b.ReportAllocs()
				for b.Loop() {
					if p := s.Plan(); len(p.Publish) != tc.published {
						b.Fatalf("%d are published, want %d", len(p.Publish), tc.published)
					}
				}
			})
		}
	}
}

// waitingRun is a run of one step of which some instances are running, and all others wait.
func waitingRun(b *testing.B, i, items, window, running int) Fanned {
	b.Helper()
	id := fmt.Sprint("run-", i)
	g, err := step.NewGraph([]step.Spec{{
		Name: "m", Command: []string{"true"}, Concurrency: window,
		Items: &step.Items{Range: &step.Range{From: 1, To: int64(items), By: 1}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	f := newFanout(id, g)
	for index := range running {
		f.take(&step.Instance{
			StepID: store.StepID{Run: id, Step: "m", Index: index}, Revision: int64(index + 1),
			Record: step.Record{Status: step.Running, Attempt: 1, Executor: &run.Executor{Host: "h"}},
		}, planNow)
	}
	return Fanned{&run.Run{ID: id, Created: int64(i + 1), Revision: 1, Record: run.Record{Spec: run.Spec{Steps: items}, Status: run.Running}}, f}
}
