package worker

import (
	"slices"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// An answer that was lost of a taking that never came to pass: nobody knows that, so the
// worker takes the instance again, and of the two only one can happen.
func TestWhatIsInDoubtAndNeverCameIsTakenAgain(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000")
	eventually(t, "the next is published", func() bool { return y.status("r/m/000001") == step.Scheduled })
	room, err := w.client.Room(t.Context(), stepLease)
	if err != nil {
		t.Fatal(err)
	}
	// As if its taking had been sent, and etcd had gone away.
	doubted := false
	eventually(t, "the worker knows of it", func() bool {
		done := make(chan struct{})
		w.ask(t.Context(), func() {
			defer close(done)
			all := published(w.queues[0])
			at := slices.IndexFunc(all, func(p *step.Published) bool { return p.ID().String() == "r/m/000001" })
			if doubted = at >= 0; doubted {
				w.doubts = append(w.doubts, &doubt{p: all[at], room: room})
			}
		})
		<-done
		return doubted
	})
	s.end("r/m/000000", succeeded)
	w.nudge(t)
	w.ask(t.Context(), func() { w.sweep(t.Context()) })
	s.runs(t, "r/m/000001")
	s.end("r/m/000001", succeeded)
	y.is("r", run.Succeeded)
	if n := len(s.seen); n != 2 {
		t.Errorf("%d were started: %v", n, s.seen)
	}
}

// published is all that there is in a queue.
func published(q *queue) (all []*step.Published) {
	for _, c := range q.classes {
		all = append(all, c.all...)
	}
	return all
}
