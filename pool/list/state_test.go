package list

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// shown is all that a state shows.
type shown struct {
	Pools      []pool.Status
	Holders    []pool.HolderStatus
	Waiters    []pool.WaiterStatus
	Violations []pool.Violation
	Fits       map[string]int
	Whys       map[string]pool.Why
	Details    map[string]pool.Detail
}

func show(s *State) shown {
	all := shown{Pools: s.Pools(), Violations: s.Verify(), Fits: map[string]int{}, Whys: map[string]pool.Why{}, Details: map[string]pool.Detail{}}
	all.Holders, all.Waiters = s.Claims()
	space := s.Space()
	for _, p := range all.Pools {
		all.Fits[p.Name] = free(space, p.Name)
		all.Details[p.Name], _ = s.Pool(p.Name)
	}
	for _, w := range all.Waiters {
		all.Whys[w.Claim], _ = s.Why(w.Claim)
	}
	return all
}

// free returns how many slots of a pool fit into a space, at most 1,000.
func free(s *pool.Space, name string) int {
	n := 0
	for n < 1000 && s.Fits(map[string]int{name: n + 1}) {
		n++
	}
	return n
}

// A state that is shown each change shows the same as one that was read.
func TestAStateThatFollowsIsTheSameAsOneThatWasRead(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		w := newWorld(seed)
		w.follows = w.state()
		for range 60 {
			if w.step(); w.IntN(10) == 0 {
				w.confuse()
			}
			if w.IntN(10) > 0 {
				continue
			}
			if diff := cmp.Diff(show(w.state()), show(w.follows)); diff != "" {
				t.Fatalf("seed %d:\n%s", seed, diff)
			}
		}
		for _, key := range sortedNames(w.kvs) {
			w.write(0, map[string][]byte{key: nil})
		}
		s := w.follows
		if n := len(s.pools) + len(s.claims) + len(s.ended) + len(s.demands) + len(s.offers) + len(s.ids) + len(s.leases) + len(s.bad); n > 0 || s.role.Host != "" {
			t.Fatalf("seed %d: %d things are left of nothing: %+v", seed, n, s)
		}
	}
}

// confuse gives a key the value of another one, or deletes it.
func (w *world) confuse() {
	all := sortedNames(w.kvs)
	value := w.kvs[all[w.IntN(len(all))]].Value
	if w.IntN(3) == 0 {
		value = nil
	}
	key := all[w.IntN(len(all))]
	if value == nil && strings.Contains(key, "/demands/") || strings.HasSuffix(key, "/spec") {
		return // the world would not know what to do
	}
	w.write(w.newLease(), map[string][]byte{key: value})
}

// A pool with a value that can't be read grants nothing, and all else is shown as if it were not there.
func TestAnUnreadableValueClosesItsPoolOnly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		w := newWorld(seed).run(60)
		before := w.state()
		key := one(w, w.keys.Spec("db"), w.keys.Block("db", 49, 1), w.keys.Slots("db")+"x")
		w.spoil(key)
		s := w.state()
		d, err := s.Pool("db")
		if err != nil || !strings.Contains(d.Problem, key) {
			t.Fatalf("seed %d: %s: %q, %v", seed, key, d.Problem, err)
		}
		if n := free(s.Space(), "db"); n > 0 {
			t.Fatalf("seed %d: %d slots fit", seed, n)
		}
		was, is := before.Pools(), s.Pools()
		for i := range was {
			if was[i].Revision = is[i].Revision; was[i].Name != "db" && !cmp.Equal(was[i], is[i]) {
				t.Fatalf("seed %d: %s", seed, cmp.Diff(was[i], is[i]))
			}
		}
		holders, waiters := before.Claims()
		nowHeld, nowWaiting := s.Claims()
		if !cmp.Equal(holders, nowHeld) || len(waiters) != len(nowWaiting) {
			t.Fatalf("seed %d: %s", seed, cmp.Diff(holders, nowHeld))
		}
		if v := s.Verify(); !slices.ContainsFunc(v, func(v pool.Violation) bool { return v.Key == key }) {
			t.Fatalf("seed %d: %+v", seed, v)
		}
	}
}

// A slot key holds its number whatever its value is, as for those who claim directly, who read no values.
func TestASlotKeyHoldsItsNumberWhateverItsValue(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 3)
	w.hold("a", "one", db(1))
	keys := []string{w.keys.Number("db", 2), w.keys.Number("gone", 5)}
	s := w.state()
	for _, key := range keys {
		for range 2 { // it is put again
			s.Put(&mvccpb.KeyValue{Key: []byte(key), Value: []byte("pear"), CreateRevision: w.rev, ModRevision: w.rev})
		}
	}
	d, err := s.Pool("db")
	if n := free(s.Space(), "db"); err != nil || d.Problem != "" || d.Claimed != 2 || len(d.Holders) != 1 || n != 1 {
		t.Errorf("%+v, %v, %d are free", d, err, n)
	}
	if found := s.Verify(); len(found) != 2 || found[0].Key != keys[0] {
		t.Errorf("%+v", found)
	}
	if _, err := s.Pool("gone"); err != nil {
		t.Error(err)
	}
	for _, key := range keys {
		s.Delete(key)
	}
	if d, _ := s.Pool("db"); d.Claimed != 1 || len(s.pools) != 1 {
		t.Errorf("%+v of %d pools", d, len(s.pools))
	}
}

// FuzzState makes states of any keys and values.
func FuzzState(f *testing.F) {
	w := newWorld(3).run(60)
	for key, kv := range w.kvs {
		f.Add(uint64(3), strings.TrimPrefix(key, "/b/"), kv.Value)
	}
	for _, key := range []string{"pools/db/slots/000001", "pools/db/slots/b/00/1", "pools/db/demands/one/a/1", "pools/db/spec", "pools/x", "ids/a", "offers/one/a/1", "offers/one/a/passed", "dispatcher/role", "pending/db", "else"} {
		f.Add(uint64(7), key, []byte(`{"v":2,"claim":"c1","runs":[[0,3]],"main":"db/1"}`))
		f.Add(uint64(9), key, []byte(`{"v":2,"first":"cpu"}`))
		f.Add(uint64(5), key, []byte("{"))
	}
	f.Fuzz(func(t *testing.T, seed uint64, key string, value []byte) {
		w := newWorld(seed % 64).run(20)
		r := rand.New(rand.NewPCG(seed, 2))
		all := sortedNames(w.kvs)
		s := w.state()
		put := func(key string, value []byte) {
			s.Put(&mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: 1 + r.Int64N(w.rev+1), ModRevision: 1 + r.Int64N(w.rev+1), Lease: r.Int64N(3)})
		}
		put(w.keys.Prefix()+key, value)
		put(all[r.IntN(len(all))], value) // in place of what is there
		put(w.keys.Prefix()+key, w.kvs[all[r.IntN(len(all))]].Value)
		got := show(s)
		for _, p := range got.Pools {
			if (p.Problem != "" || p.Deleted || p.Paused) && got.Fits[p.Name] > 0 {
				t.Fatalf("%+v grants", p)
			}
			if p.Waiting != len(got.Details[p.Name].Waiters) {
				t.Fatalf("%+v has %d waiters", p, len(got.Details[p.Name].Waiters))
			}
		}
		for key := range s.bad {
			if !slices.ContainsFunc(got.Violations, func(v pool.Violation) bool { return v.Key == key }) {
				t.Fatalf("%q can't be read, and is no violation", key)
			}
		}
		for _, key := range []string{w.keys.Prefix() + key, all[0]} {
			s.Delete(key)
			if _, bad := s.bad[key]; bad {
				t.Fatalf("%q is deleted, and can't be read", key)
			}
		}
		show(s)
	})
}

// Keys that etcd does not have the lease of are named, those that can't be read too.
func TestKeysOnLeasesThatAreGone(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 9)
	w.hold("a", "one", db(2))
	w.waits("w", "two", db(1))
	w.write(7, map[string][]byte{w.keys.Number("db", 8): []byte("pear"), w.keys.ID("a"): wire.EncodeID(wire.ID{Host: "one", Instance: "i"})})
	var keys []string
	for _, v := range w.state().OnLeases(gone(1, 7, 102)) {
		if words := ", which etcd does not have, and would never end"; !strings.HasPrefix(v.Problem, "it hangs on lease ") || !strings.HasSuffix(v.Problem, words) {
			t.Error(v)
		}
		keys = append(keys, v.Key)
	}
	want := []string{
		w.keys.ID("a"), w.keys.Demands("db", "two", "i") + "2",
		w.keys.Number("db", 0), w.keys.Number("db", 1), w.keys.Number("db", 8),
	}
	if !slices.Equal(keys, want) {
		t.Errorf("%q, want %q", keys, want)
	}
	if found := w.state().OnLeases(map[store.LeaseID]bool{9: true}); len(found) > 0 {
		t.Errorf("%v", found)
	}
}

// A value that can't be read is one violation, whether its key is on a lease or not.
func TestAKeyThatCannotBeReadIsNamedOnce(t *testing.T) {
	w := newByHand(t)
	w.write(0, map[string][]byte{w.keys.Number("db", 1): []byte("pear"), w.keys.ID("x"): []byte("pear"), w.keys.Spec("db"): []byte("pear")})
	w.write(3, map[string][]byte{w.keys.Number("db", 2): []byte("pear")})
	if found := w.state().Verify(); len(found) != 4 {
		t.Errorf("found %v", found)
	}
}

func TestALoweredLimitIsNoViolation(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 9)
	w.hold("a", "one", db(5))
	w.spec("db", 3)
	if found := w.state().Verify(); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	// Its keys were put again since, with what it had.
	m := w.claims["a"]
	w.putClaim(m, 3, store.FenceAt(3))
	if found := w.state().Verify(); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	w.putClaim(m, 0, 0)
	if found := w.state().Verify(); len(found) != 3 {
		t.Errorf("found %v", found)
	}
}
