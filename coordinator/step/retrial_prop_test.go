package step

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// scene is a run with its instances in any state, and what is named of it.
type scene struct {
	view  view
	all   []*Instance
	which []Which
}

var genScene = rapid.Custom(func(t *rapid.T) scene {
	var specs []Spec
	stepNames := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "steps")]
	for i, name := range stepNames {
		s := wide(name, rapid.IntRange(1, 3).Draw(t, "count"))
		s.OnFailure = rapid.SampledFrom([]OnFailure{Fail, Finish, Finish}).Draw(t, "on failure")
		for _, before := range stepNames[:i] {
			if rapid.IntRange(0, 2).Draw(t, "needs") == 0 {
				s.Needs = append(s.Needs, before)
			}
		}
		specs = append(specs, s)
	}
	g, err := NewGraph(specs)
	if err != nil {
		t.Fatal(err)
	}
	const end = 100
	r := &run.Run{ID: "r", Revision: end}
	r.Status = rapid.SampledFrom([]run.Status{run.Queued, run.Running, run.Failed, run.Failed, run.Canceled}).Draw(t, "run")
	sc := scene{view: view{run: r, graph: g}}
	for _, sh := range g.Shapes() {
		for index := range sh.Count {
			status := rapid.SampledFrom([]Status{"", Requested, Succeeded, Succeeded, Failed, Canceled, Running}).Draw(t, "status")
			if status == "" || status.InFlight() && r.Status.Ended() {
				continue
			}
			sc.all = append(sc.all, &Instance{
				StepID: store.StepID{Run: "r", Step: sh.Name, Index: index}, Record: Record{Status: status},
				Revision: end + rapid.Int64Range(-5, 5).Draw(t, "revision"),
			})
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "named") {
		sh := rapid.SampledFrom(g.Shapes()).Draw(t, "step")
		sc.which = append(sc.which, Which{sh.Name, rapid.IntRange(Every, sh.Count-1).Draw(t, "index")})
	}
	return sc
})

// named reports whether an instance is named.
func (sc *scene) named(i *Instance) bool {
	for _, w := range sc.which {
		if w.Step == i.Step && (w.Index == Every || w.Index == i.Index) {
			return true
		}
	}
	return len(sc.which) == 0
}

// check holds a decision against the rules, slowly.
func (sc *scene) check(p retryPlan, err error) error {
	r, g := sc.view.run, sc.view.graph
	if len(sc.which) == 0 && !r.Status.Ended() {
		if err != nil || p.queue || len(p.instances) > 0 {
			return fmt.Errorf("a run in progress: %+v, %v", p, err)
		}
		return nil
	}
	requested, left := map[store.StepID]bool{}, map[string]bool{}
	succeeded, one := map[string]int{}, false
	for _, i := range sc.all {
		ended := i.Status == Failed || i.Status == Canceled
		stopped := r.Status.Ended() && i.Status == Canceled && i.Revision > r.Revision
		switch {
		case ended && (sc.named(i) || stopped):
			requested[i.StepID] = true
		case ended:
			left[i.Step] = true
		case i.Status == Succeeded:
			succeeded[i.Step]++
			for _, w := range sc.which {
				one = one || w == Which{i.Step, i.Index}
			}
		}
	}
	nothing := one
	// waits tells whether a step waits for one of which something has failed.
	var waits func(n int) bool
	waits = func(n int) bool {
		for _, need := range g.shapes[n].Needs {
			if left[g.shapes[need].Name] || waits(need) {
				return true
			}
		}
		return false
	}
	for n, sh := range g.shapes {
		nothing = nothing || len(sc.which) > 0 && left[sh.Name] && sh.OnFailure == Fail
		for _, w := range sc.which {
			nothing = nothing || w.Step == sh.Name && waits(n) || w == Which{sh.Name, Every} && succeeded[sh.Name] == sh.Count
		}
	}
	switch {
	case nothing != (problem.CodeOf(err) == problem.StepEnded) || !nothing && err != nil:
		return fmt.Errorf("it comes to nothing: %v, it is refused: %v", nothing, err)
	case err != nil:
		return nil
	case p.queue != r.Status.Ended():
		return fmt.Errorf("a run that is %s is queued: %v", r.Status, p.queue)
	case len(p.instances) != len(requested):
		return fmt.Errorf("%d are requested, want %d", len(p.instances), len(requested))
	}
	for _, i := range p.instances {
		if !requested[i.StepID] {
			return fmt.Errorf("%s is requested", i.Text())
		}
	}
	return nil
}

func TestEveryRetryKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sc := genScene.Draw(t, "scene")
		tr := newRetrial("", sc.which)
		p, err := tr.decide(&sc.view, sc.all)
		if err := sc.check(p, err); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		// Whatever has become of what was requested, it is not requested once more; and
		// neither is the run queued once more, if it was.
		for _, i := range p.instances {
			i.Status = rapid.SampledFrom([]Status{Requested, Succeeded, Failed, Canceled}).Draw(t, "then")
			i.Revision += 1000
		}
		if p.queue {
			sc.view.run.Revision += 1000
			sc.view.run.Status = rapid.SampledFrom([]run.Status{run.Queued, run.Failed, run.Succeeded}).Draw(t, "the run")
		}
		asked := len(tr.seen)
		again, err := tr.decide(&sc.view, sc.all)
		if err != nil || again.queue || len(again.instances) > 0 || len(tr.seen) != asked {
			t.Fatalf("%+v, %v after %+v", again, err, p)
		}
	})
}
