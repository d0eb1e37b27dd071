package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Five items, three at a time.
func TestAWindowIsFilledInOrder(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		fl.submitSteps("r", []step.Spec{fan("last", 0, 0, after("many")), fan("many", 5, 3)})
		h := fl.hand("x")
		for _, want := range []string{
			"many[0] many[1] many[2]", "many[3]", "many[4]", "", "", "last[0]", "",
		} {
			fl.proceed()
			if got := fl.ready(); got != want {
				t.Fatalf("ready is %q, want %q", got, want)
			}
			h.take(9)
			if len(h.has) > 0 {
				h.finish(step.Succeeded)
			}
		}
		fl.is(map[string]string{"r": "succeeded"})
	})
}

func TestLimitsOfARunsSteps(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one", func(c *Config) { c.TickInterval = time.Minute })
		fl.submitSteps("r", []step.Spec{fan("a", 6, 4), fan("b", 6, 0)}, caps(5, 2))
		fl.proceed()
		if got := fl.ready(); got != "a[0] a[1]" {
			t.Errorf("two a tick: %q", got)
		}
		time.Sleep(time.Minute)
		fl.proceed()
		if got := fl.ready(); got != "a[0] a[1] a[2] a[3]" {
			t.Errorf("four of a: %q", got)
		}
		time.Sleep(5 * time.Minute)
		if got := fl.ready(); got != "a[0] a[1] a[2] a[3] b[0]" {
			t.Errorf("five in all: %q", got)
		}
	})
}

func TestWhatAFailureDoes(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		// The run fails at once, and what is left of it is not taken.
		fl.submitSteps("fast", []step.Spec{fan("many", 3, 2)})
		fl.proceed()
		h.take(1)
		h.finish(step.Failed)
		fl.is(map[string]string{"fast": "failed"})
		fl.proceed()
		if got := fl.ready(); got != "" {
			t.Errorf("ready is %q after the run has failed", got)
		}
		fl.stepIs("fast/many/000001", step.Canceled)
		fl.stepIs("fast/many/000002", step.Requested)

		// The others go on; what needs it does not.
		fl.submitSteps("slow", []step.Spec{fan("many", 3, 1, goOn), fan("then", 0, 0, after("many")), fan("alone", 0, 0)})
		fl.proceed()
		for range 4 {
			h.take(1)
			if h.has[0].Step == "alone" {
				h.finish(step.Succeeded)
			} else {
				h.finish(step.Failed)
			}
			fl.proceed()
		}
		fl.is(map[string]string{"slow": "failed"})
		fl.stepIs("slow/then/000000", step.Requested)
		if r, err := fl.Get(t.Context(), "slow"); err != nil || r.Error != "step 'many' has failed: 3 of 3" {
			t.Errorf("%q, %v", r.Error, err)
		}
	})
}

func TestAFailedInstanceIsTriedAgainAfterAPause(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 0, 0, tries(2), func(s *step.Spec) { s.Backoff = step.Duration(20 * time.Second) })})
		for i, pause := range []time.Duration{20 * time.Second, 40 * time.Second} {
			fl.proceed()
			h.take(1)
			h.finish(step.Failed)
			time.Sleep(pause - 2*time.Second)
			if got := fl.ready(); got != "" {
				t.Errorf("after %d: %q is ready too early", i, got)
			}
			time.Sleep(4 * time.Second)
		}
		h.take(1)
		if at := h.has[0].Attempt; at != 3 {
			t.Errorf("it is attempt %d", at)
		}
		h.finish(step.Failed)
		fl.is(map[string]string{"r": "failed"})
	})
}

// An instance whose worker is gone is taken by another one; the first comes too late.
func TestAnInstanceWhoseWorkerIsGone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		x, y := fl.hand("x"), fl.hand("y")
		fl.submitSteps("r", []step.Spec{fan("a", 2, 0, tries(1))})
		fl.proceed()
		x.take(2)
		if err := fl.root.Revoke(t.Context(), x.lease); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		y.take(2)
		if _, err := fl.instances().Finish(t.Context(), x.has[0], step.Outcome{Status: step.Succeeded}, nil); problem.CodeOf(err) != problem.StepLost {
			t.Errorf("the first one finishes: %v", err)
		}
		y.finish(step.Succeeded)
		// Lost once more, it has failed.
		if err := fl.root.Revoke(t.Context(), y.lease); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"r": "failed"})
	})
}

func TestACanceledRunsStepsAreNotTaken(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 4, 2)})
		fl.proceed()
		h.take(1)
		waiting := fl.published()
		if _, err := fl.Cancel(t.Context(), "r", "no need", false); err != nil {
			t.Fatal(err)
		}
		for _, p := range waiting {
			if _, err := fl.instances().Take(t.Context(), p, run.Executor{Host: "x", Instance: "worker"}, h.lease); problem.CodeOf(err) != problem.StepTaken {
				t.Errorf("%s was taken: %v", p.ID(), err)
			}
		}
		fl.proceed()
		if got := fl.ready(); got != "" {
			t.Errorf("ready is %q", got)
		}
		h.finish(step.Canceled)
		fl.stepIs("r/a/000000", step.Canceled)
		fl.is(map[string]string{"r": "canceled"})
	})
}

// What is handed back is there again, and the attempt does not count.
func TestAnInstanceThatIsHandedBack(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 0, 0)})
		fl.proceed()
		h.take(1)
		if _, err := fl.instances().HandBack(t.Context(), h.has[0], nil); err != nil {
			t.Fatal(err)
		}
		h.has = nil
		fl.proceed()
		h.take(1)
		if h.has[0].Attempt != 1 {
			t.Errorf("it is attempt %d", h.has[0].Attempt)
		}
		h.finish(step.Succeeded)
		fl.is(map[string]string{"r": "succeeded"})
	})
}

// A submission that was broken off is gone on with, or swept.
func TestARunWhoseStepsWereNotAllStored(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		g, err := step.NewGraph([]step.Spec{fan("a", 250, 0)})
		if err != nil {
			t.Fatal(err)
		}
		broken := fl.root.Peer()
		defer broken.Close()
		var writes atomic.Int64
		broken.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpTxn {
				if writes.Add(1) > 2 {
					return storetest.Fault{Drop: true, Err: store.ErrDenied}
				}
			}
			return storetest.Fault{}
		})
		bad := fl.instances()
		bad.Backend = broken
		runs := fl.Store
		runs.Backend = broken
		for _, id := range []string{"again", "left"} {
			writes.Store(0)
			if _, _, err := bad.Submit(t.Context(), runs, id, run.Spec{}, g); err == nil {
				t.Error("it was submitted")
			}
		}
		fl.is(map[string]string{"again": "storing", "left": "storing"})
		if _, created, err := fl.instances().Submit(t.Context(), fl.Store, "again", run.Spec{}, g); err != nil || !created {
			t.Errorf("once more: %v, %v", created, err)
		}
		fl.is(map[string]string{"again": "running"})
		time.Sleep(2 * time.Hour)
		if _, err := fl.Get(t.Context(), "left"); problem.CodeOf(err) != problem.RunNotFound {
			t.Errorf("what no client continues: %v", err)
		}
		fl.root.Do(func(e *storetest.Etcd) {
			for kv := range e.All(fl.keys.Works("left")) {
				t.Errorf("%s is left", kv.Key)
			}
		})
	})
}

// Each submission that is repeated while the first one is under way, or after it was broken off,
// would otherwise add up to 128 MiB to the history of etcd.
func TestSubmissionsOfOneRunAtTheSameTimeWriteItsWorkOnce(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		g, err := step.NewGraph([]step.Spec{fan("a", 1000, 0)})
		if err != nil {
			t.Fatal(err)
		}
		written := map[string]int{}
		fl.root.Do(func(e *storetest.Etcd) {
			e.OnCommit(func(_ int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
				for _, ev := range events {
					if ev.Type == mvccpb.Event_PUT && strings.HasPrefix(string(ev.Kv.Key), fl.keys.WorksAll()) {
						written[string(ev.Kv.Key)]++
					}
				}
			})
		})
		// What an earlier run has left is replaced.
		stale := fl.keys.Work(store.StepID{Run: "r", Step: "a", Index: 99})
		if _, err := store.Commit(t.Context(), fl.root, nil, store.Put(stale, []byte("stale"), 0)); err != nil {
			t.Fatal(err)
		}
		broken := fl.root.Peer()
		defer broken.Close()
		var writes atomic.Int64
		broken.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpTxn && writes.Add(1) > 6 {
				return storetest.Fault{Drop: true, Err: store.ErrDenied}
			}
			return storetest.Fault{}
		})
		bad, runs := fl.instances(), fl.Store
		bad.Backend, runs.Backend = broken, broken
		if _, _, err := bad.Submit(t.Context(), runs, "r", run.Spec{}, g); err == nil {
			t.Error("it was submitted")
		}
		fl.root.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 5 * time.Millisecond} })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, _, err := fl.instances().Submit(t.Context(), fl.Store, "r", run.Spec{}, g); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		again := 0
		for _, n := range written {
			again += n - 1
		}
		if len(written) != 1000 || again != 1 { // that of the earlier run
			t.Errorf("the work of %d instances was written, and %d times once more", len(written), again)
		}
		if _, err := fl.instances().Work(t.Context(), store.StepID{Run: "r", Step: "a", Index: 99}); err != nil {
			t.Error(err)
		}
	})
}

func TestTheDelayOfARunIsBoundedAsItsNotBeforeIs(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		g, err := step.NewGraph([]step.Spec{fan("a", 1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		runs := fl.Store
		runs.Quota = &run.Quota{Ahead: time.Hour}
		_, _, with := fl.instances().Submit(t.Context(), runs, "with", run.Spec{Delay: 2 * time.Hour}, g)
		_, _, without := runs.Submit(t.Context(), "without", run.Spec{Delay: 2 * time.Hour})
		for name, err := range map[string]error{"a run with steps": with, "a run without steps": without} {
			if p := (*problem.Error)(nil); !errors.As(err, &p) || p.Code != problem.TooMany || p.Field != "delay" {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Whatever answers are lost or late, windows hold, no item is lost, and each succeeds
// once.
func TestNoFaultLosesAnItem(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				ref := fl.watchSteps()
				for i := range 4 {
					ref.most[fmt.Sprintf("r%d", i)] = 4
				}
				rnd := newDraws(seed)
				var fleet []*candidate
				for _, host := range []string{"one", "two"} {
					c := fl.candidate(host)
					c.by.Inject(rnd.fault)
					fleet = append(fleet, c)
				}
				for i := range 4 {
					id := fmt.Sprintf("r%d", i)
					fl.submitSteps(id, []step.Spec{
						fan("a", 7, 3, tries(20)), fan("b", 5, 2, tries(20)), fan("c", 3, 0, after("a", "b"), tries(20)),
					}, caps(4, 0))
				}
				hands := []*hand{fl.hand("x"), fl.hand("y"), fl.hand("z")}
				for range 80 {
					time.Sleep(time.Duration(rnd.draw(int64(2 * time.Second))))
					switch c := fleet[rnd.draw(2)]; rnd.draw(6) {
					case 0:
						c.by.Freeze()
					case 1:
						c.by.Down()
					default:
						c.by.Thaw()
						c.by.Up()
					}
					h := hands[rnd.draw(3)]
					h.work(rnd)
				}
				rnd.calm()
				for _, c := range fleet {
					c.by.Thaw()
					c.by.Up()
				}
				for range 300 {
					time.Sleep(time.Second)
					for _, h := range hands {
						h.work(rnd)
					}
				}
				for i := range 4 {
					fl.is(map[string]string{fmt.Sprintf("r%d", i): "succeeded"})
				}
				for id, n := range ref.runs {
					if n != 1 {
						t.Errorf("%s has succeeded %d times", id, n)
					}
				}
				if len(ref.runs) != 4*15 {
					t.Errorf("%d instances have succeeded, want 60", len(ref.runs))
				}
			})
		})
	}
}

// A run that has failed goes on where it was: what has succeeded is not run again.
func TestAFailedRunIsTriedAgain(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 3, 0), fan("b", 0, 0, after("a"))})
		fl.proceed()
		h.take(3)
		h.finish(step.Succeeded)
		h.finish(step.Failed)
		fl.proceed()
		if _, err := fl.instances().Retry(t.Context(), fl.Store, "r", ""); problem.CodeOf(err) != problem.RunNotEnded {
			t.Errorf("while one is being stopped: %v", err)
		}
		h.finish(step.Canceled)
		fl.is(map[string]string{"r": "failed"})
		if _, err := fl.instances().Retry(t.Context(), fl.Store, "r", ""); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"r": "running"})
		if got := fl.ready(); got != "a[1] a[2]" {
			t.Errorf("ready is %q", got)
		}
		h.take(2)
		h.finish(step.Succeeded)
		h.finish(step.Succeeded)
		fl.proceed()
		h.take(1)
		h.finish(step.Succeeded)
		fl.is(map[string]string{"r": "succeeded"})
		if _, err := fl.instances().Retry(t.Context(), fl.Store, "r", ""); problem.CodeOf(err) != problem.RunEnded {
			t.Errorf("one that has succeeded: %v", err)
		}
	})
}

func TestOneInstanceIsCanceled(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 4, 2, goOn)})
		fl.proceed()
		h.take(1)
		cancel := func(index int) error {
			_, err := fl.instances().Cancel(t.Context(), fl.Store, store.StepID{Run: "r", Step: "a", Index: index})
			return err
		}
		for index := range 4 { // running, published, requested, requested
			if err := cancel(index); err != nil {
				t.Errorf("a[%d]: %v", index, err)
			}
		}
		if got := fl.ready(); got != "" {
			t.Errorf("ready is %q", got)
		}
		fl.stepIs("r/a/000000", step.Running) // until its worker has stopped it
		h.finish(step.Canceled)
		fl.is(map[string]string{"r": "failed"})
		if err := cancel(9); problem.CodeOf(err) != problem.RunEnded {
			t.Errorf("of a run that has ended: %v", err)
		}
		fl.root.Do(func(e *storetest.Etcd) {
			for kv := range e.All(fl.keys.CanceledAll()) {
				if string(kv.Key) != fl.keys.Canceled("r") {
					t.Errorf("%s is left", kv.Key)
				}
			}
		})
	})
}
