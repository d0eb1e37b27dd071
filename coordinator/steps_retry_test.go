package coordinator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// retry has what is named tried again, or the whole run.
func (fl *fleet) retry(id string, names ...string) {
	fl.t.Helper()
	var which []step.Which
	for _, name := range names {
		w, err := step.ParseWhich(name)
		if err != nil {
			fl.t.Fatal(err)
		}
		which = append(which, w)
	}
	if _, err := fl.instances().Retry(fl.t.Context(), fl.Store, id, "by hand", which...); err != nil {
		fl.t.Fatal(err)
	}
}

// The window holds, and of those that wait the lowest index goes first, whether it was
// begun before or not.
func TestInstancesAreTriedAgainWhileTheirRunGoesOn(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.watchSteps().byHand = true
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("m", 6, 2, goOn), fan("then", 0, 0, after("m"))})
		fl.proceed()
		h.take(2)
		h.finish(step.Failed)
		h.finish(step.Failed)
		fl.proceed()
		fl.retry("r", "m[1]")
		fl.retry("r", "m")
		for _, want := range []string{
			"m[2] m[3]", "m[0]", "m[1]", "m[4]", "m[5]", "", "then[0]", "",
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

func TestAnInstanceOfAnEndedRunIsTriedAgain(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.watchSteps().byHand = true
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{
			fan("a", 2, 0, goOn), fan("b", 5, 3), fan("c", 0, 0, after("b")), fan("d", 0, 0, after("a")),
		})
		fl.proceed()
		h.take(5)
		h.finish(step.Failed)    // a[0]
		h.finish(step.Succeeded) // a[1]
		h.finish(step.Failed)    // b[0], which fails the run
		fl.proceed()
		h.finish(step.Succeeded) // b[1], which was about to end
		h.finish(step.Canceled)  // b[2], which was stopped
		fl.is(map[string]string{"r": "failed"})
		fl.retry("r", "b[0]")
		fl.proceed()
		if got := fl.ready(); got != "b[0] b[2] b[3]" {
			t.Errorf("ready is %q", got)
		}
		h.take(3)
		if h.has[0].Attempt != 1 {
			t.Errorf("it is attempt %d, and begins again", h.has[0].Attempt)
		}
		for range 3 {
			h.finish(step.Succeeded)
		}
		fl.proceed()
		h.take(1)
		h.finish(step.Succeeded) // b[4]
		fl.proceed()
		if got := fl.ready(); got != "c[0]" {
			t.Errorf("ready is %q", got)
		}
		h.take(1)
		h.finish(step.Succeeded)
		// The other step that failed has still failed, and what needs it was not begun.
		fl.is(map[string]string{"r": "failed"})
		if r, err := fl.Get(t.Context(), "r"); err != nil || r.Error != "step 'a' has failed: 1 of 2" || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		fl.retry("r", "a[0]")
		for range 2 { // and then d
			fl.proceed()
			h.take(1)
			h.finish(step.Succeeded)
		}
		fl.is(map[string]string{"r": "succeeded"})
	})
}

// What was published before its end and what is published after have one place in the
// queue: a worker that has seen the first can't take the second by it.
func TestAnOldPublicationIsNotTaken(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 1, 0, goOn), fan("b", 1, 0)})
		fl.proceed()
		old := fl.published()[0]
		h.take(1)
		late := h.has[0]
		h.finish(step.Failed)
		fl.proceed()
		fl.retry("r", "a")
		fl.proceed()
		by := run.Executor{Host: "y", Instance: "worker"}
		if _, err := fl.instances().Take(t.Context(), old, by, h.lease); problem.CodeOf(err) != problem.StepTaken {
			t.Errorf("it is taken by an old publication: %v", err)
		}
		if _, err := fl.instances().Finish(t.Context(), late, step.Outcome{Status: step.Succeeded}, nil); problem.CodeOf(err) != problem.StepLost {
			t.Errorf("it is finished by an attempt before: %v", err)
		}
		h.take(1)
		if h.has[0].Step != "a" || h.has[0].Revision <= late.Revision {
			t.Errorf("%+v after %d", h.has[0], late.Revision)
		}
		h.finish(step.Succeeded)
	})
}

// lagging is a client whose watch of the steps is another one's, which can be frozen by
// itself: watches are not ordered against each other.
type lagging struct {
	*storetest.Backend
	steps  string
	behind *storetest.Backend
}

func (b *lagging) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	if keys == store.Prefix(b.steps) {
		return b.behind.Watch(ctx, keys, from)
	}
	return b.Backend.Watch(ctx, keys, from)
}

// lags has the leader's watch of the steps be one by itself.
func (fl *fleet) lags() (steps *storetest.Backend, change func(*Config)) {
	steps = fl.root.Peer()
	fl.t.Cleanup(steps.Close)
	return steps, func(c *Config) {
		c.Backend = &lagging{c.Backend.(*storetest.Backend), fl.keys.StepsAll(), steps}
	}
}

// The leader knows that the run is queued again before it knows that what had failed was
// requested again.
func TestALeaderThatKnowsOfARetryByHalfDoesNotEndTheRun(t *testing.T) {
	for name, names := range map[string][]string{"all of it": nil, "an instance": {"a[0]"}} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				fl.watchSteps().byHand = true
				steps, change := fl.lags()
				fl.candidate("one", change)
				h := fl.hand("x")
				fl.submitSteps("r", []step.Spec{fan("a", 2, 1)})
				fl.proceed()
				h.take(1)
				h.finish(step.Failed)
				fl.is(map[string]string{"r": "failed"})
				steps.Freeze()
				fl.retry("r", names...)
				fl.is(map[string]string{"r": "not_started"})
				steps.Thaw()
				fl.is(map[string]string{"r": "running"})
				if got := fl.ready(); got != "a[0]" {
					t.Errorf("ready is %q", got)
				}
			})
		})
	}
}

// An end that was decided on while an instance had failed is under way, and comes after
// the instance was requested again.
func TestAnEndThatComesAfterARetryIsNone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.watchSteps().byHand = true
		one := fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 1, 0, goOn), fan("b", 1, 0)})
		fl.proceed()
		h.take(2)
		h.finish(step.Failed)
		fl.proceed()
		held := one.delaysFirstWrite(fl.keys.Run("r"))
		h.finish(step.Succeeded)
		time.Sleep(writeTimeout / 2)
		fl.retry("r", "a[0]")
		time.Sleep(writeTimeout)
		if !*held {
			t.Error("no end was under way")
		}
		fl.is(map[string]string{"r": "running"})
		if h.take(1); len(h.has) == 0 {
			t.Fatal("it can't be taken")
		}
		h.finish(step.Succeeded)
		fl.is(map[string]string{"r": "succeeded"})
	})
}

// An end that was decided on before a restore of etcd is under way, and comes after it. The snapshot is
// newer than the last write of the leader, and older than the success that the leader knows of.
func TestAnEndThatComesAfterARestoreIsNone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.watchSteps().byHand = true
		one := fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 1, 0)})
		fl.proceed()
		h.take(1)
		fl.proceed()
		held := one.delaysFirstWrite(fl.keys.Run("r"))
		var saved *storetest.Saved
		fl.root.Do(func(e *storetest.Etcd) { saved = e.Save() })
		h.finish(step.Succeeded)
		time.Sleep(writeTimeout / 2)
		fl.root.Do(func(e *storetest.Etcd) { e.Restore(saved, 1000) })
		time.Sleep(writeTimeout)
		if !*held {
			t.Error("no end was under way")
		}
		fl.is(map[string]string{"r": "running"})
	})
}

// A run was canceled when all of it had succeeded, and before that was its end.
func TestARunOfWhichAllHasSucceededIsTriedAgain(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		one := fl.candidate("one")
		h := fl.hand("x")
		fl.submitSteps("r", []step.Spec{fan("a", 1, 0)})
		fl.proceed()
		h.take(1)
		one.stop()
		h.finish(step.Succeeded)
		if _, err := fl.Cancel(t.Context(), "r", "", false); err != nil {
			t.Fatal(err)
		}
		fl.candidate("two")
		fl.retry("r")
		fl.is(map[string]string{"r": "succeeded"})
	})
}

// operate does something that an operator does, through a client that answers get lost of.
func (fl *fleet) operate(by *storetest.Backend, rnd *draws, id string) {
	s, runs := fl.instances(), fl.Store
	s.Backend, runs.Backend = by, by
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w := step.Which{Step: []string{"a", "b", "c"}[rnd.draw(3)], Index: int(rnd.draw(3))}
	var err error
	switch rnd.draw(5) {
	case 0:
		_, err = s.Cancel(ctx, runs, store.StepID{Run: id, Step: w.Step, Index: w.Index})
	case 1:
		_, err = s.Retry(ctx, runs, id, "")
	case 2:
		w.Index = step.Every
		fallthrough
	default:
		_, err = s.Retry(ctx, runs, id, "", w)
	}
	refused := []problem.Code{problem.EtcdUnavailable, problem.RunEnded, problem.RunNotEnded, problem.StepEnded}
	if err != nil && !slices.Contains(refused, problem.CodeOf(err)) {
		fl.t.Errorf("%s of %s: %v", w, id, err)
	}
}

// Whatever answers are lost or late, and whatever watch lags: windows hold, a run does not
// fail because of what was requested again, no item is lost, and each succeeds once.
func TestNoFaultSpoilsARetry(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				ref := fl.watchSteps()
				ref.byHand = true
				ids := []string{"r0", "r1", "r2"}
				for _, id := range ids {
					ref.most[id] = 4
				}
				rnd := newDraws(seed)
				var watches []*storetest.Backend
				for _, host := range []string{"one", "two"} {
					steps, change := fl.lags()
					c := fl.candidate(host, change)
					c.by.Inject(rnd.fault)
					watches = append(watches, c.by, steps)
				}
				operator := fl.root.Peer()
				t.Cleanup(operator.Close)
				operator.Inject(rnd.fault)
				for _, id := range ids {
					fl.submitSteps(id, []step.Spec{
						fan("a", 5, 2, goOn), fan("b", 4, 2, tries(1)), fan("c", 3, 0, after("a"), goOn),
					}, caps(4, 0))
				}
				hands := []*hand{fl.hand("x"), fl.hand("y")}
				for range 120 {
					time.Sleep(time.Duration(rnd.draw(int64(time.Second))))
					switch w := watches[rnd.draw(4)]; rnd.draw(3) {
					case 0:
						w.Freeze()
					default:
						w.Thaw()
					}
					hands[rnd.draw(2)].work(rnd)
					if rnd.draw(2) == 0 {
						fl.operate(operator, rnd, ids[rnd.draw(3)])
					}
				}
				rnd.calm()
				for _, w := range watches {
					w.Thaw()
				}
				for _, h := range hands {
					h.sure = true
				}
				for range 200 {
					time.Sleep(time.Second)
					for _, h := range hands {
						h.work(rnd)
					}
					for _, id := range ids {
						if r, err := fl.Get(t.Context(), id); err == nil && (r.Status == run.Failed || r.Status == run.Canceled) {
							_, _ = fl.instances().Retry(t.Context(), fl.Store, id, "") // what is being stopped is waited for
						}
					}
				}
				for _, id := range ids {
					fl.is(map[string]string{id: "succeeded"})
				}
				for id, n := range ref.runs {
					if n != 1 {
						t.Errorf("%s has succeeded %d times", id, n)
					}
				}
				if len(ref.runs) != 3*12 {
					t.Errorf("%d instances have succeeded, want 36", len(ref.runs))
				}
				fl.nothingLeft(fl.keys.CanceledAll())
			})
		})
	}
}
