package list

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// A reason that is read by itself is the same as among all pools.
func TestAReasonIsTheSameHoweverItIsRead(t *testing.T) {
	t.Parallel()
	reasons := 0
	for seed := range uint64(150) {
		w := newWorld(seed).run(80)
		b := w.backend(t)
		full, err := Read(t.Context(), b, w.keys.Keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range full.waiting() {
			own := Own{Host: q.by.host, Instance: q.by.name}
			for _, o := range full.waiting() {
				if o.by == q.by {
					own.Waiting = append(own.Waiting, OwnDemand{*o.Demand, o.ref.Created})
				}
			}
			s, err := readBrief(t.Context(), b, w.keys.Keys, sortedNames(q.Pools))
			if err != nil {
				t.Fatal(err)
			}
			id := q.by.String() + "/" + q.Claim
			want, _ := full.By(own).Why(id)
			if got, err := s.By(own).Why(id); err != nil || cmp.Diff(want.Reason, got.Reason) != "" {
				t.Fatalf("seed %d: %s: %v\n%s", seed, id, err, cmp.Diff(want.Reason, got.Reason))
			}
			reasons++
		}
	}
	if t.Logf("%d reasons", reasons); reasons < 300 {
		t.Error("too few")
	}
}

// The reason of a claim is the same if its instance names all of its demands, or only that one.
func TestAReasonNeedsOneDemandOfTheInstance(t *testing.T) {
	t.Parallel()
	reasons := 0
	for seed := range uint64(150) {
		s := newWorld(seed).run(80).state()
		for _, q := range s.waiting() {
			own := Own{Host: q.by.host, Instance: q.by.name}
			for _, o := range s.waiting() {
				if o.by == q.by {
					own.Waiting = append(own.Waiting, OwnDemand{*o.Demand, o.ref.Created})
				}
			}
			why, err := s.By(own).Why(q.by.String() + "/" + q.Claim)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Reason(OwnDemand{*q.Demand, q.ref.Created}); err != nil || cmp.Diff(why.Reason, got) != "" {
				t.Fatalf("seed %d: %s: %v\n%s", seed, q.Claim, err, cmp.Diff(why.Reason, got))
			}
			reasons++
		}
	}
	if t.Logf("%d reasons", reasons); reasons < 300 {
		t.Error("too few")
	}
}

// many has demands wait that are before all others.
func (w byHand) many(n int) {
	var list []wire.Demand
	for i := range n {
		list = append(list, wire.Demand{Index: len(list), Claim: fmt.Sprint("m", i), Pools: db(1), Priority: 1, Since: epoch, Holder: pool.Holder{Host: "many", Instance: "i"}})
		if len(list) == wire.MaxDemands || i == n-1 {
			w.write(1, map[string][]byte{w.keys.Demand(wire.DemandKey{Pool: "db", Host: "many", Instance: "i", Name: i}): wire.EncodeDemands(list)["db"]})
			list = nil
		}
	}
}

func TestAReasonOfALongQueueIsBounded(t *testing.T) {
	for n, c := range map[int]struct {
		text     string
		position int
	}{
		briefDemands / 2: {"pool 'db' full (600/600 slots)", briefDemands/2 + 1},
		briefDemands * 5: {"pool 'db' full (600/600 slots), at least 1,000 before it", 0},
	} {
		w := newByHand(t)
		w.spec("db", 600)
		for i := range 600 / 30 {
			w.hold(fmt.Sprintf("h%02d", i), "one", db(30))
		}
		w.many(n)
		own := Own{Host: "one", Instance: "i", Waiting: []OwnDemand{{Demand: wire.Demand{Claim: "w", Pools: db(1), Since: epoch, Holder: pool.Holder{Host: "one", Instance: "i"}}}}}
		s, err := readBrief(t.Context(), w.backend(t), w.keys.Keys, []string{"db"})
		if err != nil {
			t.Fatal(err)
		}
		if most := briefDemands * 3; len(s.waiting()) > most {
			t.Errorf("%d of %d demands were read", len(s.waiting()), n)
		}
		why, err := s.By(own).Why("one/i/w")
		if r := why.Reason; err != nil || r.Text != c.text || r.Position != c.position || len(r.Pools) != 1 || len(r.Pools[0].Holders) != maxReasonHolders {
			t.Errorf("%d: %+v, %v", n, r, err)
		}
	}
	// Keys that can't be read are bounded, too.
	w := newByHand(t)
	w.spec("db", 600)
	for i := range 5 * briefDemands {
		w.write(1, map[string][]byte{w.keys.Demands("db", "x", "y") + fmt.Sprint(i): []byte("no")})
	}
	if s, err := readBrief(t.Context(), w.backend(t), w.keys.Keys, []string{"db"}); err != nil || len(s.bad) > 3*briefDemands || !s.part {
		t.Errorf("%d of %d keys were read, %v", len(s.bad), 5*briefDemands, err)
	}
	// Of a claim that fits, too.
	w = newByHand(t)
	w.spec("db", 600)
	w.waits("w", "one", db(1))
	w.many(1001)
	s := w.state()
	s.part = true
	if why, err := s.Why("w"); err != nil || why.Reason.Text != "waiting its turn, at least 1,000 before it" {
		t.Errorf("%+v, %v", why.Reason, err)
	}
	if why, err := s.By(Own{Host: "one", Instance: "i", Waiting: []OwnDemand{{Demand: w.anyDemands().list[0]}}, Trouble: errors.New("etcd is away")}).Why("w"); err != nil || why.Reason.Text != "no lease could be made: etcd is away, at least 1,000 before it" {
		t.Errorf("%+v, %v", why.Reason, err)
	}
	if why, err := s.Why("m5"); err != nil || why.Reason.Text != "waiting its turn" {
		t.Errorf("%+v, %v", why.Reason, err)
	}
}

// Reasons are read once a second for the same pools, and for a tenth of the time at most.
func TestReasonsAreReadForATenthOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.w.hold("a", "two", db(3))
		at := b.write()
		demand := func(id, host string) OwnDemand {
			return OwnDemand{Demand: wire.Demand{Claim: id, Pools: db(1), Since: epoch, Holder: pool.Holder{Host: host, Instance: "i"}}}
		}
		ask := func() {
			t.Helper()
			for i := range 50 {
				r, err := b.Reason(t.Context(), demand(fmt.Sprint("w", i), "one"))
				if err != nil || r.Text != "pool 'db' full (3/3 slots)" || r.Position != 1 || r.Waiting != 1 {
					t.Fatalf("w%d: %+v, %v", i, r, err)
				}
			}
		}
		once := []string{"db/spec", "db/slots/000000", "db/slots/b/", "db/demands/"}
		ask()
		b.wantReads("at first", once...)
		b.AtLeast(at + 1)
		ask()
		b.wantReads("within a second, after a write")
		time.Sleep(time.Second)
		slow(b.by, 250*time.Millisecond)
		begun := time.Now()
		ask()
		took := time.Since(begun)
		b.by.Inject(nil)
		time.Sleep(9*took - time.Millisecond)
		var reads atomic.Int64
		b.by.Inject(func(call storetest.Call) storetest.Fault {
			reads.Add(1)
			return storetest.Fault{}
		})
		if ask(); reads.Load() > 0 {
			t.Errorf("%d reads, soon after one that took %s", reads.Load(), took)
		}
		time.Sleep(time.Millisecond)
		if ask(); reads.Load() == 0 {
			t.Error("what is too old is shown")
		}
		if _, err := b.Reason(t.Context(), demand("a", "two")); problem.CodeOf(err) != problem.ClaimNotFound {
			t.Error(err)
		}
	})
}

// slow has each request of a backend take a time.
func slow(b *storetest.Backend, d time.Duration) {
	b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: d} })
}

// A demand of several pools is read in the first of them, which a reader of another pool reads by itself.
func TestAReasonCountsDemandsOfOtherPools(t *testing.T) {
	w := newByHand(t)
	w.spec("cpu", 1)
	w.spec("db", 1)
	w.hold("a", "one", map[string]int{"cpu": 1, "db": 1})
	w.waits("v", "two", map[string]int{"cpu": 1, "db": 1})
	w.waits("w", "two", db(1))
	b := &ranges{Backend: w.backend(t), keys: w.keys.Keys}
	s, err := readBrief(t.Context(), b, w.keys.Keys, []string{"db"})
	if err != nil {
		t.Fatal(err)
	}
	why, err := s.Why("w")
	if err != nil || why.Reason.Position != 2 || why.Reason.Waiting != 2 || why.Reason.Pools[0].Holders[0].Host != "one" {
		t.Errorf("%+v, %v", why.Reason, err)
	}
	if got := b.taken(); slices.ContainsFunc(got, func(key string) bool { return key == "pools/cpu/" }) {
		t.Errorf("read %q", got)
	}
}

// Of many demands that are listed in another pool, not all are read.
func TestAReasonOfManyDemandsOfOtherPoolsIsBounded(t *testing.T) {
	w := newByHand(t)
	w.spec("cpu", 1)
	w.spec("db", 1)
	w.hold("a", "one", db(1))
	for i := range maxKeys + 1 {
		w.waits(fmt.Sprint("v", i), "two", map[string]int{"cpu": 1, "db": 1})
	}
	w.waits("w", "two", db(1))
	s, err := readBrief(t.Context(), w.backend(t), w.keys.Keys, []string{"db"})
	if err != nil {
		t.Fatal(err)
	}
	if why, err := s.Why("w"); err != nil || why.Reason.Position != 0 || why.Reason.Text != "pool 'db' full (1/1 slots)" {
		t.Errorf("%+v, %v", why.Reason, err)
	}
}
