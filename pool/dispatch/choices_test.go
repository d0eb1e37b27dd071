package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

func numbers(from, to, step int) (all []int) {
	for n := from; n < to; n += step {
		all = append(all, n)
	}
	return all
}

func TestWhoIsOffered(t *testing.T) {
	with := func(d wire.Demand, change func(*wire.Demand)) wire.Demand {
		change(&d)
		return d
	}
	reserve := func(d *wire.Demand) { d.Reserve = true }
	first := func(d *wire.Demand) { d.Priority = 1 }
	for name, tc := range map[string]struct {
		prepare func(*rig)
		offers  []string
		pending []string
	}{
		"who was first": {func(r *rig) {
			r.spec("db", 2, false)
			r.demand("a", 0, ask(0, "db=1"), ask(1, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=1", "a-0-1 db=1"}, []string{"db"}},
		"a higher priority": {func(r *rig) {
			r.spec("db", 1, false)
			r.demand("a", 0, ask(0, "db=1"))
			r.demand("b", 0, with(ask(0, "db=1"), first))
		}, []string{"b-0-0 db=1"}, []string{"db"}},
		"who has waited longer elsewhere": {func(r *rig) {
			r.spec("db", 1, false)
			r.demand("a", 0, ask(0, "db=1"))
			r.demand("b", 0, with(ask(0, "db=1"), func(d *wire.Demand) { d.Stamp = &wire.Stamp{Revision: 1} }))
		}, []string{"b-0-0 db=1"}, []string{"db"}},
		"one behind that fits": {func(r *rig) {
			r.spec("db", 3, false)
			r.hold("x", "db", 1)
			r.demand("a", 0, ask(0, "db=3"))
			r.demand("b", 0, ask(0, "db=2"))
		}, []string{"b-0-0 db=2"}, []string{"db"}},
		"nobody behind one that reserves": {func(r *rig) {
			r.spec("db", 3, false)
			r.hold("x", "db", 1)
			r.demand("a", 0, with(ask(0, "db=3"), reserve))
			r.demand("b", 0, ask(0, "db=2"))
		}, nil, []string{"db"}},
		"in all pools or none": {func(r *rig) {
			r.spec("db", 1, false)
			r.spec("gpu", 1, false)
			r.hold("x", "gpu", 0)
			r.demand("a", 0, ask(0, "db=1 gpu=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"b-0-0 db=1"}, []string{"db", "gpu"}},
		"a claim of two pools makes others wait only where it is short": {func(r *rig) {
			r.spec("db", 2, false)
			r.spec("gpu", 1, false)
			r.hold("x", "gpu", 0)
			r.demand("a", 0, ask(0, "db=1 gpu=1"))
		}, nil, []string{"gpu"}},
		"one that can never fit, for a limit was lowered, is passed": {func(r *rig) {
			r.spec("db", 1, false)
			r.demand("a", 0, with(ask(0, "db=2"), reserve))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"b-0-0 db=1"}, nil},
		"nobody in a paused pool, which is pending": {func(r *rig) {
			r.spec("db", 1, true)
			r.demand("a", 0, ask(0, "db=1"))
		}, nil, []string{"db"}},
		"nobody in a closed pool, which is pending": {func(r *rig) {
			r.spec("db", pool.Closed, false)
			r.demand("a", 0, ask(0, "db=1"))
		}, nil, []string{"db"}},
		"all in a pool without a limit": {func(r *rig) {
			r.spec("db", pool.Unlimited, false)
			r.demand("a", 0, ask(0, "db=1"), ask(1, "db=500"))
		}, []string{"a-0-0 db=1", "a-0-1 db=500"}, nil},
		"a pool that does not exist": {func(r *rig) {
			r.spec("db", 1, false)
			r.demand("a", 0, ask(0, "db=1 gone=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 !", "b-0-0 db=1"}, nil},
		"below the ceiling": {func(r *rig) {
			r.spec("db", 9, false)
			r.hold("x", "db", 7, 8)
			r.spec("db", 3, false)
			r.demand("a", 0, ask(0, "db=1"), ask(1, "db=1"))
		}, []string{"a-0-0 db=1"}, []string{"db"}},
		"not with a block that can't be read": {func(r *rig) {
			r.spec("db", 9, false)
			r.put(store.Put(r.keys.Block("db", 0, 3), []byte("?"), 0))
			r.demand("a", 0, ask(0, "db=1"))
		}, nil, []string{"db"}},
		"a slot key holds its number whatever its value": {func(r *rig) {
			r.spec("db", 2, false)
			r.put(store.Put(r.keys.Number("db", 0), []byte("?"), 0))
			r.demand("a", 0, ask(0, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=1"}, []string{"db"}},
		"and a record": {func(r *rig) {
			r.spec("db", 2, false)
			r.put(store.Put(r.keys.Number("db", 0), []byte(`{"v":2,"claim":"c","record":{"colour":1}}`), 0))
			r.demand("a", 0, ask(0, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=1"}, []string{"db"}},
		"not with a key that can't be one": {func(r *rig) {
			r.spec("db", 9, false)
			r.put(store.Put(r.keys.Slots("db")+"3", []byte("?"), 0))
			r.demand("a", 0, ask(0, "db=1"))
		}, nil, []string{"db"}},
		"demands that can't be read are ignored": {func(r *rig) {
			r.spec("db", 1, false)
			r.put(store.Put(r.key("x", 0, "db"), []byte("?"), 0))
			r.demand("a", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=1"}, nil},
		"a demand needs a key in each of its pools": {func(r *rig) {
			r.spec("db", 1, false)
			r.spec("gpu", 1, false)
			r.demand("b", 0, ask(0, "gpu=1"))
			r.decline("b")
			r.demand("a", 0, ask(0, "db=1 gpu=1"))
			r.put(store.Delete(r.key("a", 0, "gpu")))
		}, []string{"b-0-0 gpu=1"}, nil},
		"and of one revision": {func(r *rig) {
			r.spec("db", 1, false)
			r.spec("gpu", 1, false)
			r.demand("a", 0, ask(0, "db=1 gpu=1"))
			r.put(store.Delete(r.key("a", 0, "gpu")))
			r.put(store.Put(r.key("a", 0, "gpu"), wire.EncodeDemands([]wire.Demand{{Pools: map[string]int{"db": 1, "gpu": 1}}})["gpu"], 0))
		}, nil, nil},
		"and that names the first one": {func(r *rig) {
			r.spec("db", 1, false)
			r.spec("gpu", 1, false)
			r.demand("b", 0, ask(0, "gpu=9")) // so that gpu is known
			d := ask(0, "db=1 gpu=1")
			d.Claim, d.Holder = "c", pool.Holder{Host: "a", Instance: "i"}
			other := wire.EncodeDemands([]wire.Demand{{Pools: map[string]int{"another": 1, "gpu": 1}}})["gpu"]
			r.put(store.Put(r.key("a", 0, "db"), wire.EncodeDemands([]wire.Demand{d})["db"], 0), store.Put(r.key("a", 0, "gpu"), other, 0))
		}, nil, nil},
		"not more to one owner than its bound if others wait": {func(r *rig) {
			r.spec("db", 9, false)
			r.demand("a", 0, ask(0, "db=1"), ask(1, "db=1"), ask(2, "db=1"), ask(3, "db=1"), ask(4, "db=1"), ask(5, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=1", "a-0-1 db=1", "a-0-2 db=1", "a-0-3 db=1", "b-0-0 db=1"}, nil},
		"as many as there are if nobody else waits": {func(r *rig) {
			r.spec("db", 9, false)
			r.demand("a", 0, ask(0, "db=1"), ask(1, "db=1"), ask(2, "db=1"), ask(3, "db=1"), ask(4, "db=1"))
		}, []string{"a-0-0 db=1", "a-0-1 db=1", "a-0-2 db=1", "a-0-3 db=1", "a-0-4 db=1"}, nil},
		"one block of an area at a time": {func(r *rig) {
			r.spec("db", 250, false)
			r.demand("a", 0, ask(0, "db=40"), ask(1, "db=40"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a-0-0 db=40", "b-0-0 db=1"}, []string{"db"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			tc.prepare(r)
			r.run()
			r.want("offers", r.offered(), tc.offers...)
			r.want("pending", r.under(r.keys.Pending("")), tc.pending...)
		})
	}
}

// A claim that needs too many compares waits until nothing else is offered in its pool, and is alone there then.
func TestAClaimOfTheWholePoolIsAlone(t *testing.T) {
	r := newRig(t)
	r.spec("db", 600, false)
	r.hold("x", "db", numbers(0, 600, 2)...)
	r.demand("a", 0, ask(0, "db=1"))
	r.run()
	r.demand("b", 0, ask(0, "db=120"))
	r.demand("c", 0, ask(0, "db=1"))
	r.run()
	r.want("first", r.offered(), "a-0-0 db=1")
	r.commit("a")
	r.run()
	r.want("then", r.offered(), "b-0-0 db=120")
	for kv := range r.etcd.All(r.keys.Offers("b", "i")) {
		list, _ := wire.DecodeOffers(string(kv.Key), kv.Value)
		h, _ := list[0].Take["db"].Held()
		if _, whole := h.Whole(); !whole || h.Compares() > slots.MaxCompares {
			t.Errorf("%d compares: %s", h.Compares(), kv.Value)
		}
	}
	r.want("meanwhile", r.under(r.keys.Pending("")), "db")
	r.commit("b")
	r.run()
	r.want("at last", r.offered(), "c-0-0 db=1")
	if r.d.Counts()[WaitedForLoan] == 0 {
		t.Error("no claim was counted that has waited for a loan")
	}
}

func TestWhoMayHandSlotsOn(t *testing.T) {
	const advance = "/i/advance~db"
	for name, tc := range map[string]struct {
		limit   int
		prepare func(*rig)
		want    []string
		later   []string // when the first demand was first for more than 20 ms
	}{
		"all that hold and wait, for a while": {4, func(r *rig) {
			r.demand("a", 0, ask(0, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a" + advance, "b" + advance}, []string{"a" + advance}},
		"who holds": {4, func(r *rig) {
			r.demand("c", 0, ask(0, "db=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"b" + advance}, nil},
		"who has the highest priority": {4, func(r *rig) {
			r.demand("a", 0, ask(0, "db=1"))
			d := ask(0, "db=1")
			d.Priority = 2
			r.demand("b", 0, d)
		}, []string{"b" + advance}, []string{"b" + advance}},
		"nobody behind one that reserves": {4, func(r *rig) {
			d := ask(0, "db=1")
			d.Reserve = true
			r.demand("a", 0, d)
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"a" + advance}, []string{"a" + advance}},
		"all, while the first one has an offer that it cannot use": {4, func(r *rig) {
			r.put(store.Delete(r.keys.Number("gpu", 0)))
			r.put(store.Delete(r.keys.Number("db", 0)))
			d := ask(0, "db=1 gpu=1")
			d.Priority = 1
			r.demand("c", 0, d)
			r.run()
			r.spec("gpu", pool.Closed, false)
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"b" + advance, "c/i/0"}, []string{"b" + advance, "c/i/0"}},
		"nobody if many owners wait": {4, func(r *rig) {
			for _, host := range []string{"a", "b", "c"} {
				r.demand(host, 0, ask(0, "db=1"))
			}
		}, nil, nil},
		"nobody in a pool with free slots": {5, func(r *rig) {
			r.demand("a", 0, ask(0, "db=2"))
		}, nil, nil},
		"nobody above a lowered limit": {3, func(r *rig) {
			r.demand("a", 0, ask(0, "db=1"))
		}, nil, nil},
		"nobody who waits for another pool": {4, func(r *rig) {
			r.demand("a", 0, ask(0, "gpu=1"))
			r.demand("b", 0, ask(0, "db=1"))
		}, []string{"b" + advance}, []string{"b" + advance}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spec("gpu", 1, false)
			r.hold("x", "gpu", 0)
			r.spec("db", tc.limit, false)
			r.hold("a", "db", 0, 1)
			r.hold("b", "db", 2, 3)
			tc.prepare(r)
			r.run()
			r.want("advance offers", r.under(r.keys.OffersAll()), tc.want...)
			r.now += orderHolds
			r.run()
			r.want("before the time", r.under(r.keys.OffersAll()), tc.want...)
			if at := r.d.Wake(r.now); at > r.now+2 && len(tc.want) != len(tc.later) {
				t.Errorf("it sleeps for %v", at-r.now)
			}
			r.now += 2
			r.run()
			r.want("later", r.under(r.keys.OffersAll()), tc.later...)
		})
	}
}

// An owner that leaves an offer alone is passed, and so is the one of its host that has written nothing since.
func TestWhoIsPassed(t *testing.T) {
	r := newRig(t)
	r.spec("db", 2, false)
	other := func(host, name string, number int) {
		d := ask(0, "db=1")
		d.Claim, d.Holder = fmt.Sprint("other-", name, number), pool.Holder{Host: host, Instance: name}
		r.put(store.Put(r.keys.Demand(wire.DemandKey{Pool: "db", Host: host, Instance: name, Name: number}), wire.EncodeDemands([]wire.Demand{d})["db"], 0))
	}
	r.demand("a", 0, ask(0, "db=2"))
	other("a", "hung", 0)
	other("a", "well", 0)
	r.demand("b", 0, ask(0, "db=1"))
	r.run()
	r.want("offers", r.offered(), "a-0-0 db=2")
	r.now += 100 * time.Millisecond
	other("a", "well", 1)
	r.run()
	if at := r.d.Wake(r.now); at != time.Hour+leastPatience {
		t.Errorf("it is to be called at %v", at-time.Hour)
	}
	r.now = time.Hour + leastPatience
	r.run()
	r.want("keys", r.under(r.keys.OffersAll()), "a/hung/passed", "a/i/passed", "a/well/0", "b/i/0")
	if r.d.Counts()[Silent] != 1 {
		t.Errorf("%d were silent", r.d.Counts()[Silent])
	}
	r.commit("b")
	r.put(store.Delete(r.keys.Offer(wire.OfferKey{Host: "a", Instance: "i", Name: -1})))
	r.put(store.DeleteAll(r.keys.Offers("a", "well")), store.DeleteAll(r.keys.Demands("db", "a", "well")))
	r.run()
	r.want("when it is back", r.under(r.keys.OffersAll()), "a/hung/passed")
	r.spec("db", 3, false)
	r.run()
	r.want("it is offered again", r.offered(), "a-0-0 db=2")
}

// An owner whose key was put and deleted before all was read is served again, and one without demands is forgotten.
func TestARestartEndsThatAnOwnerIsPassed(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	r.run()
	r.now += leastPatience
	r.next() // the offer is deleted
	passes, ok := r.d.Next(r.now)
	if !ok {
		t.Fatal("the owner is not passed")
	}
	resp, _ := r.etcd.Txn(passes)
	r.d.Answer(resp, nil, r.now) // and the watch shows nothing
	all := func() {
		r.restart()
		r.read()
	}
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.DeleteAll(r.keys.OffersAll()))})
	all()
	r.run()
	r.want("when the key is gone", r.offered(), "a-0-0 db=1")
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.DeleteAll(r.keys.OffersAll()), store.Delete(r.key("a", 0, "db")))})
	all()
	if len(r.d.owners.all) > 0 {
		t.Errorf("%d owners are remembered", len(r.d.owners.all))
	}
}

// Patience grows with slow commits, and for owners that are silent often.
func TestPatience(t *testing.T) {
	var s silence
	for _, tc := range []struct{ took, want time.Duration }{
		{10 * time.Millisecond, leastPatience}, {400 * time.Millisecond, 800 * time.Millisecond}, {5 * time.Second, mostPatience}, {time.Millisecond, mostPatience},
	} {
		if s.took(time.Second, tc.took); s.patience(time.Second) != tc.want {
			t.Errorf("%v after a commit of %v, want %v", s.patience(time.Second), tc.took, tc.want)
		}
	}
	if p := s.patience(time.Second + 2*slowWithin); p != leastPatience {
		t.Errorf("%v after a while", p)
	}
	now := time.Minute
	s.troubled(now)
	if p := s.patience(now + time.Second); p != oftenPatience {
		t.Errorf("%v a second after a transaction failed", p)
	}
	if p := s.patience(now + 2*slowWithin); p != leastPatience {
		t.Errorf("%v a while after a transaction failed", p)
	}
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	for n := range strikes + 1 {
		r.run()
		r.want("offered", r.offered(), "a-0-0 db=1")
		if r.now += leastPatience; n == strikes {
			r.run()
			r.want("for longer", r.offered(), "a-0-0 db=1")
			r.now += oftenPatience - leastPatience
		}
		r.run()
		r.want("passed", r.under(r.keys.OffersAll()), "a/i/passed")
		r.put(store.Delete(r.keys.Offer(wire.OfferKey{Host: "a", Instance: "i", Name: -1})))
	}
}

// The sign of life is put soon after a demand, each second while there are any, and when there are none.
func TestSignOfLife(t *testing.T) {
	r := newRig(t)
	r.d.Events(r.etcd.Revision(), nil, r.now)
	marks := func() (n int64, demands bool) {
		for kv := range r.etcd.All(r.keys.Mark()) {
			m, _ := wire.DecodeMark(string(kv.Key), kv.Value)
			return kv.Version, m.Demands
		}
		return 0, false
	}
	expect := func(n int64, demands bool) {
		t.Helper()
		if r.run(); true {
			if got, is := marks(); got != n || is != demands {
				t.Errorf("%d signs of life, the last one says %v; want %d, %v", got, is, n, demands)
			}
		}
	}
	expect(1, false)
	r.now += 10 * time.Second
	r.d.Events(r.etcd.Revision(), nil, r.now)
	expect(1, false)
	r.spec("db", 0, false)
	r.demand("a", 0, ask(0, "db=1"))
	expect(2, true)
	r.now += markEvery / 2
	expect(2, true)
	if at := r.d.Wake(r.now); at != r.now+markEvery/2 {
		t.Errorf("it is to be called in %v", at-r.now)
	}
	r.now += markEvery / 2
	expect(3, true)
	r.now += currentFor + 1
	expect(3, true) // it may not be current
	if !r.d.Stale(r.now) {
		t.Error("it is not stale")
	}
	r.d.Events(r.etcd.Revision(), nil, r.now)
	expect(4, true)
	r.put(store.Delete(r.key("a", 0, "db")))
	expect(5, false)
	if _, ok := r.d.Sleep(r.now); ok {
		t.Error("it sleeps immediately")
	}
	r.now += markEvery
	r.d.Events(r.etcd.Revision(), nil, r.now)
	if revision, ok := r.d.Sleep(r.now); !ok || revision != r.etcd.Revision() || r.d.view.listed != 0 {
		t.Error("it does not sleep")
	}
	if r.next() != nil || r.d.Wake(r.now) != never {
		t.Error("it does something in its sleep")
	}
}

// Offers keys have at most 32 claims and 64 keys; a claim of blocks has one for itself; a transaction has at most 100.
func TestOffersArePacked(t *testing.T) {
	r := newRig(t)
	r.spec("db", 9000, false)
	many := func(host string, name, n int, needs string) {
		var list []wire.Demand
		for i := range n {
			list = append(list, ask(i, needs))
		}
		r.demand(host, name, list...)
	}
	many("a", 0, 40, "db=1")
	many("b", 0, 5, "db=30")
	many("c", 0, 3, "db=33")
	r.demand("e", 0, ask(0, "db=1"), ask(1, "db=33"), ask(2, "db=1"))
	r.run()
	var sizes []string
	for kv := range r.etcd.All(r.keys.OffersAll()) {
		list, err := wire.DecodeOffers(string(kv.Key), kv.Value)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, fmt.Sprint(strings.TrimPrefix(string(kv.Key), r.keys.OffersAll()), " ", len(list)))
	}
	r.want("keys", sizes, "a/i/0 32", "a/i/1 8", "b/i/0 2", "b/i/1 2", "b/i/2 1", "c/i/0 1", "c/i/1 1", "c/i/2 1", "e/i/0 2", "e/i/1 1")
	for i := range 130 {
		many(fmt.Sprint("host-", i), 0, 1, "db=1")
	}
	for i, want := range []int{maxKeys, 130 - maxKeys} {
		n := 0
		for _, op := range r.next().Success {
			if strings.HasPrefix(string(op.GetRequestPut().GetKey()), r.keys.OffersAll()) {
				n++
			}
		}
		if n != want {
			t.Errorf("transaction %d has %d offers keys, want %d", i, n, want)
		}
	}
}

// A pool stays pending while many instances ask, though each has an offer.
func TestACrowdKeepsAPoolPending(t *testing.T) {
	r := newRig(t)
	r.spec("db", 100, false)
	for i := range crowded + 1 {
		r.demand(fmt.Sprint("host-", i), 0, ask(0, "db=1"))
	}
	r.run()
	r.want("pending", r.under(r.keys.Pending("")), "db")
	if at := r.d.Wake(r.now); at > r.now+2*crowdFor {
		t.Errorf("it sleeps for %v", at-r.now)
	}
	for i := range crowded + 1 {
		r.commit(fmt.Sprint("host-", i))
	}
	for range 3 {
		r.now += crowdFor
		r.d.Events(r.etcd.Revision(), nil, r.now)
		r.run()
	}
	r.want("later", r.under(r.keys.Pending("")))
}

// What comes to nothing is offered again after a pause that doubles, and keeps its pool pending from the second time on.
func TestPauses(t *testing.T) {
	r := newRig(t)
	r.spec("db", 9, false)
	r.demand("a", 0, ask(0, "db=1"))
	r.run()
	r.want("pending", r.under(r.keys.Pending("")))
	for i, pause := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		r.decline("a")
		r.run()
		r.want("offers", r.offered())
		if at := r.d.Wake(r.now); i > 0 && at > r.now+pause*time.Millisecond {
			t.Errorf("it sleeps for %v", at-r.now)
		}
		r.now += pause*time.Millisecond - 1
		r.run()
		r.want("offers before the time", r.offered())
		r.now++
		r.run()
		r.want("offers in time", r.offered(), "a-0-0 db=1")
		if pending := r.under(r.keys.Pending("")); (len(pending) > 0) != (i > 0) {
			t.Errorf("pending after %d offers: %v", i+1, pending)
		}
	}
	if r.commit("a"); r.d.Counts()[Declined] != 9 {
		t.Errorf("%d declined", r.d.Counts()[Declined])
	}
	r.run()
	r.want("at last", r.under(r.keys.Pending("")))
}

// An owner without demands keeps no offers.
func TestOffersToTheDeadEnd(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	r.demand("b", 0, ask(0, "db=1"))
	r.run()
	r.put(store.Delete(r.key("a", 0, "db")))
	r.run()
	r.want("offers", r.offered(), "b-0-0 db=1")
}

// Demands of a pool that no listing has shown, since it had no spec, are seen when the pool is put as pending again.
func TestAPendingPoolIsRead(t *testing.T) {
	r := newRig(t)
	d := ask(0, "db=1")
	d.Claim, d.Holder = "c", pool.Holder{Host: "a", Instance: "i"}
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.Put(r.key("a", 0, "db"), wire.EncodeDemands([]wire.Demand{d})["db"], 0))})
	r.restart()
	r.read()
	r.run()
	r.want("before", r.offered())
	r.put(store.Put(r.keys.Pending("db"), wire.EncodeEmpty(), 0))
	r.run()
	r.want("after", r.offered(), "a-0-0 !")
}

// A demand of two pools of which one is pending is known with both, after each restart.
func TestAllPoolsOfADemandAreRead(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.spec("gpu", 1, false)
	r.hold("x", "gpu", 0)
	d := ask(0, "db=1 gpu=1")
	d.Claim, d.Pending, d.Holder = "c", []string{"gpu"}, pool.Holder{Host: "a", Instance: "i"}
	all := ops(store.Put(r.keys.Pending("gpu"), wire.EncodeEmpty(), 0))
	for of, value := range wire.EncodeDemands([]wire.Demand{d}) {
		all = append(all, store.Put(r.key("a", 0, of), value, 0))
	}
	_, _ = r.etcd.Txn(&pbTxn{Success: all})
	for range 2 {
		r.restart()
		r.show()
		if n := r.d.Demands(); n != 1 {
			t.Errorf("%d demands", n)
		}
	}
	r.put(store.Delete(r.keys.Number("gpu", 0)))
	r.run()
	r.want("offers", r.offered(), "a-0-0 db=1 gpu=1")
}

// Pools that could not be read, and those that were read before a restart, are read again.
func TestAPoolIsReadUntilItIsKnown(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	d := ask(0, "db=1")
	d.Claim, d.Holder = "c", pool.Holder{Host: "a", Instance: "i"}
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.Put(r.key("a", 0, "db"), wire.EncodeDemands([]wire.Demand{d})["db"], 0))})
	m, _ := r.follow.Next(1)
	r.d.Events(m.Revision, m.Events, r.now)
	read := func(revision int64) {
		t.Helper()
		r.want("to be read", r.d.Wants(), "db")
		r.d.Listed(Listing{Revision: revision, Pools: []string{"db"}}, r.now)
	}
	read(0)
	r.restart()
	read(r.etcd.Revision() - 1)
	r.show()
	r.run()
	r.want("offers", r.offered(), "a-0-0 db=1")
}

// While a pool is read again, nothing is offered in it: what has come since it was read before counts then.
func TestNothingIsOfferedInAPoolThatIsReadAgain(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.hold("x", "db", 0)
	r.demand("a", 0, ask(0, "db=1"))
	r.put(store.Delete(r.keys.Pending("db")))
	show := func() {
		for m, ok := r.follow.Next(1); ok; m, ok = r.follow.Next(1) {
			r.d.Events(m.Revision, m.Events, r.now)
		}
	}
	show()
	r.follow = r.etcd.Follow(Watched(r.keys.Keys), 0)
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.Delete(r.keys.Number("db", 0)))})
	show() // it was free when all was read
	r.d.Restart(r.list(r.keys.OffersAll(), r.keys.Pending("")), r.now)
	req := &pool.Request{ID: "held", Slots: map[string]int{"db": 1}, Holder: pool.Holder{Host: "x", Instance: "i"}}
	put := wire.Spell(req).Puts(map[string]slots.Held{"db": {Numbers: []int{0}}}, wire.Written{Since: time.Unix(1, 0)})[0]
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.Put(put.Key(r.keys), put.Value, 0))})
	show()
	if txn, ok := r.d.Next(r.now); ok {
		resp, _ := r.etcd.Txn(txn)
		r.d.Answer(resp, nil, r.now)
	}
	r.want("while it is read", r.offered())
	r.show()
	r.run()
	r.want("when it was read", r.offered())
	r.put(store.Delete(r.keys.Number("db", 0)))
	r.run()
	r.want("at last", r.offered(), "a-0-0 db=1")
}

// What was read of a pool that is known since does not replace what has come meanwhile.
func TestALateReadChangesNothing(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	late := r.list(r.keys.Pool("db"))
	late.Pools = []string{"db"}
	r.hold("x", "db", 0)
	r.d.Listed(late, r.now)
	r.run()
	r.want("offers", r.offered())
}

// Who follows a dispatcher that ends is the other instance with the youngest demand.
func TestWhoFollows(t *testing.T) {
	r := newRig(t)
	if got := r.d.Follower(); got != (Follower{}) {
		t.Errorf("%v follows without demands", got)
	}
	for _, host := range []string{"b", "c", "a", "d"} { // d is the dispatcher's own
		r.demand(host, 0, ask(0, "db=1"))
	}
	if got := r.d.Follower(); got != (Follower{"a", "i"}) {
		t.Errorf("%v follows", got)
	}
}

// To its own instance a dispatcher offers in memory.
func TestOwnOffers(t *testing.T) {
	r := newRig(t)
	r.spec("db", 2, false)
	r.demand("d", 0, ask(0, "db=1"), ask(1, "db=1"))
	r.run()
	own := r.d.Offers()
	if len(own) != 2 || len(r.under(r.keys.OffersAll())) > 0 || len(r.d.Offers()) > 0 {
		t.Fatalf("%+v", own)
	}
	r.demand("b", 0, ask(0, "db=1"))
	r.run()
	r.want("others", r.offered())
	r.d.Declined(own[0].Demand, r.now)
	r.now += time.Second
	r.put(store.Delete(r.key("d", 0, "db")))
	r.run()
	r.want("others, after one was declined", r.offered(), "b-0-0 db=1")
	r.d.Committed(own[1].Demand, r.etcd.Revision()+1, r.now)
	if n := r.d.book.perPool[r.d.view.pools["db"]]; n != 2 {
		t.Errorf("%d are open before the view shows the commit", n)
	}
	r.put(store.Put("/b/other", nil, 0))
	if n := r.d.book.perPool[r.d.view.pools["db"]]; n != 1 {
		t.Errorf("%d are open after it", n)
	}
}

// A transaction that etcd refuses is sent again after a pause; one whose role was lost is not.
func TestRefusedTransactions(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	if _, ok := r.d.Next(r.now); !ok {
		t.Fatal("it sends nothing")
	}
	if _, ok := r.d.Next(r.now); ok {
		t.Fatal("it sends two")
	}
	if unknown := r.d.Answer(nil, store.ErrDenied, r.now); unknown {
		t.Fatal("the outcome is unknown")
	}
	for _, pause := range []time.Duration{firstRetry, 2 * firstRetry} {
		if r.d.Wake(r.now) != r.now+pause {
			t.Errorf("it is to be called in %v, want %v", r.d.Wake(r.now)-r.now, pause)
		}
		if _, ok := r.d.Next(r.now + pause - 1); ok {
			t.Error("it sends without a pause")
		}
		r.now += pause
		if _, ok := r.d.Next(r.now); !ok {
			t.Error("it sends nothing")
		}
		r.d.Answer(nil, store.ErrDenied, r.now)
	}
	r.now += mostRetry
	r.put(store.Put(r.keys.Role(), wire.EncodeRole(wire.Role{Host: "x", Instance: "i", Kind: wire.Service}), 0))
	if r.next(); !r.d.lost || r.next() != nil {
		t.Error("it does not know that the role was lost")
	}
	r.want("offers", r.offered())
}

// A restart replaces what is known, and ends offers whose keys are gone.
func TestARestartReplacesWhatIsKnown(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.demand("a", 0, ask(0, "db=1"))
	r.run()
	_, _ = r.etcd.Txn(&pbTxn{Success: ops(store.DeleteAll(r.keys.OffersAll()), store.Delete(r.key("a", 0, "db")))})
	r.restart()
	r.show()
	if n := r.d.Demands(); n != 0 || len(r.d.book.keys) > 0 {
		t.Errorf("%d demands, %d offers", n, len(r.d.book.keys))
	}
	r.demand("b", 0, ask(0, "db=1"))
	r.run()
	r.want("offers", r.offered(), "b-0-0 db=1")
	if len(r.d.view.pools) != 1 {
		t.Error("pools are followed twice")
	}
}
