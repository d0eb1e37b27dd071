package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// stage is the executors of a server on a stand-in for etcd, in a bubble. Their
// clock is that of the bubble.
type stage struct {
	*Executors
	t       *testing.T
	backend *storetest.Backend
	lease   store.LeaseID
	begun   time.Time
	valid   time.Duration // that reservations answer

	mu           sync.Mutex
	reservations map[*stageReservation]bool // not released
}

// Now is the time of the bubble.
func (s *stage) Now() time.Duration { return time.Since(s.begun) + time.Hour }

type stageReservation struct {
	stage *stage
	ctx   context.Context
	end   context.CancelCauseFunc
}

func (r *stageReservation) Lease() store.LeaseID              { return r.stage.lease }
func (r *stageReservation) Context() context.Context          { return r.ctx }
func (r *stageReservation) ValidFor() (left, _ time.Duration) { return r.stage.valid, 10 * time.Second }
func (r *stageReservation) Release() {
	r.stage.mu.Lock()
	defer r.stage.mu.Unlock()
	delete(r.stage.reservations, r)
}

func (s *stage) newReservation() *stageReservation {
	r := &stageReservation{stage: s}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reservations[r] = true
	return r
}

func (s *stage) reserved() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reservations)
}

// onStage runs a test in a bubble.
func onStage(t *testing.T, f func(*stage)) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := store.NewKeys("/berth/")
		s := &stage{t: t, backend: b, begun: time.Now(), valid: time.Hour, reservations: map[*stageReservation]bool{}}
		var err error
		if s.lease, _, err = b.Grant(t.Context(), 1000*time.Hour); err != nil {
			t.Fatal(err)
		}
		s.Executors = &Executors{
			log: hclog.NewNullLogger(), metrics: NewMetrics(nil), host: "one", instance: "sidecar",
			runs:    run.Store{Backend: b, Keys: keys, Journal: run.NewJournal(b, keys, "one/sidecar", 0)},
			steps:   step.Store{Backend: b, Keys: keys, Journal: run.NewJournal(b, keys, "one/sidecar", 0), Group: &store.Group{}},
			reserve: func(context.Context) (reservation, error) { return s.newReservation(), nil },
			renews:  func(id store.LeaseID) bool { return id == s.lease },
		}
		s.clock = s
		s.init()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx)
		}()
		f(s)
		b.Inject(nil)
		cancel()
		<-done
		s.Leave()
	})
}

// admitted submits a run and admits it.
func (s *stage) admitted(id string) {
	s.t.Helper()
	r, _, err := s.runs.Submit(s.t.Context(), id, run.Spec{Retries: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	rec, _ := r.Record.Admit("", time.Now())
	s.put(id, rec)
}

func (s *stage) put(id string, rec run.Record) {
	s.t.Helper()
	if _, err := store.Commit(s.t.Context(), s.backend.Peer(), nil, store.Put(s.runs.Keys.Run(id), rec.Encode(), 0)); err != nil {
		s.t.Fatal(err)
	}
}

// ctx is that of the requests of an administrator.
func (s *stage) ctx() context.Context { return accesstest.As(s.t.Context(), accesstest.Admin) }

func (s *stage) begin(id, name string, ttl time.Duration) *Executor {
	s.t.Helper()
	e, err := s.Start(s.ctx(), id, name, ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// alive reports whether the key of a run is there.
func (s *stage) alive(id string) bool {
	s.t.Helper()
	resp, err := s.backend.Peer().Range(s.t.Context(), &pb.RangeRequest{Key: []byte(s.runs.Keys.ActiveRun("one", id))})
	if err != nil {
		s.t.Fatal(err)
	}
	return len(resp.Kvs) == 1
}

func (s *stage) wantBeat(id string, fence store.Fence, code problem.Code) {
	s.t.Helper()
	_, err := s.Heartbeat(s.ctx(), id, fence)
	if code == "" && err != nil || code != "" && problem.CodeOf(err) != code {
		s.t.Errorf("a heartbeat for %s: %v, want %q", id, err, code)
	}
}

// pass lets time pass, and then everything come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAnExecutorThatIsSilentForItsTTLIsLost(t *testing.T) {
	onStage(t, func(s *stage) {
		fences := map[string]store.Fence{}
		for id, ttl := range map[string]time.Duration{"silent": time.Minute, "beating": time.Minute, "untimed": 0, "short": MinTTL} {
			s.admitted(id)
			fences[id] = s.begin(id, "", ttl).fence
		}
		pass(MinTTL - grace.CheckInterval)
		if !s.alive("short") {
			t.Error("the short one is lost before its time")
		}
		pass(3 * grace.CheckInterval)
		if s.alive("short") || !s.alive("silent") {
			t.Error("the short one is alive, or another one is not")
		}
		pass(40 * time.Second)
		s.wantBeat("beating", fences["beating"], "")
		pass(40 * time.Second)
		for id, want := range map[string]bool{"silent": false, "beating": true, "untimed": true} {
			if s.alive(id) != want {
				t.Errorf("%s: alive is %t", id, !want)
			}
		}
		s.wantBeat("silent", fences["silent"], problem.RunLost)
		s.wantBeat("short", fences["short"], problem.RunLost)
		if _, err := s.Start(s.ctx(), "silent", "again", time.Minute); problem.CodeOf(err) != problem.RunTaken {
			t.Error(err) // the coordinator has not seen it
		}
		pass(24 * time.Hour)
		s.wantBeat("untimed", fences["untimed"], "")
		s.wantBeat("beating", fences["beating"], problem.RunLost)
		if n := s.reserved(); n != 1 {
			t.Errorf("%d reservations are taken, for one run", n)
		}
	})
}

func TestTheLostAttemptsOfOneIdentityHideNoneOfAnother(t *testing.T) {
	onStage(t, func(s *stage) {
		lose := func(id, by string) {
			t.Helper()
			on, err := s.reserve(s.ctx())
			if err != nil {
				t.Fatal(err)
			}
			e, err := s.add(&Executor{id: id, fence: 1, on: on, ttl: DefaultTTL, run: &run.Run{Record: run.Record{Executor: &run.Executor{By: by}}}})
			if err != nil {
				t.Fatal(err)
			}
			s.Executors.mu.Lock()
			defer s.Executors.mu.Unlock()
			e.why = lostAttempt(id, 1, "its executor %s did not report", by)
			s.drop(e)
		}
		lose("mine", "user:mine")
		for i := range 5000 {
			lose(fmt.Sprint("other", i), "user:other")
		}
		if _, why := s.held("mine", 1); why == nil || !strings.Contains(why.Error(), "user:mine") {
			t.Errorf("why it was lost is no longer known: %v", why)
		}
		if _, why := s.held("other4999", 1); why == nil {
			t.Error("why the last one of the other was lost is not known")
		}
	})
}

func TestAKeyIsDeletedHoweverLongEtcdIsAwayAndOnlyIfItIsTheAttempts(t *testing.T) {
	onStage(t, func(s *stage) {
		s.admitted("a")
		s.admitted("b")
		a, b := s.begin("a", "x", MinTTL), s.begin("b", "y", MinTTL)
		s.backend.Down()
		pass(time.Minute)
		if !s.alive("a") || s.Count() != 2 {
			t.Error("it is gone while etcd is away")
		}
		s.wantBeat("a", a.fence, problem.RunLost)
		// Another executor has b by now.
		later := &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(s.runs.Keys.ActiveRun("one", "b"), []byte(`{"v":1}`), 0)}}
		if _, err := s.backend.Peer().Txn(s.t.Context(), later); err != nil {
			t.Fatal(err)
		}
		s.backend.Up()
		pass(time.Minute)
		if s.alive("a") || !s.alive("b") || s.Count() != 0 {
			t.Errorf("a lives: %t, b lives: %t, of %d", s.alive("a"), s.alive("b"), s.Count())
		}
		s.wantBeat("b", b.fence, problem.RunLost)
	})
}

func TestAnAttemptIsValidForTheLesserOfLeaseAndTTL(t *testing.T) {
	onStage(t, func(s *stage) {
		s.admitted("a")
		e := s.begin("a", "", 30*time.Second)
		for _, tc := range []struct{ lease, want time.Duration }{{time.Hour, 30 * time.Second}, {20 * time.Second, 20 * time.Second}, {0, 0}} {
			s.valid = tc.lease
			got := s.View(e)
			if got.Left != tc.want || (got.Grace == 0) != (tc.want == 0) {
				t.Errorf("%s of the lease: %+v", tc.lease, got)
			}
		}
		s.valid = time.Hour
		pass(10 * time.Second)
		if got := s.View(e); got.Left != 20*time.Second {
			t.Errorf("later: %s", got.Left)
		}
		e.on.(*stageReservation).end(errors.New("the lease is no longer valid"))
		synctest.Wait()
		s.wantBeat("a", e.fence, problem.RunLost)
		if got := s.View(e); got.Left != 0 || !s.alive("a") {
			t.Errorf("valid for %s after the loss, or its key did not expire by itself", got.Left)
		}
	})
}

func TestWhileEtcdIsAwayTheLeaseDecides(t *testing.T) {
	onStage(t, func(s *stage) {
		s.admitted("a")
		e := s.begin("a", "", time.Minute)
		s.backend.Down()
		for range 4 {
			pass(40 * time.Second)
			s.wantBeat("a", e.fence, "")
		}
		s.wantBeat("unknown", 7, problem.EtcdUnavailable)
	})
}

// TestAStartWithAnUnknownOutcomeIsResolved loses the answer to a start, or holds the start up,
// and checks what becomes of it.
func TestAStartWithAnUnknownOutcomeIsResolved(t *testing.T) {
	isStart := func(c storetest.Call) bool {
		return c.Op == storetest.OpTxn && len(c.Txn.Success) == 3
	}
	for name, tc := range map[string]struct {
		fault func(hold <-chan struct{}) storetest.Fault
		after func(s *stage)
		alive bool
	}{
		"made, and asked for again by the same executor": {
			fault: func(<-chan struct{}) storetest.Fault { return storetest.Fault{LoseAnswer: true} },
			after: func(s *stage) {
				e := s.begin("a", "me", time.Hour)
				pass(MinTTL + 2*resolveEvery)
				s.wantBeat("a", e.fence, "")
			},
			alive: true,
		},
		"made, and not requested again": {
			fault: func(<-chan struct{}) storetest.Fault { return storetest.Fault{LoseAnswer: true} },
			after: func(s *stage) { pass(MinTTL + 2*resolveEvery) },
		},
		"made, and the executor knows its fence": {
			fault: func(<-chan struct{}) storetest.Fault { return storetest.Fault{LoseAnswer: true} },
			after: func(s *stage) {
				r, err := s.runs.Get(s.t.Context(), "a")
				if err != nil || r.Status != run.Running {
					s.t.Fatalf("%+v, %v", r, err)
				}
				s.wantBeat("a", r.Fence(), "")
			},
			alive: true,
		},
		"made late": {
			fault: func(hold <-chan struct{}) storetest.Fault { return storetest.Fault{Hold: hold} },
			after: func(s *stage) { pass(MinTTL + 2*resolveEvery) },
		},
		"made late, for no executor: the run is canceled": {
			fault: func(hold <-chan struct{}) storetest.Fault { return storetest.Fault{Hold: hold} },
			after: func(s *stage) {
				if _, err := s.runs.Cancel(s.t.Context(), "a", "", false); err != nil {
					s.t.Fatal(err)
				}
				pass(2 * resolveEvery)
			},
		},
		"never made: the run is canceled": {
			fault: func(<-chan struct{}) storetest.Fault { return storetest.Fault{Drop: true} },
			after: func(s *stage) {
				pass(10 * resolveEvery)
				if s.reserved() != 1 {
					s.t.Error("it may still come, and its reservation is gone")
				}
				if _, err := s.runs.Cancel(s.t.Context(), "a", "", false); err != nil {
					s.t.Fatal(err)
				}
				pass(2 * resolveEvery)
			},
		},
		"never made, and another starts": {
			fault: func(<-chan struct{}) storetest.Fault { return storetest.Fault{Drop: true} },
			after: func(s *stage) {
				s.begin("a", "you", time.Hour)
				pass(2 * resolveEvery)
			},
			alive: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(s *stage) {
				s.admitted("a")
				hold := make(chan struct{})
				var asked atomic.Bool
				s.backend.Inject(func(c storetest.Call) storetest.Fault {
					switch {
					case isStart(c):
						asked.Store(true)
						return tc.fault(hold)
					case asked.Load() && c.Op == storetest.OpRange:
						return storetest.Fault{Drop: true, Err: store.ErrUnavailable}
					}
					return storetest.Fault{}
				})
				if _, err := s.Start(s.ctx(), "a", "me", MinTTL); problem.CodeOf(err) != problem.EtcdUnavailable {
					t.Fatalf("it was to be in pendingStart: %v", err)
				}
				s.backend.Inject(nil)
				close(hold)
				synctest.Wait()
				tc.after(s)
				want := 0
				if tc.alive {
					want = 1
				}
				if s.alive("a") != tc.alive || s.Count() != want || s.reserved() != want || len(s.pending) != 0 {
					t.Errorf("alive is %t, of %d; %d reservations, %d pending", s.alive("a"), s.Count(), s.reserved(), len(s.pending))
				}
			})
		})
	}
}

func TestASweepFindsWhatNoExecutorAsksAbout(t *testing.T) {
	onStage(t, func(s *stage) {
		for _, id := range []string{"canceled", "kept"} {
			s.admitted(id)
			s.begin(id, "", 0)
		}
		other := store.Put(s.runs.Keys.ActiveRun("one", "another"), []byte(`{"v":1}`), 0) // of another instance
		stray := store.Put(s.runs.Keys.ActiveRun("one", "stray"), []byte(`{"v":1}`), s.lease)
		if _, err := store.Commit(s.t.Context(), s.backend, nil, other, stray); err != nil {
			t.Fatal(err)
		}
		if _, err := s.runs.Cancel(s.t.Context(), "canceled", "", false); err != nil {
			t.Fatal(err)
		}
		pass(sweepEvery + grace.CheckInterval)
		for id, want := range map[string]bool{"canceled": false, "kept": true, "another": true, "stray": false} {
			if s.alive(id) != want {
				t.Errorf("%s: alive is %t", id, !want)
			}
		}
		if s.Count() != 1 || s.reserved() != 1 {
			t.Errorf("%d are known, with %d reservations", s.Count(), s.reserved())
		}
	})
}

func TestStartsOfOneRunAreOneAfterTheOther(t *testing.T) {
	onStage(t, func(s *stage) {
		s.admitted("a")
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[string]int{}
		for i := range 20 {
			name := fmt.Sprintf("e%d", i%2)
			wg.Go(func() {
				e, err := s.Start(s.ctx(), "a", name, time.Hour)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					got[string(problem.CodeOf(err))]++
				} else {
					got[fmt.Sprint(e.fence)]++
				}
			})
		}
		wg.Wait()
		if len(got) != 2 || got["run_taken"] != 10 || s.Count() != 1 || s.reserved() != 1 {
			t.Errorf("%v, of %d with %d reservations", got, s.Count(), s.reserved())
		}
	})
}
