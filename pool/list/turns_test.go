package list

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// isOver is what an instance says that knows of no demand that is over.
func isOver(wire.DemandRef) bool { return false }

func TestTurns(t *testing.T) {
	both := map[string]int{"db": 2, "gpu": 1}
	for name, c := range map[string]struct {
		make    func(w byHand)
		own     string // claims of host one whose turn it is
		free    int    // the largest claim of db behind all
		waiting int
	}{
		"nobody":            {func(byHand) {}, "[]", 5, 0},
		"one of its own":    {func(w byHand) { w.waits("a", "one", db(2)) }, "[a]", 3, 1},
		"one of another":    {func(w byHand) { w.waits("a", "two", db(2)) }, "[]", 3, 1},
		"in order":          {func(w byHand) { w.waits("b", "two", db(4)); w.waits("a", "one", db(2)); w.waits("c", "one", db(1)) }, "[c]", 0, 3},
		"a higher priority": {func(w byHand) { w.waits("b", "two", db(4)); w.waits("a", "one", db(2), priority(1)) }, "[a]", 3, 2},
		"one that reserves": {func(w byHand) {
			w.hold("x", "two", db(1))
			w.waits("b", "two", db(5), reserves)
			w.waits("a", "one", db(1))
		}, "[]", 0, 2},
		"one that never fits": {func(w byHand) { w.waits("b", "two", db(9), reserves); w.waits("a", "one", db(1)) }, "[a]", 4, 2},
		"one that does not":   {func(w byHand) { w.hold("x", "two", db(1)); w.waits("b", "two", db(5)); w.waits("a", "one", db(1)) }, "[a]", 3, 2},
		"short elsewhere":     {func(w byHand) { w.waits("b", "two", map[string]int{"db": 4, "gpu": 2}); w.waits("a", "one", db(5)) }, "[a]", 0, 2},
		"of two pools":        {func(w byHand) { w.waits("a", "one", both); w.waits("b", "one", both) }, "[a]", 3, 2},
		"one that has ended": {func(w byHand) {
			ref := w.waits("a", "two", db(2))
			w.n++
			w.hold("a", "two", db(2))
			w.claims["a"].ended = ref
			w.putClaim(w.claims["a"], 0, 0)
		}, "[]", 3, 0},
		"a paused pool": {func(w byHand) { w.waits("a", "one", db(2)); w.spec("db", 5, paused) }, "[]", 0, 1},
		"a pool that can't be read": {func(w byHand) {
			w.waits("a", "one", db(2))
			w.write(0, map[string][]byte{w.keys.Block("db", 0, 4): []byte("{")})
		}, "[]", 0, 1},
		"a slot key that can't be read": {func(w byHand) {
			w.waits("a", "one", db(2))
			w.write(0, map[string][]byte{w.keys.Number("db", 4): []byte("{")})
		}, "[a]", 2, 1},
		"incomplete": {func(w byHand) {
			ref := w.waits("a", "one", both)
			w.write(0, map[string][]byte{w.keys.Demand(wire.DemandKey{Pool: "gpu", Host: "one", Instance: "i", Name: ref.Name}): nil})
		}, "[]", 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newByHand(t)
			w.spec("db", 5)
			w.spec("gpu", 1)
			c.make(w)
			s := NewPart(w.keys.Keys, w.rev)
			s.Add("db")
			s.Add("gpu")
			for _, kv := range w.kvs {
				s.Put(kv)
			}
			claims := []string{}
			got := s.Turns("one", "i", isOver)
			for _, ref := range got.Own() {
				i := slices.IndexFunc(s.waiting(), func(w *waiter) bool { return w.ref == ref })
				claims = append(claims, s.waiting()[i].Claim)
			}
			free := 0
			for n := 1; n < 10; n++ {
				if s.Turns("one", "i", isOver).Next(db(n)) {
					free = n
				}
			}
			if fmt.Sprint(claims) != c.own || free != c.free || got.Waiting("db") != c.waiting {
				t.Errorf("turn of %v, %d are free, %d wait; want %s, %d, %d", claims, free, got.Waiting("db"), c.own, c.free, c.waiting)
			}
		})
	}
}

// What an instance knows to be over does not wait, if it is one of its own.
func TestTurnsWithoutWhatIsOver(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 5)
	w.waits("a", "one", db(5))
	s := NewPart(w.keys.Keys, w.rev)
	s.Add("db")
	for _, kv := range w.kvs {
		s.Put(kv)
	}
	over := func(wire.DemandRef) bool { return true }
	if own := s.Turns("one", "i", over); !own.Next(db(5)) || own.Waiting("db") != 0 {
		t.Errorf("%d wait", own.Waiting("db"))
	}
	if others := s.Turns("two", "i", over); others.Next(db(1)) || others.Waiting("db") != 1 {
		t.Errorf("of another instance, %d wait", others.Waiting("db"))
	}
}

// What was not read is taken for what keeps the order.
func TestTurnsOfAPart(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 5)
	w.spec("gpu", 0)
	w.waits("a", "two", map[string]int{"db": 4, "gpu": 1})
	part := func(pools ...string) Part {
		s := NewPart(w.keys.Keys, w.rev)
		for _, name := range pools {
			s.Add(name)
		}
		for _, kv := range w.kvs {
			if _, name := kindOf(s.keys, string(kv.Key)); slices.Contains(pools, name) {
				s.Put(kv)
			}
		}
		return s
	}
	if s := part("db"); s.Turns("", "", isOver).Next(db(2)) || !slices.Equal(s.Named(), []string{"gpu"}) {
		t.Errorf("a pool that was not read has no free slots, or is not named: %v", s.Named())
	}
	if s := part("db", "gpu"); !s.Turns("", "", isOver).Next(db(2)) || len(s.Named()) > 0 {
		t.Errorf("a claim that is short in a closed pool keeps slots of another one; named are %v", s.Named())
	}
	if s := part("gpu"); !slices.Equal(s.Named(), []string{"db"}) {
		t.Errorf("the pool with the values of demands is not named: %v", s.Named())
	}
	s := part("db", "gpu")
	if s.LeaveOut("db", 3, false); s.Turns("", "", isOver).Next(db(3)) || s.Turns("", "", isOver).Short(db(3)) != "db" || s.Turns("", "", isOver).Short(db(2)) != "" {
		t.Error("slots that are counted and not read do not count")
	}
}

// What has its turn behind all is what fits in the space that waiters leave, and each demand that a walk grants is its owner's.
func TestTurnsAgreeWithSpace(t *testing.T) {
	t.Parallel()
	fitted, refused, turns := 0, 0, 0
	for seed := range uint64(300) {
		w := newWorld(seed).run(70)
		for key := range w.kvs {
			if _, err := w.keys.OfferKey(key); err == nil {
				delete(w.kvs, key)
			}
		}
		s := NewPart(w.keys.Keys, w.rev)
		for _, name := range worldPools {
			s.Add(name)
		}
		for _, kv := range w.kvs {
			s.Put(kv)
		}
		space := s.Space()
		behind := s.Turns("", "", isOver)
		for range 5 {
			needs := w.needs()
			fits := space.Fits(needs)
			if got := behind.Next(needs); got != fits {
				t.Fatalf("seed %d: it is the turn of %v: %v, and it fits: %v", seed, needs, got, fits)
			}
			if refused++; fits {
				space.Take(needs)
				fitted++
			}
		}
		own := map[wire.DemandRef]bool{}
		for _, by := range worldInstances {
			for _, ref := range s.Turns(by.host, by.name, isOver).Own() {
				own[ref] = true
			}
		}
		var capacities []admit.Capacity
		statuses := s.Pools()
		for _, p := range statuses {
			capacities = append(capacities, admit.Capacity{Limit: p.Limit, Used: p.Claimed, Open: !p.Deleted && !p.Paused})
		}
		k := admit.NewWalk(capacities)
		f := s.fill(s.waiting(), nil)
		for _, q := range s.waiting() {
			if f.wants(q) {
				one := &admit.Waiter{Reserve: q.Reserve}
				for name, n := range q.Pools {
					one.Needs = append(one.Needs, admit.Need{Pool: slices.IndexFunc(statuses, func(p pool.Status) bool { return p.Name == name }), N: n})
				}
				if k.Next(one) != admit.Fit {
					continue
				}
				if turns++; !own[q.ref] {
					t.Fatalf("seed %d: it is not the turn of %s", seed, q.Claim)
				}
				delete(own, q.ref)
			}
		}
		if len(own) > 0 {
			t.Fatalf("seed %d: it is the turn of %v too", seed, own)
		}
	}
	if t.Logf("%d of %d claims fitted, %d demands had their turn", fitted, refused, turns); min(fitted, refused-fitted, turns) < 100 {
		t.Error("too few")
	}
}
