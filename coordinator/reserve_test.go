package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// heldSince is since when pools have held a run up, by its record.
func (fl *fleet) heldSince(id string) time.Time {
	fl.t.Helper()
	fl.proceed()
	r, err := fl.Get(fl.t.Context(), id)
	if err != nil {
		fl.t.Fatal(err)
	}
	return r.HeldSince
}

// What a run has waited for slots is not forgotten: not because a limit is reached
// meanwhile, nor with a resync, nor with another leader.
func TestAnAgeSurvives(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 3, reserveAfter(time.Hour))
		one := fl.candidate("one")
		fl.submit("a", needs("db", 2))
		fl.submit("wide", needs("db", 3))
		fl.is(map[string]string{"a": "not_started", "wide": "queued: pool 'db' has too few free slots (3 slots, 3 wanted)"})
		since := fl.heldSince("wide")
		if since.IsZero() {
			t.Fatal("it is not noted since when it is held up")
		}
		same := func(after string) {
			t.Helper()
			if got := fl.heldSince("wide"); !got.Equal(since) {
				t.Errorf("after %s it is held up since %s, before since %s", after, got, since)
			}
		}
		fl.limit(1)
		fl.is(map[string]string{"wide": "queued: global run limit (1/1)"})
		same("another reason")
		fl.limit(9)
		one.by.BreakWatches(store.ErrUnavailable)
		same("a resync")
		one.stop()
		fl.candidate("two")
		time.Sleep(20 * time.Second)
		same("another leader")
	})
}

// A run that limits never note as held up by pools, since a limit is reached whenever a
// plan is made, ages all the same.
func TestARunAgesThoughALimitIsReached(t *testing.T) {
	s := &Snapshot{
		Now: planNow, Limits: run.DefaultLimits(), Queue: NewQueue(), MaxBlocks: 100,
		Space: pool.NewSpace(pool.Status{Name: "db", Spec: pool.Spec{Limit: 3, ReserveAfter: time.Minute}, Claimed: 1}),
	}
	s.Limits.MaxConcurrentRuns = 1
	wide := &run.Run{ID: "wide", Created: 1, Record: run.Record{Status: run.Queued, Spec: run.Spec{Pools: map[string]int{"db": 3}}}}
	slim := &run.Run{ID: "slim", Created: 2, Record: run.Record{Status: run.Queued, Spec: run.Spec{Pools: map[string]int{"db": 1}}}}
	s.Queue.Insert(wide)
	s.Queue.Insert(slim)
	p := s.Plan()
	if len(p.Admit) != 1 || p.Admit[0] != slim || len(p.Blocks) != 1 || !p.Blocks[0].Held || p.Blocks[0].Block.Kind != run.BlockRunLimit {
		t.Fatalf("%+v", p)
	}
	// Once that is noted, it comes to reserve; by a clock that is behind, its age starts again.
	for since, reserves := range map[time.Duration]bool{-2 * time.Minute: true, -time.Second: false, time.Hour: false} {
		old := *wide
		old.HeldSince = planNow.Add(since)
		s.Queue.Insert(&old)
		p := s.Plan()
		if (len(p.Admit) == 0) != reserves {
			t.Errorf("held since %s: %v are admitted", since, ids(p.Admit))
		}
		if fresh := len(p.Blocks) > 0 && p.Blocks[0].Held; fresh != (since > 0) {
			t.Errorf("held since %s: it is noted again: %t", since, fresh)
		}
	}
}

// When a slot is taken or released, no reason is written again, except once.
func TestASlotRewritesNoQueue(t *testing.T) {
	q := NewQueue()
	for i := range 100 {
		q.Insert(&run.Run{ID: fmt.Sprintf("r%d", i), Created: int64(i + 1), Record: run.Record{
			Status: run.Queued, Spec: run.Spec{Pools: map[string]int{"gpu": 2 + i%3}},
		}})
	}
	writes := make([]int, 0, 20)
	for round := range 20 {
		used := []int{7, 8, 9, 8}[round%4] // of 8, after the limit was lowered
		s := &Snapshot{
			Now: planNow, Limits: run.DefaultLimits(), Queue: q, MaxBlocks: 1000,
			Space: pool.NewSpace(pool.Status{Name: "gpu", Spec: pool.Spec{Limit: 8, ReserveAfter: pool.NeverReserve}, Claimed: used}),
		}
		p := s.Plan()
		writes = append(writes, len(p.Blocks))
		for _, b := range p.Blocks {
			n := *b.Run
			n.Record = n.BlockedBy(b.Block).HeldUp(planNow)
			q.Insert(&n)
		}
	}
	if fmt.Sprint(writes[:2]) != "[100 0]" || fmt.Sprint(writes[2:]) != fmt.Sprint(make([]int, 18)) {
		t.Errorf("records written at each slot: %v", writes)
	}
}
