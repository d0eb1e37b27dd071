package list

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// backend returns an etcd that holds what a world holds, but for leases.
func (w *world) backend(t *testing.T) *storetest.Backend {
	t.Helper()
	b := storetest.NewManualBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	w.fill(t, b)
	return b
}

// fill writes what a world holds, but for leases, each revision in one transaction.
func (w *world) fill(t *testing.T, b store.Backend) {
	t.Helper()
	byRev := map[int64][]*pb.RequestOp{}
	var revs []int64
	for _, key := range sortedNames(w.kvs) {
		kv := w.kvs[key]
		if byRev[kv.ModRevision] == nil {
			revs = append(revs, kv.ModRevision)
		}
		byRev[kv.ModRevision] = append(byRev[kv.ModRevision], store.Put(key, kv.Value, 0))
	}
	slices.Sort(revs)
	for _, rev := range revs {
		if _, err := b.Txn(t.Context(), &pb.TxnRequest{Success: byRev[rev]}); err != nil {
			t.Fatal(err)
		}
	}
}

// ranges records the ranges that are read.
type ranges struct {
	store.Backend
	keys store.Keys

	mu  sync.Mutex
	all []string
}

func (r *ranges) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	r.mu.Lock()
	r.all = append(r.all, strings.TrimPrefix(string(req.Key), r.keys.Prefix()))
	r.mu.Unlock()
	return r.Backend.Range(ctx, req)
}

// taken returns the ranges of pools that were read since the last call.
func (r *ranges) taken() []string {
	all := slices.DeleteFunc(r.all, func(key string) bool { return !strings.HasPrefix(key, "pools/") })
	r.all = nil
	return all
}

func TestAPoolIsReadWithWhatItDependsOn(t *testing.T) {
	w := newByHand(t)
	for _, name := range []string{"alone", "cpu", "db", "gpu", "other", "ssd"} {
		w.spec(name, 3)
	}
	w.hold("a", "one", map[string]int{"db": 2, "gpu": 1})
	w.hold("b", "one", map[string]int{"alone": 3})
	w.hold("c", "one", map[string]int{"cpu": 1, "gpu": 1})
	w.waits("d", "one", map[string]int{"gpu": 1, "ssd": 1})
	w.waits("e", "two", map[string]int{"db": 3})
	w.waits("f", "two", map[string]int{"cpu": 1, "ssd": 2})
	w.role("one")
	b := &ranges{Backend: w.backend(t), keys: w.keys.Keys}
	full, err := Read(t.Context(), b, w.keys.Keys)
	if err != nil {
		t.Fatal(err)
	}
	b.taken()
	for name, want := range map[string][]string{
		"alone": {"pools/alone/"},
		"other": {"pools/other/"},
		"db":    {"pools/db/"},
		"cpu":   {"pools/cpu/", "pools/ssd/", "pools/gpu/demands/"},
		"gpu":   {"pools/gpu/", "pools/cpu/", "pools/db/", "pools/ssd/"},
		"ssd":   {"pools/ssd/", "pools/cpu/", "pools/gpu/"},
	} {
		one, err := ReadPool(t.Context(), b, w.keys.Keys, name)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.taken(); !slices.Equal(got, want) {
			t.Errorf("%s: read %q, want %q", name, got, want)
		}
		got, err := one.Pool(name)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := full.Pool(name); cmp.Diff(want, got) != "" {
			t.Errorf("%s, with the pools of its claims against all:\n%s", name, cmp.Diff(want, got))
		}
	}
}

// What is shown of one pool is the same whether all were read or only what it depends on, in every world.
func TestAPoolIsTheSameHoweverItIsRead(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		w := newWorld(seed).run(80)
		b := w.backend(t)
		full, err := Read(t.Context(), b, w.keys.Keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range worldPools {
			one, err := ReadPool(t.Context(), b, w.keys.Keys, name)
			if err != nil {
				t.Fatal(err)
			}
			want, unknown := full.Pool(name)
			got, err := one.Pool(name)
			if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (unknown == nil) {
				t.Fatalf("seed %d: %s: %v, %v:\n%s", seed, name, unknown, err, diff)
			}
			for _, waits := range got.Waiters {
				id := waits.Host + "/" + waits.Instance + "/" + waits.Claim
				want, _ := full.Why(id)
				if got, err := one.Why(id); err != nil || cmp.Diff(want, got) != "" {
					t.Fatalf("seed %d: %s: why %s: %v:\n%s", seed, name, id, err, cmp.Diff(want, got))
				}
			}
		}
	}
}

// meddling changes etcd after the first range that is read.
type meddling struct {
	store.Backend
	once sync.Once
	then func()
}

func (m *meddling) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, err := m.Backend.Range(ctx, req)
	m.once.Do(m.then)
	return resp, err
}

// All that belongs to a pool is of the revision at which the pool was read.
func TestWhatAPoolDependsOnIsOfItsRevision(t *testing.T) {
	w := newByHand(t)
	for _, name := range []string{"cpu", "db", "gpu"} {
		w.spec(name, 1)
	}
	w.hold("a", "one", map[string]int{"cpu": 1, "gpu": 1})
	w.waits("w", "two", map[string]int{"db": 1, "gpu": 1})
	for name, read := range map[string]func(store.Backend) (*State, error){
		"a pool": func(b store.Backend) (*State, error) { return ReadPool(t.Context(), b, w.keys.Keys, "db") },
		"a reason": func(b store.Backend) (*State, error) {
			return readBrief(t.Context(), b, w.keys.Keys, []string{"db", "gpu"})
		},
		"all": func(b store.Backend) (*State, error) { return Read(t.Context(), b, w.keys.Keys) },
	} {
		b := w.backend(t)
		s, err := read(&meddling{Backend: b, then: func() {
			ops := []*pb.RequestOp{store.Put(w.keys.Role(), []byte("pear"), 0)}
			for _, key := range []string{"cpu", "gpu"} {
				ops = append(ops, store.Put(w.keys.Number(key, 0), []byte("pear"), 0))
			}
			if _, err := b.Txn(t.Context(), &pb.TxnRequest{Success: ops}); err != nil {
				t.Error(err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		why, err := s.Why("w")
		if err != nil || len(why.Reason.Pools) != 1 || len(why.Reason.Pools[0].Holders) != 1 || why.Reason.Pools[0].Holders[0].Host != "one" || len(s.bad) > 0 {
			t.Errorf("%s: %+v, %v, %v", name, why.Reason, s.bad, err)
		}
	}
}

func TestAPoolOfManyIsReadWithAll(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 100)
	for i := range 9 {
		name := fmt.Sprint("a", i)
		w.spec(name, 3)
		w.hold("in-"+name, "one", map[string]int{name: 1, "db": 1})
	}
	b := &ranges{Backend: w.backend(t), keys: w.keys.Keys}
	s, err := ReadPool(t.Context(), b, w.keys.Keys, "db")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.taken(); got[len(got)-1] != "pools/" || len(got) > maxRelated+2 {
		t.Errorf("read %q", got)
	}
	if d, err := s.Pool("db"); err != nil || len(d.Holders) != 9 {
		t.Errorf("%+v, %v", d, err)
	}
}

// What is not permitted to be read is left out, unless nothing can be shown without it.
func TestWhatEtcdDoesNotPermitIsLeftOut(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 3)
	w.waits("a", "one", db(1))
	w.passed("one")
	b := w.backend(t)
	deny := func(prefix string) {
		b.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op == storetest.OpRange && strings.HasPrefix(string(call.Range.Key), prefix) {
				return storetest.Fault{Drop: true, Err: store.ErrDenied}
			}
			return storetest.Fault{}
		})
	}
	for _, prefix := range []string{w.keys.OffersAll(), w.keys.ID("")} {
		deny(prefix)
		s, err := Read(t.Context(), b, w.keys.Keys)
		if err != nil {
			t.Fatal(err)
		}
		want := "one/i does not answer, and others pass its claims"
		if prefix == w.keys.OffersAll() {
			want = "waiting its turn"
		}
		if _, waiters := s.Claims(); len(waiters) != 1 || waiters[0].Reason != want {
			t.Errorf("without %s: %+v", prefix, waiters)
		}
	}
	for _, prefix := range []string{w.keys.Pools(), w.keys.Role()} {
		deny(prefix)
		if _, err := Read(t.Context(), b, w.keys.Keys); !errors.Is(err, store.ErrDenied) {
			t.Errorf("without %s: %v", prefix, err)
		}
		if _, err := ReadPool(t.Context(), b, w.keys.Keys, "db"); !errors.Is(err, store.ErrDenied) {
			t.Errorf("a pool without %s: %v", prefix, err)
		}
	}
}
