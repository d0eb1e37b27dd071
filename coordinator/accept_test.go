package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// These tests check the guarantees of fan-outs and caps against a real etcd, at each of
// its revisions.

func TestFiveItemsGoThreeAtATime(t *testing.T) {
	g := newGround(t)
	g.leader("one")
	g.submit("r", []step.Spec{fan("many", 5, 3), fan("last", 0, 0, after("many"))})
	g.ready("many[0] many[1] many[2]")
	g.look(func(s *groundSeen) {
		for _, id := range []string{"r/many/000003", "r/many/000004", "r/last/000000"} {
			if was := s.statuses[id]; len(was) > 0 {
				t.Errorf("%s was %v before there was capacity for it", id, was)
			}
		}
	})
	g.takeAll(3)
	for _, c := range []struct{ ends, then string }{{"many[0]", "many[3]"}, {"many[1]", "many[4]"}, {"many[2]", ""}, {"many[3]", ""}} {
		g.finish(c.ends, step.Succeeded)
		g.planned()
		g.ready(c.then)
		g.takeAll(1)
	}
	// One is left: so what needs them all has not gone.
	g.look(func(s *groundSeen) {
		if was := s.statuses["r/last/000000"]; len(was) > 0 {
			t.Errorf("the last is %v, and one of many runs", was)
		}
	})
	g.finish("many[4]", step.Succeeded)
	g.ready("last[0]")
	g.takeAll(1)
	g.finish("last[0]", step.Succeeded)
	g.ended("r", run.Succeeded)
	g.mostInFlight("r", "many", 3)
}

// First all that is to be done is stored, and then the run is queued; what is stored is
// never written again.
func TestAllWorkIsStoredBeforeAnyOfItIsPublished(t *testing.T) {
	g := newGround(t)
	g.leader("one")
	const items = 230 // in more than one write
	g.submit("r", []step.Spec{fan("m", items, 40, func(s *step.Spec) { s.Command = []string{"echo", "{{.item}}"} })})
	g.work("r")
	g.ended("r", run.Succeeded)
	g.look(func(s *groundSeen) {
		if len(s.works) != items {
			t.Errorf("the work of %d instances was stored, want %d", len(s.works), items)
		}
		first := s.firstReady
		for key, revisions := range s.works {
			if len(revisions) != 1 || revisions[0] >= first {
				t.Errorf("%s was written at %v, and the first instance was published at %d", key, revisions, first)
			}
		}
	})
	g.mostInFlight("r", "m", 40)
}

// A tick publishes so many instances, whatever free capacity remains; the next leader has
// a tick of its own.
func TestATickPublishesNoMoreThanItMay(t *testing.T) {
	g := newGround(t)
	slow := func(c *Config) { c.TickInterval = time.Hour }
	stop := g.leader("one", slow)
	g.submit("r", []step.Spec{fan("a", 6, 0)}, caps(0, 2))
	g.planned()
	g.ready("a[0] a[1]")
	g.takeAll(2)
	g.finish("a[0]", step.Succeeded)
	g.finish("a[1]", step.Succeeded)
	g.planned()
	g.ready("")
	stop()
	g.leader("two", slow)
	g.ready("a[2] a[3]")
	g.planned()
	g.ready("a[2] a[3]")
}

// An instance counts if it is running and a worker is seen to run it. One that has died
// unreported frees capacity in the tick that finds it, however it has died.
func TestWhatIsNotReallyRunningDoesNotCount(t *testing.T) {
	for name, dies := range map[string]func(g *ground){
		"its worker is gone":          func(g *ground) { g.revoke() },
		"only its key is gone":        func(g *ground) { g.unsee("a[0]"); g.unsee("a[1]") },
		"the first is tried too late": func(g *ground) { g.unsee("a[1]"); g.revoke() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t)
			g.leader("one")
			g.submit("r", []step.Spec{fan("a", 4, 0, tries(2))}, caps(2, 0))
			g.ready("a[0] a[1]")
			late := g.takeAll(2)
			dies(g)
			g.ready("a[0] a[1]") // no fewer than may, and no more
			for _, taken := range late {
				if _, err := g.steps.Finish(t.Context(), taken, step.Outcome{Status: step.Succeeded}, nil); problem.CodeOf(err) != problem.StepLost {
					t.Errorf("%s is finished by the first: %v", taken.Text(), err)
				}
			}
			g.takeAll(2)
			g.finish("a[0]", step.Failed) // and once more
			g.work("r")
			g.ended("r", run.Succeeded)
			g.mostInFlight("r", "", 2)
			g.look(func(s *groundSeen) {
				for id, was := range s.statuses {
					if n := len(slices.DeleteFunc(slices.Clone(was), func(s step.Status) bool { return s != step.Succeeded })); n != 1 {
						t.Errorf("%s has succeeded %d times: %v", id, n, was)
					}
				}
			})
		})
	}
}

// The next leader counts what there is, in its first tick.
func TestTheNextLeaderCountsAgain(t *testing.T) {
	g := newGround(t)
	stop := g.leader("one")
	g.submit("r", []step.Spec{fan("a", 7, 0), fan("b", 2, 0)}, caps(3, 0))
	g.ready("a[0] a[1] a[2]")
	g.takeAll(2) // two are running, and one is scheduled
	stop()
	g.finish("a[0]", step.Succeeded) // there is no leader
	g.leader("two")
	g.ready("a[2] a[3]")
	g.planned()
	g.ready("a[2] a[3]")
	g.mostInFlight("r", "", 3)
}

// A publication is taken once, no matter which workers receive it and how often.
func TestADoublePublicationStartsNothing(t *testing.T) {
	g := newGround(t)
	g.leader("one")
	g.submit("r", []step.Spec{fan("a", 0, 0)})
	g.ready("a[0]")
	p := g.publications()[0]
	var wg sync.WaitGroup
	results := make(chan error, 20)
	for i := range cap(results) {
		wg.Go(func() {
			_, err := g.steps.Take(t.Context(), p, run.Executor{Host: fmt.Sprint("h", i), Instance: "worker"}, g.lease)
			results <- err
		})
	}
	wg.Wait()
	close(results)
	had := 0
	for err := range results {
		switch {
		case err == nil:
			had++
		case problem.CodeOf(err) != problem.StepTaken:
			t.Error(err)
		}
	}
	if had != 1 {
		t.Errorf("%d have taken it", had)
	}
	// Published once more, as by a leader who has not seen that it runs.
	g.txn(store.Put(p.Key(g.keys), p.Encode(), 0))
	g.ready("a[0]")
	again := g.publications()[0]
	if _, err := g.steps.Take(t.Context(), again, run.Executor{Host: "late", Instance: "worker"}, g.lease); problem.CodeOf(err) != problem.StepTaken {
		t.Errorf("the second publication: %v", err)
	}
	g.look(func(s *groundSeen) {
		if was := s.statuses["r/a/000000"]; !slices.Equal(was, []step.Status{step.Scheduled, step.Running}) {
			t.Errorf("it was %v", was)
		}
	})
}

// Who is not seen to live any more ends nothing, also before anybody has taken the
// instance from it.
func TestAnExecutorThatIsNotSeenEndsNothing(t *testing.T) {
	g := newGround(t)
	stop := g.leader("one")
	g.submit("r", []step.Spec{fan("a", 2, 0, tries(1))})
	g.ready("a[0] a[1]")
	late := g.takeAll(2)
	stop() // there is no leader
	g.unsee("a[0]")
	g.unsee("a[1]")
	for i, end := range []func(*step.Taken) (*step.Instance, error){
		func(t *step.Taken) (*step.Instance, error) {
			return g.steps.Finish(g.t.Context(), t, step.Outcome{Status: step.Succeeded}, nil)
		},
		func(t *step.Taken) (*step.Instance, error) { return g.steps.HandBack(g.t.Context(), t, nil) },
	} {
		if _, err := end(late[i]); problem.CodeOf(err) != problem.StepLost {
			t.Errorf("%s is ended: %v", late[i].Text(), err)
		}
	}
	g.leader("two")
	g.ready("a[0] a[1]")
	g.work("r")
	g.ended("r", run.Succeeded)
}

// Caps are a run's own, and there are none unless they are asked for.
func TestCapsAreOfEachRun(t *testing.T) {
	g := newGround(t)
	g.leader("one")
	g.submit("capped", []step.Spec{fan("a", 5, 0)}, caps(2, 0))
	g.submit("other", []step.Spec{fan("b", 5, 0)}, caps(2, 0))
	g.submit("free", []step.Spec{fan("c", 40, 0)})
	g.planned()
	want := "a[0] a[1] b[0] b[1]"
	for i := range 40 {
		want += fmt.Sprintf(" c[%d]", i)
	}
	g.ready(want)
}

// Steps go level by level, and in a level side by side.
func TestADiamondGoesByItsLevels(t *testing.T) {
	g := newGround(t)
	g.leader("one")
	g.submit("r", []step.Spec{fan("end", 0, 0, after("left", "right")), fan("left", 2, 0, after("begin")), fan("right", 0, 0, after("begin")), fan("begin", 0, 0)})
	g.ready("begin[0]")
	g.takeAll(1)
	g.finish("begin[0]", step.Succeeded)
	g.ready("left[0] left[1] right[0]")
	g.takeAll(3)
	g.finish("left[0]", step.Succeeded)
	g.finish("right[0]", step.Succeeded)
	g.planned()
	g.ready("")
	g.finish("left[1]", step.Succeeded)
	g.ready("end[0]")
}

// planned waits until the leader has made a plan after what there is now: it lets a run
// go that was submitted after it.
func (g *ground) planned() {
	g.t.Helper()
	g.probes++
	id := fmt.Sprintf("zz-probe-%d", g.probes)
	g.submit(id, []step.Spec{fan("probe", 0, 0, func(s *step.Spec) { s.Queue = "probes" })})
	g.until("a plan is made", func(s *groundSeen) bool { return len(s.statuses[id+"/probe/000000"]) > 0 })
}

// ready waits until the queue contains just these.
func (g *ground) ready(want string) {
	g.t.Helper()
	g.caughtUp()
	g.until(fmt.Sprintf("%q can be taken", want), func(s *groundSeen) bool { return s.ready() == want })
}

// ended waits until a run has ended so.
func (g *ground) ended(id string, want run.Status) {
	g.t.Helper()
	g.until(fmt.Sprintf("run %s is %s", id, want), func(s *groundSeen) bool { return s.runs[id] == want })
}

// mostInFlight checks how many of a step, or of a run, were in flight at most, at any
// revision: as many as could be, and no more.
func (g *ground) mostInFlight(id, name string, want int) {
	g.t.Helper()
	g.look(func(s *groundSeen) {
		if got := s.most[strings.TrimSuffix(id+"/"+name, "/")]; got != want {
			g.t.Errorf("%d of %s %s were in flight at most, want %d", got, id, name, want)
		}
	})
}

// takeAll takes the first so many that there are.
func (g *ground) takeAll(most int) (all []*step.Taken) {
	g.t.Helper()
	for _, p := range g.publications() {
		if len(all) == most {
			break
		}
		t, err := g.steps.Take(g.t.Context(), p, run.Executor{Host: "x", Instance: "worker"}, g.lease)
		if err != nil {
			g.t.Fatal(err)
		}
		g.mine[t.Text()] = t
		all = append(all, t)
	}
	return all
}

// work takes and finishes all that there is of a run, until it has ended.
func (g *ground) work(id string) {
	g.t.Helper()
	for over := false; !over; {
		for _, instance := range slices.Sorted(maps.Keys(g.mine)) {
			g.finish(instance, step.Succeeded)
		}
		g.caughtUp()
		g.until("there is something to do, or run "+id+" has ended", func(s *groundSeen) bool {
			over = s.runs[id].Ended()
			return over || s.ready() != ""
		})
		g.takeAll(40)
	}
}

func (g *ground) finish(id string, as step.Status) {
	g.t.Helper()
	t := g.mine[id]
	if t == nil {
		g.t.Fatalf("%s was not taken", id)
	}
	delete(g.mine, id)
	if _, err := g.steps.Finish(g.t.Context(), t, step.Outcome{Status: as, Error: "as requested"}, nil); err != nil {
		g.t.Fatal(err)
	}
}

// revoke ends the lease on which all is seen to be run, and has another one.
func (g *ground) revoke() {
	g.t.Helper()
	if err := g.backend.Revoke(g.t.Context(), g.lease); err != nil {
		g.t.Fatal(err)
	}
	clear(g.mine)
	g.grant()
}

// unsee makes no worker be seen to run an instance.
func (g *ground) unsee(id string) {
	g.t.Helper()
	t := g.mine[id]
	delete(g.mine, id)
	g.txn(store.Delete(g.keys.ActiveStep(t.Executor.Host, t.StepID)))
}

func (g *ground) txn(ops ...*pb.RequestOp) {
	g.t.Helper()
	if _, err := g.backend.Txn(g.t.Context(), &pb.TxnRequest{Success: ops}); err != nil {
		g.t.Fatal(err)
	}
}

// submit submits a run with steps.
func (g *ground) submit(id string, specs []step.Spec, change ...func(*run.Spec)) {
	g.t.Helper()
	graph, err := step.NewGraph(specs)
	if err != nil {
		g.t.Fatal(err)
	}
	var s run.Spec
	for _, f := range change {
		f(&s)
	}
	if _, _, err := g.steps.Submit(g.t.Context(), g.runs, id, s, graph); err != nil {
		g.t.Fatal(err)
	}
}

// leader starts a candidate that leads, and returns what stops it.
func (g *ground) leader(host string, change ...func(*Config)) (stop func()) {
	g.t.Helper()
	cfg := Config{Backend: g.client(), Keys: g.keys, Host: host, CompactInterval: -1}
	for _, f := range change {
		f(&cfg)
	}
	c := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	g.t.Cleanup(stop)
	return stop
}
