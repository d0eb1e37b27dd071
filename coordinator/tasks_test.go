package coordinator

import (
	"strconv"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
)

// ofTask has a step declare the limit of the task t; below -1, it only names the task.
func ofTask(limit int) func(*step.Spec) {
	return func(s *step.Spec) {
		if s.Task.Name = "t"; limit >= pool.Unlimited {
			s.Task.Limit = &limit
		}
	}
}

// runTask submits a run with one step of the task t.
func (fl *fleet) runTask(id string, limit int) {
	fl.t.Helper()
	fl.submitSteps(id, []step.Spec{fan("m", 1, 0, ofTask(limit))})
	fl.proceed()
}

// endTask ends the first instance that can be taken, and with it its run.
func (fl *fleet) endTask(as step.Status) {
	fl.t.Helper()
	h := fl.hand("x")
	h.take(1)
	h.finish(as)
	fl.proceed()
}

// limitOfTask is the limit of the pool of the task t after some time; empty if there is none.
func (fl *fleet) limitOfTask() string {
	fl.t.Helper()
	time.Sleep(5 * taskEvery)
	fl.proceed()
	all, err := list.Read(fl.t.Context(), fl.root, fl.keys)
	if err != nil {
		fl.t.Fatal(err)
	}
	for _, p := range all.Pools() {
		if p.Name == "task.t" {
			return strconv.Itoa(p.Limit)
		}
	}
	return ""
}

// deleteUnused does what a leader does that knows of no unfinished run at a revision.
func (fl *fleet) deleteUnused(at int64) (names []string) {
	fl.t.Helper()
	names, err := fl.instances().DeleteUnusedTasks(fl.t.Context(), step.TaskUse{Before: at + 1})
	if err != nil {
		fl.t.Error(err)
	}
	return names
}

func TestThePoolOfATaskGoesWithTheLastRunThatUsesIt(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		for round := range 2 {
			fl.runTask("first"+strconv.Itoa(round), 2)
			fl.runTask("second"+strconv.Itoa(round), 2)
			fl.runTask("third"+strconv.Itoa(round), -2)
			for range 2 {
				fl.endTask(step.Succeeded)
				if got := fl.limitOfTask(); got != "2" {
					t.Fatalf("while runs use the pool, its limit is %q", got)
				}
			}
			fl.endTask(step.Failed)
			if got := fl.limitOfTask(); got != "" {
				t.Fatalf("after all runs, the limit of the pool is %q", got)
			}
			fl.nothingLeft(fl.keys.Pools())
			fl.nothingLeft(fl.keys.Tasks())
		}
		fl.runTask("another", 3)
		if got := fl.limitOfTask(); got != "3" {
			t.Errorf("of a later run, the limit of the pool is %q", got)
		}
	})
}

func TestThePoolOfATaskStaysIfItIsAnOperatorsOrInUse(t *testing.T) {
	for name, tc := range map[string]struct {
		before, during func(fl *fleet) // the run that declares the limit
		after          func(fl *fleet) // deletes what keeps the pool; nil if it is the operator's
	}{
		"created by an operator": {before: func(fl *fleet) { fl.pool("task.t", 2) }},
		"changed by an operator": {during: func(fl *fleet) {
			fl.pool("task.t", 2, func(ch *pool.Change) { ch.Paused = new(bool); *ch.Paused = true })
			fl.pool("task.t", 2, func(ch *pool.Change) { ch.Paused = new(bool) })
		}},
		"deleted and created by an operator": {during: func(fl *fleet) {
			if _, err := fl.pools().Delete(fl.t.Context(), "task.t", nil); err != nil {
				fl.t.Fatal(err)
			}
			fl.pool("task.t", 2)
			fl.runTask("other", 2)
			fl.endTask(step.Succeeded)
		}},
		"with a claim": {
			during: func(fl *fleet) { fl.put(fl.keys.Slots("task.t")+"000001", "{}") },
			after:  func(fl *fleet) { fl.txn(store.Delete(fl.keys.Slots("task.t") + "000001")) },
		},
		"with a waiting claim": {
			during: func(fl *fleet) { fl.put(fl.keys.Pool("task.t")+"demands/h/i/1", "{}") },
			after:  func(fl *fleet) { fl.txn(store.Delete(fl.keys.Pool("task.t") + "demands/h/i/1")) },
		},
		"of a run that takes its slots": {
			during: func(fl *fleet) { fl.submit("late", needs("task.t", 1), in(time.Hour)) },
			after: func(fl *fleet) {
				if _, err := fl.Cancel(fl.t.Context(), "late", "", false); err != nil {
					fl.t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				fl.candidate("one")
				if tc.before != nil {
					tc.before(fl)
				}
				fl.runTask("r", 2)
				if tc.during != nil {
					tc.during(fl)
				}
				fl.endTask(step.Succeeded)
				if got := fl.limitOfTask(); got != "2" {
					t.Errorf("the limit of the pool is %q", got)
				}
				if tc.after == nil {
					fl.nothingLeft(fl.keys.Tasks())
					return
				}
				tc.after(fl)
				if got := fl.limitOfTask(); got != "" {
					t.Errorf("later, the limit of the pool is %q", got)
				}
			})
		})
	}
}

// A run that declares a limit has it, at whichever transaction of its submission the pool would be
// deleted, and whether the leader knows of the run by then.
func TestARunThatIsSubmittedWhileThePoolIsDeletedHasItsLimit(t *testing.T) {
	for at := 1; at <= 3; at++ {
		inFleet(t, func(t *testing.T, fl *fleet) {
			one := fl.candidate("one")
			fl.runTask("first", 2)
			fl.endTask(step.Succeeded)
			one.stop() // this test deletes the pool itself
			before := fl.revision()
			by := fl.root.Peer()
			defer by.Close()
			txns, deleted := 0, 0
			by.Inject(func(c storetest.Call) storetest.Fault {
				if c.Op == storetest.OpTxn {
					if txns++; txns == at {
						deleted = len(fl.deleteUnused(before))
					}
				}
				return storetest.Fault{}
			})
			s, runs := fl.instances(), fl.Store
			s.Backend, runs.Backend = by, by
			g, err := step.NewGraph([]step.Spec{fan("m", 1, 0, ofTask(2))})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Submit(t.Context(), runs, "second", run.Spec{}, g); err != nil {
				t.Fatal(err)
			}
			if first := at == 1; (deleted > 0) != first || txns < at {
				t.Errorf("at transaction %d of %d, %d pools were deleted", at, txns, deleted)
			}
			fl.candidate("two")
			if got := fl.limitOfTask(); got != "2" {
				t.Errorf("at transaction %d: the limit of the pool is %q", at, got)
			}
			fl.endTask(step.Succeeded)
			if got := fl.limitOfTask(); got != "" {
				t.Errorf("at transaction %d: after the run, the limit of the pool is %q", at, got)
			}
		})
	}
}

// The leader knows of no run, reads the key of the task, and then the run is submitted.
func TestARunThatIsSubmittedJustBeforeThePoolIsDeletedHasItsLimit(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		one := fl.candidate("one")
		fl.runTask("first", 2)
		fl.endTask(step.Succeeded)
		one.stop()
		by := fl.root.Peer()
		defer by.Close()
		by.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpTxn {
				fl.submitSteps("second", []step.Spec{fan("m", 1, 0, ofTask(2))})
			}
			return storetest.Fault{}
		})
		s := fl.instances()
		s.Backend = by
		if deleted, err := s.DeleteUnusedTasks(t.Context(), step.TaskUse{Before: fl.revision() + 1}); err != nil || len(deleted) > 0 {
			t.Errorf("deleted %q, %v", deleted, err)
		}
		fl.candidate("two")
		if got := fl.limitOfTask(); got != "2" {
			t.Errorf("the limit of the pool is %q", got)
		}
	})
}

// The graph of a run that is being stored may not be known, or be that of an earlier run with the
// same id.
func TestThePoolOfATaskStaysWhileARunIsStored(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		inFleet(t, func(t *testing.T, fl *fleet) {
			g, err := step.NewGraph([]step.Spec{fan("m", 1, 0, ofTask(2))})
			if err != nil {
				t.Fatal(err)
			}
			if earlier {
				other, err := step.NewGraph([]step.Spec{fan("m", 1, 0)})
				if err != nil {
					t.Fatal(err)
				}
				fl.put(fl.keys.Graph("r"), string(other.Encode()))
			}
			fl.pool("other", 1) // the version of the layout is there
			by := fl.root.Peer()
			defer by.Close()
			txns := 0
			by.Inject(func(c storetest.Call) storetest.Fault {
				if c.Op == storetest.OpTxn {
					txns++
				}
				return storetest.Fault{Drop: c.Op == storetest.OpTxn && txns > 1}
			})
			s, runs := fl.instances(), fl.Store
			s.Backend, runs.Backend = by, by
			if _, _, err := s.Submit(t.Context(), runs, "r", run.Spec{}, g); problem.CodeOf(err) != problem.EtcdUnavailable {
				t.Fatal(err)
			}
			fl.candidate("one")
			if got := fl.limitOfTask(); got != "2" {
				t.Errorf("while the run is stored, the limit of the pool is %q", got)
			}
			time.Sleep(storingFor + 2*sweepEvery) // its submission was abandoned
			if got := fl.limitOfTask(); got != "" {
				t.Errorf("without the run, the limit of the pool is %q", got)
			}
		})
	}
}

// An operator may have set another limit since.
func TestARunThatIsRetriedHasItsLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(fl *fleet)
		want      string
	}{
		"the pool was deleted":            {func(*fleet) {}, "2"},
		"an operator sets another limit":  {func(fl *fleet) { fl.pool("task.t", 5) }, "5"},
		"another run declares another":    {func(fl *fleet) { fl.runTask("other", 4) }, "4"},
		"another run declares the same":   {func(fl *fleet) { fl.runTask("other", 2) }, "2"},
		"its pool is deleted at the time": {nil, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				one := fl.candidate("one")
				fl.runTask("r", 2)
				fl.endTask(step.Failed)
				by := fl.root.Peer()
				defer by.Close()
				if tc.meanwhile != nil {
					if got := fl.limitOfTask(); got != "" {
						t.Fatalf("before the retry, the limit of the pool is %q", got)
					}
					tc.meanwhile(fl)
				} else {
					one.stop()
					at, txns := fl.revision(), 0
					by.Inject(func(c storetest.Call) storetest.Fault {
						if c.Op == storetest.OpTxn {
							if txns++; txns == 2 && len(fl.deleteUnused(at)) != 1 {
								t.Error("the pool was not deleted")
							}
						}
						return storetest.Fault{}
					})
				}
				s, runs := fl.instances(), fl.Store
				s.Backend, runs.Backend = by, by
				if _, err := s.Retry(t.Context(), runs, "r", ""); err != nil {
					t.Fatal(err)
				}
				before := fl.revision()
				if tc.want != "5" && len(fl.deleteUnused(before-1)) > 0 {
					t.Error("a leader that does not know of the retry deletes the pool")
				}
				if tc.meanwhile == nil {
					fl.candidate("two")
				}
				if got := fl.limitOfTask(); got != tc.want {
					t.Errorf("after the retry, the limit of the pool is %q, want %q", got, tc.want)
				}
			})
		})
	}
}
