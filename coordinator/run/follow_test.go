package run

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func TestClaimsOfARunAreAmongItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		claims := make(chan pool.Event, 8)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- r.Journal.Follow(ctx, claims, Followed{Dropped: func(n int) { t.Errorf("%d were given up", n) }})
		}()
		claims <- pool.Event{Type: pool.ClaimWaiting, Run: "a", Step: "load", Claim: "c", Pools: []string{"db", "gpu"}, Reason: "pool 'db' full (3/3 slots)"}
		claims <- pool.Event{Type: pool.ClaimGranted, Claim: "of no run", Pools: []string{"db"}}
		claims <- pool.Event{Type: pool.PoolChanged, Pools: []string{"db"}}
		synctest.Wait()
		r.b.Down() // it goes on when etcd is back
		claims <- pool.Event{Type: pool.ClaimGranted, Run: "a", Claim: "c", Pools: []string{"db", "gpu"}}
		claims <- pool.Event{Type: pool.ClaimRenewed, Run: "a", Claim: "c", Pools: []string{"db", "gpu"}, Reason: "its lease could be renewed again"}
		claims <- pool.Event{Type: pool.ClaimReleased, Run: "a", Claim: "c", Pools: []string{"db", "gpu"}}
		time.Sleep(10 * time.Second)
		r.b.Up()
		time.Sleep(10 * time.Second)
		cancel()
		<-done

		events, err := r.Events(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events {
			got = append(got, fmt.Sprint(e.Type, " ", e.Metadata, " ", e.Reason))
		}
		want := []string{
			"RunQueued map[priority:0] ",
			"StepSlotWaiting map[claim:c pools:db,gpu step:load] pool 'db' full (3/3 slots)",
			"StepSlotClaimed map[claim:c pools:db,gpu] ",
			"StepSlotRenewed map[claim:c pools:db,gpu] its lease could be renewed again",
			"StepSlotReleased map[claim:c pools:db,gpu] ",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

// That a step waits is one event of its attempt, though its claim leaves the wait queue and comes back, together or later.
func TestAStepWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		r.submit("b", Spec{})
		claims := make(chan pool.Event, 8)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Journal.Follow(ctx, claims, Followed{Dropped: func(int) {}}) }()
		waits := pool.Event{Type: pool.ClaimWaiting, Run: "a", Step: "load", Claim: "c", Bind: BindStep, Pools: []string{"db"}, Reason: "pool 'db' full (3/3 slots)"}
		again, other, next := waits, waits, waits
		again.Reason, other.Run, next.Claim = "waiting its turn", "b", "d"
		for _, ev := range []pool.Event{waits, again, other} {
			claims <- ev
		}
		synctest.Wait()
		claims <- again
		claims <- next
		synctest.Wait()
		cancel()
		<-done
		for id, want := range map[string][]string{
			"a": {"RunQueued map[priority:0] ", "StepSlotWaiting map[claim:c pools:db step:load] pool 'db' full (3/3 slots)", "StepSlotWaiting map[claim:d pools:db step:load] pool 'db' full (3/3 slots)"},
			"b": {"RunQueued map[priority:0] ", "StepSlotWaiting map[claim:c pools:db step:load] pool 'db' full (3/3 slots)"},
		} {
			events, err := r.Events(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range events {
				got = append(got, fmt.Sprint(e.Type, " ", e.Metadata, " ", e.Reason))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", id, d)
			}
		}
	})
}

// A write without an answer may have been made, or be made when the next one was
// already: each event is there once all the same, and reported once.
func TestAnEventOfAClaimIsWrittenOnceThoughAnswersAreLost(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"the answer is lost":      {LoseAnswer: true, Err: context.DeadlineExceeded},
		"it is made after others": {Delay: followTry + 5*followPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.submit("a", Spec{})
				f := r.follow("a", Place{})
				faults, writes := 2, 0
				r.b.Inject(func(c storetest.Call) storetest.Fault {
					if c.Op != storetest.OpTxn {
						return storetest.Fault{}
					}
					if writes++; writes > faults {
						return storetest.Fault{}
					}
					return fault
				})
				claims := make(chan pool.Event)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					done <- r.Journal.Follow(ctx, claims, Followed{Dropped: func(n int) { t.Errorf("%d were given up", n) }})
				}()
				claims <- pool.Event{Type: pool.ClaimWaiting, Run: "a", Claim: "c"}
				claims <- pool.Event{Type: pool.ClaimGranted, Run: "a", Claim: "c"}
				time.Sleep(time.Minute)
				cancel()
				<-done
				if writes <= faults {
					t.Errorf("%d writes: none was tried again", writes)
				}
				want := []EventType{RunQueued, StepSlotWaiting, StepSlotClaimed}
				f.wants(t, want...)
				f.cancel()
				<-f.done
				events, err := r.Events(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				var got []EventType
				for _, e := range events {
					got = append(got, e.Type)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

func TestWhatIsKeptForAnEtcdThatIsAwayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.b.Inject(func(storetest.Call) storetest.Fault {
			return storetest.Fault{Drop: true, Err: context.DeadlineExceeded}
		})
		claims := make(chan pool.Event)
		gone := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Journal.Follow(ctx, claims, Followed{Dropped: func(n int) { gone += n }}) }()
		for i := range followMost + 10 {
			claims <- pool.Event{Type: pool.ClaimGranted, Run: fmt.Sprint("r", i), Claim: "c"}
		}
		synctest.Wait()
		cancel()
		<-done
		if gone != 10 {
			t.Errorf("%d were given up, want 10", gone)
		}
	})
}

func TestARunHasNoMoreThanFiveHundredEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("a", Spec{})
		r.submit("b", Spec{})
		claims := make(chan pool.Event)
		gone := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Journal.Follow(ctx, claims, Followed{Dropped: func(n int) { gone += n }}) }()
		for range DefaultMaxEvents + 7 {
			claims <- pool.Event{Type: pool.ClaimGranted, Run: "a", Claim: "c"}
		}
		claims <- pool.Event{Type: pool.ClaimGranted, Run: "b", Claim: "c"}
		claims <- pool.Event{Type: pool.ClaimGranted, Run: "absent", Claim: "c"}
		synctest.Wait()
		cancel()
		<-done
		a, err := r.Events(t.Context(), "a")
		if err != nil || len(a) != DefaultMaxEvents-ofRun || gone != ofRun+8 {
			t.Errorf("%d events, %d were given up, %v", len(a), gone, err)
		}
		if b, err := r.Events(t.Context(), "b"); err != nil || len(b) != 2 {
			t.Errorf("another run: %d events, %v", len(b), err)
		}
		if none, err := r.Events(t.Context(), "absent"); err != nil || len(none) != 0 {
			t.Errorf("a run that does not exist: %d events, %v", len(none), err)
		}
	})
}

// An identity that makes claims without end takes a bounded part of etcd, whatever runs it has.
func TestTheEventsOfTheClaimsOfOneIdentityAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, by := range []string{"ann", "bob"} {
			for i := range 5 {
				r.submit(fmt.Sprint(by, i), Spec{SubmittedBy: "user:" + by})
			}
		}
		claims := make(chan pool.Event)
		gone := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Journal.Follow(ctx, claims, Followed{Most: 100, Dropped: func(n int) { gone += n }}) }()
		send := func(by, bind string, n int) {
			for i := range n {
				claims <- pool.Event{Type: pool.ClaimGranted, Run: fmt.Sprint(by, i%5), Claim: "c", ClaimedBy: "user:" + by, Bind: bind}
			}
			synctest.Wait()
		}
		written := func(by string) (n int) {
			for i := range 5 {
				events, err := r.Events(t.Context(), fmt.Sprint(by, i))
				if err != nil {
					t.Fatal(err)
				}
				n += len(events) - 1 // without that of the submission
			}
			return n
		}
		send("ann", "", 150)
		send("bob", "", 20)
		send("ann", BindStep, 10)
		if written("ann") != 110 || written("bob") != 20 || gone != 50 {
			t.Errorf("%d of ann, %d of bob, %d dropped", written("ann"), written("bob"), gone)
		}
		time.Sleep(claimEventsWindow)
		send("ann", "", 10)
		if written("ann") != 120 {
			t.Errorf("%d of ann an hour later", written("ann"))
		}
		cancel()
		<-done
	})
}
