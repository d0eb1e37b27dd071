package list

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// moved is an etcd in which a claim moves from the first pool to the last one, or back, after the first page that is read.
type moved struct {
	store.Backend
	t     *testing.T
	keys  wire.Keys
	lease store.LeaseID
	n     int // moves
	pages int // that others follow
	// newest has each page read at the present revision, to show that the checks notice.
	newest bool
}

func (m *moved) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if m.newest {
		r.Revision = 0
	}
	resp, err := m.Backend.Range(ctx, r)
	if err == nil && strings.HasPrefix(string(r.Key), m.keys.Pools()) {
		if r.Limit == 0 {
			m.t.Errorf("%s is read without a bound", r.Key)
		}
		if resp.More {
			m.pages++
		}
		if string(r.Key) == m.keys.Pools() {
			m.move(ctx)
		}
	}
	return resp, err
}

// move moves the claim.
func (m *moved) move(ctx context.Context) {
	m.t.Helper()
	from, to := "aaa", "zzz"
	if m.n++; m.n%2 == 0 {
		from, to = to, from
	}
	t := &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(m.keys.Number(from, 0))}}
	for _, p := range m.claim("moves", to, 0) {
		t.Success = append(t.Success, store.Put(p.Key(m.keys), p.Value, m.lease))
	}
	if _, err := m.Backend.Txn(ctx, t); err != nil {
		m.t.Error(err)
	}
}

// claim returns the keys of a claim of one slot.
func (m *moved) claim(id, name string, number int) []wire.Put {
	r := &pool.Request{ID: id, Slots: map[string]int{name: 1}, Holder: pool.Holder{Host: "one", Instance: "i", Labels: map[string]string{"what": strings.Repeat("x", 200)}}}
	return wire.Spell(r).Puts(map[string]slots.Held{name: {Numbers: []int{number}}}, wire.Written{Since: time.Unix(1, 0)})
}

// All pages are of one revision, whatever happens while they are read from a real etcd.
func TestPagesAreOfOneRevision(t *testing.T) {
	t.Parallel()
	b := embedtest.Client(t, embedtest.New(t))
	lease, _, err := b.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m := &moved{Backend: b, t: t, keys: wire.Keys{Keys: store.NewKeys("/b/")}, lease: lease}
	spec := pool.DefaultSpec()
	spec.Limit = 10_000
	first := &pb.TxnRequest{}
	for _, name := range []string{"aaa", "mmm", "zzz"} {
		first.Success = append(first.Success, store.Put(m.keys.Spec(name), wire.EncodeSpec(spec, 0), 0))
	}
	if _, err := b.Txn(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	const claims = 6000
	for n := 0; n < claims; {
		fill := &pb.TxnRequest{}
		for range 120 {
			for _, p := range m.claim(fmt.Sprint("c", n), "mmm", n) {
				fill.Success = append(fill.Success, store.Put(p.Key(m.keys), p.Value, lease))
			}
			n++
		}
		if _, err := b.Txn(t.Context(), fill); err != nil {
			t.Fatal(err)
		}
	}
	m.move(t.Context())
	whole := func() *State {
		s, err := Read(t.Context(), m, m.keys.Keys)
		if err != nil {
			t.Fatal(err)
		}
		pools := s.Pools()
		if len(pools) != 3 || pools[0].Claimed+pools[2].Claimed != 1 || pools[1].Claimed != claims {
			return nil
		}
		return s
	}
	for range 4 {
		s := whole()
		if s == nil {
			t.Fatal("the pages are of several revisions")
		}
		if found := s.Verify(); len(found) > 0 {
			t.Errorf("found %v", found[0])
		}
		if why, err := s.Why("moves"); err != nil || why.Held == nil || why.Held.Lease != lease {
			t.Errorf("%+v, %v", why, err)
		}
	}
	if m.pages < 4 {
		t.Errorf("only %d pages were followed by others", m.pages)
	}
	if m.newest = true; whole() != nil {
		t.Error("nothing noticed that pages are of several revisions")
	}
	found, err := Stuck(t.Context(), b, m.keys.Keys, []store.LeaseID{lease, 77})
	if err != nil || len(found) > 0 {
		t.Errorf("stuck are %v, %v", found, err)
	}
}

// A pool that depends on others is read from a real etcd with what it needs.
func TestAPoolOfSeveralIsReadFromEtcd(t *testing.T) {
	t.Parallel()
	b := embedtest.Client(t, embedtest.New(t))
	w := newByHand(t)
	for _, name := range []string{"cpu", "db", "gpu"} {
		w.spec(name, 2)
	}
	w.hold("a", "one", map[string]int{"cpu": 1, "db": 2})
	w.waits("v", "two", map[string]int{"db": 1, "gpu": 1})
	w.waits("w", "two", map[string]int{"gpu": 2})
	w.fill(t, b)
	full, err := Read(t.Context(), b, w.keys.Keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cpu", "db", "gpu"} {
		one, err := ReadPool(t.Context(), b, w.keys.Keys, name)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := full.Pool(name)
		if got, err := one.Pool(name); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(want, got))
		}
	}
	// The main key of a claim that only a pool of a waiter shows is read by itself.
	one, err := ReadPool(t.Context(), b, w.keys.Keys, "gpu")
	if err != nil {
		t.Fatal(err)
	}
	if why, err := one.Why("v"); err != nil || len(why.Reason.Pools) != 1 || why.Reason.Pools[0].Holders[0].Host != "one" {
		t.Errorf("%+v, %v", why, err)
	}
}

// leaseless is an etcd that does not know a lease which keys hang on.
type leaseless struct {
	store.Backend
	gone store.LeaseID
}

func (b leaseless) TimeToLive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	if id == b.gone {
		return 0, store.ErrLeaseNotFound
	}
	return b.Backend.TimeToLive(ctx, id)
}

func TestKeysOnALeaseThatEtcdDoesNotHaveAreStuck(t *testing.T) {
	b := storetest.NewManualBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	keys := wire.Keys{Keys: store.NewKeys("/b/")}
	var ids []store.LeaseID
	for i := range 3 {
		id, _, err := b.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Number("db", i), []byte("x"), id)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := b.Revoke(t.Context(), ids[2]); err != nil { // it has ended, and its key with it
		t.Fatal(err)
	}
	found, err := Stuck(t.Context(), leaseless{b, ids[1]}, keys.Keys, ids)
	if err != nil || len(found) != 1 || found[0].Key != keys.Number("db", 1) || !strings.Contains(found[0].Problem, "would never end") {
		t.Errorf("stuck are %v, %v", found, err)
	}
	if found, err := Stuck(t.Context(), b, keys.Keys, ids[:2]); err != nil || len(found) > 0 {
		t.Errorf("stuck are %v, %v", found, err)
	}
	b.Down()
	if _, err := Stuck(t.Context(), b, keys.Keys, ids); err == nil {
		t.Error("read from an etcd that is away")
	}
}
