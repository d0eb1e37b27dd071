package owner

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

func TestDirectClaimsNeverExceedALimit(t *testing.T) {
	long(t)
	t.Parallel()
	var all stats
	with, moved := newWritten(), 0
	seeds, usual := storetest.Seeds(200)
	for seed := range seeds {
		w := newWorld(seed, nil).run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		all.add(w.stats)
		moved += w.transfers.done
		with.add(w.written)
	}
	if t.Logf("%d keys, refused: %v; combined releases: %v; refused transactions: %v", with.keys, with.refused, with.outcome, with.refusals); usual && !with.enough() {
		t.Errorf("too little was written with claims: %+v", with)
	}
	if t.Logf("%+v, %d taken over from other instances", all, moved); usual && (moved < 60 || all.granted < 6000 || all.over < 150 || all.waited < 5000 || all.ahead < 15) {
		t.Errorf("too little has happened: %+v", all)
	}
}

// firstCaught is where the search for a schedule that needs a rule begins, to save time: at the one that was found last.
var firstCaught = map[string]uint64{
	"an advance offer":    92,
	"an offers key":       60,
	"an absent slot":      23,
	"what is being taken": 345,
	"an audit of all":     140,
	"a place is returned": 486,
}

// schedules iterates over the seeds of 600 schedules.
func schedules(rule string) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range uint64(600) {
			if !yield((firstCaught[rule] + i) % 600) {
				return
			}
		}
	}
}

// Schedules in which a check failed once.
func TestSchedulesThatFailed(t *testing.T) {
	long(t)
	for _, of := range []struct {
		seldom, ids int
		fills       bool
		lives       int
		seeds       []uint64
	}{
		{seldom: 2, ids: 4, seeds: []uint64{70, 96, 129, 205, 537}},
		{seldom: 8, ids: 3, seeds: []uint64{106, 353, 1093, 1512, 1608, 1674}},
		{seldom: 8, ids: 0, seeds: []uint64{304}},
		{seldom: 8, ids: 4, seeds: []uint64{86, 774}},
		{seldom: 8, ids: 4, fills: true, seeds: []uint64{1010, 1167, 1233, 1322, 1701, 1877, 2037}},
		{seldom: 8, ids: 4, lives: 40, seeds: []uint64{9, 85, 1167, 1716, 2584}},
	} {
		for _, seed := range of.seeds {
			w := newWorld(seed, nil)
			w.seldom, w.ids, w.space.fills, w.lives.often = of.seldom, of.ids, of.fills, of.lives
			if w.run(600); len(w.errs) > 0 {
				t.Errorf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
			}
		}
	}
}

func TestEveryCompareIsNeeded(t *testing.T) {
	long(t)
	slot := func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/slots/") }
	block := func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/slots/b/") }
	for name, without := range map[string]func(*pb.Compare) bool{
		"the guard":          func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/guards/") },
		"the spec":           func(c *pb.Compare) bool { return strings.HasSuffix(string(c.Key), "/spec") },
		"the pending claims": func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/pending/") },
		"an absent slot": func(c *pb.Compare) bool {
			return slot(c) && !block(c) && c.RangeEnd == nil && c.Target == pb.Compare_CREATE
		},
		"the runs of a block": func(c *pb.Compare) bool { return slot(c) && !block(c) && c.RangeEnd != nil },
		"the blocks":          func(c *pb.Compare) bool { return block(c) && c.RangeEnd != nil },
		"the version of keys": func(c *pb.Compare) bool { return slot(c) && c.Target == pb.Compare_MOD },
		"an offers key": func(c *pb.Compare) bool {
			return strings.Contains(string(c.Key), "/offers/") && !strings.Contains(string(c.Key), "advance~")
		},
		"an advance offer":          func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "advance~") },
		"a condition of the caller": func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/flag/") },
		"a condition of a release":  func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/until/") },
		"an absent id": func(c *pb.Compare) bool {
			return strings.Contains(string(c.Key), "/ids/") && c.GetCreateRevision() == 0
		},
		"whose an id is": func(c *pb.Compare) bool {
			return strings.Contains(string(c.Key), "/ids/") && c.GetCreateRevision() > 0
		},
		"the demands key": func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/demands/") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range schedules(name) {
				if w := newWorld(seed, without).run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}

// A claim that was refused says why.
func TestRefusalsNameThePool(t *testing.T) {
	w := newWorld(1, nil)
	h := w.hosts[0]
	put := func(limit int, paused bool) {
		s := pool.DefaultSpec()
		s.Limit, s.Paused = limit, paused
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Spec("db"), wire.EncodeSpec(s, 0), 0)}})
	}
	for name, tc := range map[string]struct {
		prepare func()
		needs   map[string]int
		code    problem.Code
	}{
		"it does not exist": {func() {}, map[string]int{"other": 1}, problem.PoolNotFound},
		"paused":            {func() { put(3, true) }, map[string]int{"db": 1}, problem.NoCapacity},
		"too many slots":    {func() { put(3, false) }, map[string]int{"db": 4}, problem.ExceedsLimit},
		"full":              {func() { put(1, false); w.resolved(h, w.claim(h, map[string]int{"db": 1})) }, map[string]int{"db": 1}, problem.NoCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			tc.prepare()
			err := w.resolved(h, w.claim(h, tc.needs))
			if p := problem.Of(err); p == nil || p.Code != tc.code || !strings.Contains(err.Error(), slices.Collect(maps.Keys(tc.needs))[0]) {
				t.Errorf("%v, want %s", err, tc.code)
			}
			for len(h.held) > 0 {
				w.release(h)
			}
			w.rest()
		})
	}
}

// resolved waits until a claim is granted or refused, and returns why it was refused.
func (w *world) resolved(h *host, c *Claim) (refused error) {
	for h.asked[c] {
		w.clock += localWait
		for _, x := range h.halves {
			if t, ok := x.Next(w.now(), time.Unix(1, 0)); ok {
				x.Answer(w.must(t), nil)
			}
		}
		if t, ok := h.Reads(); ok {
			h.Read(w.must(t), nil)
		}
		for _, r := range h.Results() {
			delete(h.asked, r.Claim)
			if r.Outcome == Granted {
				h.held = append(h.held, r.Claim)
			}
			if r.Claim == c {
				refused = r.Err
			}
		}
	}
	return refused
}

func (s *stats) add(o stats) {
	s.claims, s.granted, s.waited, s.offered = s.claims+o.claims, s.granted+o.granted, s.waited+o.waited, s.offered+o.offered
	s.over, s.ahead = s.over+o.over, s.ahead+o.ahead
	s.passing, s.served = s.passing+o.passing, s.served+o.served
}

// long skips a test of many schedules when the tests are shortened, as with the race detector: nothing here is concurrent.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
}
