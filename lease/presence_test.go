package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// seen is a presence on a fake etcd; make it inside a synctest bubble.
type seen struct {
	*Presence
	t    *testing.T
	etcd *fakeEtcd

	mu      sync.Mutex
	changes []store.LeaseID

	cancel context.CancelCauseFunc
	done   chan error
}

func newSeen(t *testing.T, etcd *fakeEtcd, token string) *seen {
	s := &seen{t: t, etcd: etcd}
	s.Presence = NewPresence(PresenceConfig{
		Backend: etcd, Keys: testKeys, Host: testHost, Instance: testInst, Token: token,
		Role: "sidecar", Version: "1.2.3", PID: 4711, Capacity: 8, Queues: []string{"gpu", "default"},
		OnChange: func(id store.LeaseID) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changes = append(s.changes, id)
		},
	})
	return s
}

func (s *seen) run() {
	ctx, cancel := context.WithCancelCause(s.t.Context())
	s.cancel, s.done = cancel, make(chan error, 1)
	done := s.done
	go func() { done <- s.Run(ctx) }()
	s.t.Cleanup(func() { cancel(errStopped) })
	synctest.Wait()
}

func (s *seen) stop() {
	s.t.Helper()
	s.cancel(errStopped)
	if err := <-s.done; !errors.Is(err, errStopped) {
		s.t.Errorf("Run ended with %v", err)
	}
}

func (s *seen) changed() []store.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]store.LeaseID(nil), s.changes...)
}

func (s *seen) wantLease() store.LeaseID {
	s.t.Helper()
	id, ok := s.Lease()
	if !ok {
		s.t.Fatal("there is no presence lease")
	}
	kv := s.etcd.get(s.key)
	if kv == nil || kv.Lease != int64(id) {
		s.t.Fatalf("entry %v is not on lease %s", kv, name(id))
	}
	return id
}

func (s *seen) isReady() bool {
	select {
	case <-s.Ready():
		return true
	default:
		return false
	}
}

func idle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAnInstanceIsSeenForAsLongAsItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeen(t, newFakeEtcd(newFakeClock()), testToken)
		if _, ok := s.Lease(); ok || s.isReady() {
			t.Fatal("seen before Run")
		}
		s.run()
		id := s.wantLease()
		if !s.isReady() || !cmp.Equal(s.changed(), []store.LeaseID{id}) {
			t.Errorf("ready %v, changes %v", s.isReady(), s.changed())
		}
		got, err := DecodePresence(testKeys, s.key, s.etcd.get(s.key).Value)
		want := PresenceRecord{
			Host: testHost, Instance: testInst, Role: "sidecar", Version: "1.2.3", PID: 4711, Capacity: 8,
			Queues: []string{"gpu", "default"}, Since: s.record.Since, Token: testToken,
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("record (-want +got): %s%v", diff, err)
		}
		idle(time.Minute)
		if again := s.wantLease(); again != id {
			t.Error("the lease changed without a reason")
		}
		s.stop()
		idle(PresenceTTL)
		if s.etcd.get(s.key) != nil {
			t.Error("seen after its end")
		}
	})
}

func TestASecondProcessOfTheNameIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		begin := time.Now()
		second.run()
		err := <-second.done
		if problem.CodeOf(err) != problem.HostInUse {
			t.Fatalf("Run ended with %v", err)
		}
		for _, part := range []string{"quay-1/sidecar", "4711", first.record.Since.Format(time.RFC3339), "stop that process"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the message %q does not tell %q", err, part)
			}
		}
		var p *problem.Error
		if errors.As(err, &p) && !cmp.Equal(p.Detail, InUse{Host: testHost, Instance: testInst, PID: 4711, Since: first.record.Since}) {
			t.Errorf("detail %+v", p.Detail)
		}
		if waited := time.Since(begin); waited < PresenceTTL || waited > patience+readAgain {
			t.Errorf("refused after %s", waited)
		}
		if second.isReady() || len(second.changed()) > 0 {
			t.Error("the second was seen")
		}
		first.wantLease()
		if n := len(etcd.alive()); n != 1 {
			t.Errorf("%d leases, want one", n)
		}
	})
}

func TestADeadOwnersNameIsTakenWhenItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		first.stop()
		begin := time.Now()
		second.run()
		<-second.Ready()
		second.wantLease()
		if waited := time.Since(begin); waited > patience {
			t.Errorf("waited %s", waited)
		}
	})
}

func TestADeadOwnersNameIsTakenAlthoughItsLeaseStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		lease := first.wantLease()
		first.stop()
		second.run()
		idle(PresenceTTL - 2*time.Second)
		// etcd does that with a new leader.
		if _, err := second.cfg.Backend.Renew(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		select {
		case <-second.Ready():
		case err := <-second.done:
			t.Fatalf("Run ended with %v", err)
		}
		second.wantLease()
	})
}

func TestALaterProcessTakesTheNameOverByItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, testToken)
		first.run()
		old := first.wantLease()
		first.stop()
		second.run() // at once
		id := second.wantLease()
		if id == old {
			t.Fatal("the old lease is used on")
		}
		if left := etcd.alive(); len(left) != 1 || left[0] != id {
			t.Errorf("leases %v live, want %v only", left, id)
		}
		idle(2 * PresenceTTL)
		if again := second.wantLease(); again != id {
			t.Error("the end of the old lease was noticed")
		}
	})
}

func TestALostPresenceLeaseIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		s := newSeen(t, etcd, testToken)
		s.run()
		old := s.wantLease()
		etcd.fault.Store(hanging())
		idle(15 * time.Second)
		etcd.fault.Store(nil)
		idle(2 * maxPause)
		id := s.wantLease()
		if id == old || !cmp.Equal(s.changed(), []store.LeaseID{old, id}) {
			t.Errorf("leases %s, %s, changes %v", name(old), name(id), s.changed())
		}
	})
}

func TestAPresenceLeaseThatEtcdKeptIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		s := newSeen(t, etcd, testToken)
		s.run()
		old := s.wantLease()
		etcd.fault.Store(failing(store.ErrUnavailable))
		idle(time.Minute)
		etcd.mu.Lock() // etcd was down itself: its leases start again
		etcd.leases[old].ends = etcd.clock.Now() + PresenceTTL
		etcd.mu.Unlock()
		etcd.fault.Store(nil)
		idle(time.Minute)
		if s.wantLease() != old || len(s.changed()) != 1 {
			t.Errorf("changes %v, want none after the first", s.changed())
		}
	})
}

func TestTwoProcessesThatStartTogetherDoNotShareTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		both := hook(func(_ context.Context, op string, _ store.LeaseID) error {
			if op == "grant" {
				time.Sleep(100 * time.Millisecond) // both have looked by then
			}
			return nil
		})
		etcd.fault.Store(&both)
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		second.run()
		idle(time.Second)
		if n := len(etcd.alive()); n != 1 {
			t.Errorf("%d leases, want that of the one that won", n)
		}
		idle(2 * patience)
		refused := 0
		for _, s := range []*seen{first, second} {
			select {
			case err := <-s.done:
				refused++
				if problem.CodeOf(err) != problem.HostInUse {
					t.Errorf("Run ended with %v", err)
				}
			default:
				s.wantLease()
			}
		}
		if refused != 1 {
			t.Errorf("%d of two were refused", refused)
		}
	})
}

func TestANameLostToAnotherProcessIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		id := first.wantLease()
		etcd.fault.Store(hanging())
		idle(11 * time.Second)
		only := hook(func(ctx context.Context, op string, l store.LeaseID) error {
			if l == id {
				<-ctx.Done() // the first is still cut off
				return store.ErrUnavailable
			}
			return nil
		})
		etcd.fault.Store(&only)
		second.run()
		<-second.Ready()
		etcd.fault.Store(nil)
		if err := <-first.done; problem.CodeOf(err) != problem.HostInUse {
			t.Errorf("the first ended with %v", err)
		}
		second.wantLease()
	})
}

func TestPatienceStartsAgainWhenEtcdWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		first, second := newSeen(t, etcd, testToken), newSeen(t, etcd, "another")
		first.run()
		id := first.wantLease()
		first.stop()
		second.run()
		idle(8 * time.Second)
		etcd.fault.Store(failing(store.ErrUnavailable))
		idle(time.Second)
		etcd.mu.Lock() // a new leader restarts all leases
		etcd.leases[id].ends = etcd.clock.Now() + PresenceTTL
		etcd.mu.Unlock()
		etcd.fault.Store(nil)
		idle(PresenceTTL + 2*readAgain)
		second.wantLease()
	})
}

func TestAPutWithoutAnAnswerIsFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		etcd.late.Store(failing(store.ErrUnavailable, "txn"))
		etcd.fault.Store(failing(store.ErrUnavailable, "revoke"))
		s := newSeen(t, etcd, testToken)
		s.run()
		if etcd.get(s.key) == nil || s.isReady() {
			t.Fatal("the test did not lose the answer")
		}
		etcd.late.Store(nil)
		idle(2 * maxPause)
		s.wantLease()
	})
}

func TestAnUnreadableOwnerIsNotGuessedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		s := newSeen(t, etcd, testToken)
		etcd.put(s.key, []byte(`{"v":2}`), 0)
		s.run()
		err := <-s.done
		if problem.CodeOf(err) != problem.CorruptValue || !strings.Contains(err.Error(), s.key) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func TestEtcdAwayAtTheStartIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		etcd.fault.Store(hanging())
		s := newSeen(t, etcd, testToken)
		s.run()
		idle(time.Minute)
		if s.isReady() {
			t.Fatal("ready without etcd")
		}
		etcd.fault.Store(nil)
		idle(4 * maxPause) // a try that hangs, and the pause after it
		s.wantLease()
	})
}

func TestRevokingPresenceEndsItAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeen(t, newFakeEtcd(newFakeClock()), testToken)
		if err := s.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.run()
		s.stop()
		if err := s.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Lease(); ok || s.etcd.get(s.key) != nil || len(s.etcd.alive()) > 0 {
			t.Error("something is left")
		}
		if err := s.Run(t.Context()); !errors.Is(err, ErrRan) {
			t.Errorf("a second Run ended with %v", err)
		}
	})
}

func TestAPresenceThatIsStoppedBeforeItStartsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeen(t, newFakeEtcd(newFakeClock()), "")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStopped)
		if err := s.Run(ctx); !errors.Is(err, errStopped) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func TestAProcessThatMayNotUseWhatEtcdHasIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := problem.New(problem.Precondition, "the data is of the layout before 2")
		s := newSeen(t, newFakeEtcd(newFakeClock()), testToken)
		s.cfg.Check = func(context.Context) error { return refused }
		s.run()
		if err := <-s.done; !errors.Is(err, refused) || s.etcd.get(s.key) != nil {
			t.Errorf("Run ended with %v, and the key is %v", err, s.etcd.get(s.key))
		}
	})
}

// An etcd that was restored may have other data: it is checked before the name is taken there.
func TestWhatEtcdHasIsCheckedWheneverTheNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := problem.New(problem.CorruptValue, "the data is of the layout 3")
		s := newSeen(t, newFakeEtcd(newFakeClock()), testToken)
		var checks atomic.Int64
		var answers atomic.Value // the outcome of a check
		type outcome struct{ err error }
		answers.Store(outcome{store.ErrUnavailable})
		s.cfg.Check = func(context.Context) error { checks.Add(1); return answers.Load().(outcome).err }
		s.run()
		idle(5 * time.Second)
		if s.isReady() || checks.Load() < 3 {
			t.Errorf("after %d checks without an answer, it is ready: %t", checks.Load(), s.isReady())
		}
		answers.Store(outcome{})
		idle(5 * time.Second)
		id := s.wantLease()
		answers.Store(outcome{store.ErrUnavailable})
		if err := s.etcd.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		idle(15 * time.Second)
		if _, ok := s.Lease(); ok || s.Trouble() == nil {
			t.Errorf("it is seen: %t; %v", ok, s.Trouble())
		}
		answers.Store(outcome{refused})
		idle(15 * time.Second)
		if err := <-s.done; !errors.Is(err, refused) || s.etcd.get(s.key) != nil {
			t.Errorf("Run ended with %v, and the key is %v", err, s.etcd.get(s.key))
		}
	})
}
