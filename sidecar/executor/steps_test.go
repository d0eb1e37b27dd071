package executor

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// published submits a run with one step of one instance, and publishes it as the
// coordinator would.
func (s *stage) published(runID string, change ...func(*step.Spec)) store.StepID {
	s.t.Helper()
	spec := step.Spec{Name: "x", External: true}
	for _, f := range change {
		f(&spec)
	}
	g, err := step.NewGraph([]step.Spec{spec})
	if err != nil {
		s.t.Fatal(err)
	}
	r, _, err := s.steps.Submit(s.t.Context(), s.runs, runID, run.Spec{}, g)
	if err != nil {
		s.t.Fatal(err)
	}
	id := store.StepID{Run: runID, Step: "x"}
	rec := step.Record{Status: step.Requested}.Publish(time.Now())
	ready := step.Ready{Run: runID, Step: "x", External: spec.External, Task: spec.Task.Name, ScheduledAt: rec.ScheduledAt}
	key := s.runs.Keys.Ready(step.DefaultQueue) + step.OrderOf(0, r.Created, 0, 0, runID)
	admitted := r.Record
	admitted.Status = run.NotStarted
	if _, err := store.Commit(s.t.Context(), s.backend.Peer(), nil, store.Put(s.runs.Keys.Run(runID), admitted.Encode(), 0),
		store.Put(s.runs.Keys.Step(id), rec.Encode(), 0), store.Put(key, ready.Encode(), 0)); err != nil {
		s.t.Fatal(err)
	}
	return id
}

func (s *stage) takeOne(id store.StepID, name string, ttl time.Duration) *Executor {
	s.t.Helper()
	e, err := s.Take(s.ctx(), id, name, ttl, Waiter{})
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// now is an instance as its record says.
func (s *stage) now(id store.StepID) *step.Instance {
	s.t.Helper()
	i, err := step.Store{Backend: s.backend.Peer(), Keys: s.runs.Keys}.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func (s *stage) cancelRun(id string) {
	s.t.Helper()
	if _, err := s.runs.Cancel(s.t.Context(), id, "", false); err != nil {
		s.t.Fatal(err)
	}
}

func TestAStepInstanceIsLostWithItsTTL(t *testing.T) {
	onStage(t, func(s *stage) {
		silent, beating := s.published("a"), s.published("b")
		lost, kept := s.takeOne(silent, "", MinTTL), s.takeOne(beating, "", MinTTL)
		pass(MinTTL - grace.CheckInterval)
		s.wantBeat(beating.String(), kept.fence, "")
		pass(3 * grace.CheckInterval)
		s.wantBeat(silent.String(), lost.fence, problem.StepLost)
		s.wantBeat(beating.String(), kept.fence, "")
		if s.alive(silent.String()) || !s.alive(beating.String()) || s.reserved() != 1 {
			t.Errorf("the silent one lives: %t, the other: %t, with %d reservations", s.alive(silent.String()), s.alive(beating.String()), s.reserved())
		}
		if i := s.now(silent); i.Status != step.Running {
			t.Errorf("%+v: it is the coordinator's to take it", i)
		}
	})
}

func TestAnAttemptThatTakesTooLongHasFailed(t *testing.T) {
	onStage(t, func(s *stage) {
		id := s.published("a", func(sp *step.Spec) { sp.Timeout = step.Duration(time.Minute) })
		e := s.takeOne(id, "", 0)
		pass(time.Minute - grace.CheckInterval)
		s.wantBeat(id.String(), e.fence, "")
		pass(3 * grace.CheckInterval)
		s.wantBeat(id.String(), e.fence, problem.StepLost)
		if i := s.now(id); i.Status != step.Running {
			t.Errorf("%+v before its executor could stop", i)
		}
		pass(pool.RevokeGrace + grace.CheckInterval)
		if i := s.now(id); i.Status != step.Failed || i.Error != "it took longer than 1m0s" || s.alive(id.String()) || s.reserved() != 0 {
			t.Errorf("%+v, %d reservations", i, s.reserved())
		}
	})
}

func TestAFinishCountsWhileTheExecutorIsToStop(t *testing.T) {
	onStage(t, func(s *stage) {
		id := s.published("a", func(sp *step.Spec) { sp.Timeout = step.Duration(time.Minute) })
		e := s.takeOne(id, "", 0)
		pass(time.Minute + grace.CheckInterval)
		r, err := s.steps.Raw(s.t.Context(), id)
		if err == nil {
			_, err = s.steps.FinishAttempt(s.t.Context(), r, e.fence, step.Outcome{Status: step.Succeeded})
		}
		if err != nil {
			t.Fatal(err)
		}
		pass(pool.RevokeGrace + grace.CheckInterval)
		if i := s.now(id); i.Status != step.Succeeded || s.Count() != 0 || s.reserved() != 0 {
			t.Errorf("%+v, %d executors", i, s.Count())
		}
	})
}

func TestExecutorsOfACanceledRunHaveToStop(t *testing.T) {
	onStage(t, func(s *stage) {
		timed, untimed := s.published("a"), s.published("b")
		e, silent := s.takeOne(timed, "", time.Minute), s.takeOne(untimed, "", 0)
		s.cancelRun("a")
		s.cancelRun("b")
		s.wantBeat(timed.String(), e.fence, problem.RunEnded)
		pass(40 * time.Second)
		s.wantBeat(timed.String(), e.fence, problem.RunEnded)
		if !s.alive(timed.String()) {
			t.Error("it had no time to stop")
		}
		if s.alive(untimed.String()) {
			t.Error("the untimed one lives")
		}
		s.wantBeat(untimed.String(), silent.fence, problem.RunEnded)
		pass(21 * time.Second) // a heartbeat does not give it more time
		if s.alive(timed.String()) || s.reserved() != 0 {
			t.Errorf("it lives still, with %d reservations", s.reserved())
		}
	})
}

func TestAnInstanceThatIsCanceledByItselfHasToStop(t *testing.T) {
	onStage(t, func(s *stage) {
		id, other := s.published("a"), s.published("b")
		e, kept := s.takeOne(id, "", time.Minute), s.takeOne(other, "", time.Minute)
		if _, err := s.steps.Cancel(s.t.Context(), s.runs, id); err != nil {
			t.Fatal(err)
		}
		s.wantBeat(id.String(), e.fence, problem.StepEnded)
		s.wantBeat(other.String(), kept.fence, "")
		if !s.alive(id.String()) {
			t.Error("it had no time to stop")
		}
		r, err := s.steps.Raw(s.t.Context(), id)
		if err == nil {
			_, err = s.steps.FinishAttempt(s.t.Context(), r, e.fence, step.Outcome{Status: step.Canceled})
		}
		if i := s.now(id); err != nil || i.Status != step.Canceled {
			t.Errorf("%+v, %v", i, err)
		}
		s.wantBeat(id.String(), e.fence, problem.StepEnded)
		if s.Count() != 1 || s.reserved() != 1 {
			t.Errorf("%d executors, %d reservations", s.Count(), s.reserved())
		}
	})
}

// A claim can be granted in the moment in which who waits for it hangs up.
func TestWhatIsTakenForNobodyIsPutBack(t *testing.T) {
	onStage(t, func(s *stage) {
		id := s.published("a", func(sp *step.Spec) { sp.Task.Name = "resize" })
		s.hasPool = func(name string) bool { return name == "task.resize" }
		s.claim = func(ctx context.Context, slots instance.Slots, opts ...instance.ClaimOption) (*instance.Claim, error) {
			var r pool.Request
			for _, o := range opts {
				o(&r)
			}
			if slots["task.resize"] != 1 || r.Holder.Bind != run.BindStep || r.Holder.Step != "x[0]" {
				t.Errorf("%v for %+v", slots, r.Holder)
			}
			ops := r.Extra.Then
			for _, op := range r.Extra.Leased {
				put := op.GetRequestPut()
				ops = append(ops, store.Put(string(put.Key), put.Value, s.lease))
			}
			if _, err := store.Commit(ctx, s.backend, r.Extra.If, ops...); err != nil {
				t.Error(err)
			}
			return nil, problem.New(problem.ClaimCanceled, "it was withdrawn")
		}
		if _, err := s.Take(s.ctx(), id, "me", time.Minute, Waiter{}); problem.CodeOf(err) != problem.ClaimCanceled {
			t.Fatal(err)
		}
		r, err := s.steps.Raw(s.t.Context(), id)
		if err != nil || r.Status != step.Scheduled || r.Published == nil || r.Attempt != 0 || s.alive(id.String()) || s.Count() != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		s.hasPool = func(string) bool { return false }
		if e := s.takeOne(id, "you", time.Minute); e.step.Attempt != 1 {
			t.Errorf("%+v", e.step)
		}
	})
}

func TestAWaitForAQueueEndsWithWhatExecutorsCanTake(t *testing.T) {
	onStage(t, func(s *stage) {
		type answer struct {
			found []*step.Published
			err   error
		}
		await := func(ctx context.Context) <-chan answer {
			ended := make(chan answer, 1)
			go func() {
				ready := func(ctx context.Context) (Found, error) { return Ready(ctx, s.steps, step.DefaultQueue, 10) }
				found, err := ready(ctx)
				if err == nil && len(found.Items) == 0 {
					found, err = AwaitReady(ctx, s.steps, s.log, step.DefaultQueue, found, time.Minute, ready)
				}
				ended <- answer{found.Items, err}
			}()
			synctest.Wait()
			return ended
		}
		first := await(s.t.Context())
		s.published("worker", func(sp *step.Spec) { sp.External, sp.Shell = false, "true" })
		pass(time.Second)
		if len(first) > 0 {
			t.Fatalf("it has ended with what is for workers: %+v", <-first)
		}
		id := s.published("a")
		if got := <-first; got.err != nil || len(got.found) != 1 || got.found[0].Run != "a" {
			t.Errorf("%+v", got)
		}
		s.takeOne(id, "", time.Hour)
		begun := time.Now()
		if got := <-await(s.t.Context()); got.err != nil || len(got.found) != 0 || time.Since(begun) != time.Minute {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}
		gone, cancel := context.WithCancel(s.t.Context())
		last := await(gone)
		cancel()
		if got := <-last; got.err == nil {
			t.Errorf("%+v", got)
		}
	})
}

// TestATakeWithAnUnknownOutcomeIsResolved loses the answer to a take, or the take, and checks what
// becomes of it.
func TestATakeWithAnUnknownOutcomeIsResolved(t *testing.T) {
	for name, tc := range map[string]struct {
		fault storetest.Fault
		after func(s *stage, id store.StepID)
		alive bool
	}{
		"made, and asked for again by the same executor": {
			fault: storetest.Fault{LoseAnswer: true},
			after: func(s *stage, id store.StepID) {
				e := s.takeOne(id, "me", time.Hour)
				pass(MinTTL + 2*resolveEvery)
				s.wantBeat(id.String(), e.fence, "")
			},
			alive: true,
		},
		"made, and the executor knows its fence": {
			fault: storetest.Fault{LoseAnswer: true},
			after: func(s *stage, id store.StepID) { s.wantBeat(id.String(), s.now(id).Fence(), "") },
			alive: true,
		},
		"made, and not requested again": {
			fault: storetest.Fault{LoseAnswer: true},
			after: func(*stage, store.StepID) { pass(MinTTL + 2*resolveEvery) },
		},
		"never made, and another takes it": {
			fault: storetest.Fault{Drop: true},
			after: func(s *stage, id store.StepID) {
				pass(10 * resolveEvery)
				if s.reserved() != 1 {
					s.t.Error("it may still come, and its reservation is gone")
				}
				s.takeOne(id, "you", time.Hour)
				pass(2 * resolveEvery)
			},
			alive: true,
		},
		"never made: the run is canceled": {
			fault: storetest.Fault{Drop: true},
			after: func(s *stage, id store.StepID) {
				s.cancelRun(id.Run)
				pass(2 * resolveEvery)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(s *stage) {
				id := s.published("a")
				var met atomic.Bool
				s.backend.Inject(func(c storetest.Call) storetest.Fault {
					if c.Op == storetest.OpTxn && writes(c.Txn, s.runs.Keys.ActiveAll()) && met.CompareAndSwap(false, true) {
						return tc.fault
					}
					return storetest.Fault{}
				})
				if _, err := s.Take(s.ctx(), id, "me", MinTTL, Waiter{}); problem.CodeOf(err) != problem.EtcdUnavailable {
					t.Fatal(err)
				}
				tc.after(s, id)
				want := 0
				if tc.alive {
					want = 1
				}
				s.Executors.mu.Lock()
				pending := len(s.pending)
				s.Executors.mu.Unlock()
				if s.alive(id.String()) != tc.alive || s.Count() != want || s.reserved() != want || pending != 0 {
					t.Errorf("alive is %t, with %d executors and %d reservations, %d pending", s.alive(id.String()), s.Count(), s.reserved(), pending)
				}
			})
		})
	}
}

// writes reports whether a transaction puts a key under a prefix.
func writes(txn *pb.TxnRequest, prefix string) bool {
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil && strings.HasPrefix(string(put.Key), prefix) {
			return true
		}
		if nested := op.GetRequestTxn(); nested != nil && writes(nested, prefix) {
			return true
		}
	}
	return false
}
