package worker

import (
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// The answer was lost for a take that never happened. No process knows that, so the
// worker takes the instance again, and of the two only one can happen.
func TestAnInstanceWhoseTakeNeverHappenedIsTakenAgain(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000")
	eventually(t, "the next is published", func() bool { return y.status("r/m/000001") == step.Scheduled })
	reservation, err := w.client.ReserveKey(t.Context(), stepLease)
	if err != nil {
		t.Fatal(err)
	}
	// As if its taking had been sent, and etcd had gone away.
	isUnresolved := false
	eventually(t, "the worker knows of it", func() bool {
		done := make(chan struct{})
		w.ask(t.Context(), func() {
			defer close(done)
			all := published(w.queues[0])
			at := slices.IndexFunc(all, func(p *step.Published) bool { return p.ID().String() == "r/m/000001" })
			if isUnresolved = at >= 0; isUnresolved {
				w.unresolved = append(w.unresolved, &unresolved{p: all[at], reservation: reservation})
			}
		})
		<-done
		return isUnresolved
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
	for _, c := range q.requirements {
		for _, o := range c.all {
			all = append(all, o.Published)
		}
	}
	return all
}

// A queue may tell of an instance still when it has ended: it is not taken again, nor is
// its claim asked for again, which may be just on its way back.
func TestAPublicationIsTakenOnce(t *testing.T) {
	y, s := newYard(t), newStage()
	var taken step.Published
	s.onRun = func(t *step.Taken) { taken = t.Ready }
	s.auto = true
	y.pool("db", 1)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 0, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }))
	y.is("r", run.Succeeded)
	skipped := make(chan bool, 1)
	w.ask(t.Context(), func() {
		q := w.queues[0]
		if err := q.put(&mvccpb.KeyValue{Key: []byte(taken.Key(w.keys)), Value: taken.Encode(), ModRevision: taken.Revision}, time.Now()); err != nil {
			t.Error(err)
		}
		w.forgetPassed()
		skipped <- w.skips(&offer{Published: &taken})
		q.remove(taken.Key(w.keys))
		if w.forgetPassed(); len(w.passed) > 0 {
			t.Errorf("%v are kept in mind", w.passed)
		}
	})
	if !<-skipped {
		t.Error("it would be taken again")
	}
}
