package owner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// rig is a world of one host in which every message arrives, with a pool of 4 slots.
type rig struct {
	*world
	t *testing.T
	h *host
	// refuse says what etcd refuses, nil for nothing.
	refuse func(*pb.TxnRequest) error
	sent   int // transactions
}

func newRig(t *testing.T) *rig {
	t.Helper()
	w := newWorld(1, nil)
	w.hosts = w.hosts[:1]
	r := &rig{world: w, t: t, h: w.hosts[0], refuse: func(*pb.TxnRequest) error { return nil }}
	s := pool.DefaultSpec()
	s.Limit = 4
	w.putSpec("db", s)
	return r
}

// ask asks for a claim of the pool.
func (r *rig) ask(id string, n int, x store.Extra) *Claim {
	c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{"db": n}, Wait: time.Hour, Extra: x, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	r.h.asked[c] = true
	r.h.Claim(c, r.now(), time.Unix(1, 0))
	return c
}

// pass lets everything happen for a time, and returns the results by the ids of claims.
func (r *rig) pass(d time.Duration) map[string]Result {
	all := map[string]Result{}
	for until := r.clock + d; r.clock <= until; r.clock += localWait / 2 {
		for _, x := range r.h.halves {
			if x.unknown {
				r.fence(x)
				continue
			}
			for t, ok := x.Next(r.now(), time.Unix(1, 0)); ok; t, ok = x.Next(r.now(), time.Unix(1, 0)) {
				r.sent++
				if err := r.refuse(t); err != nil {
					x.unknown = x.Answer(nil, err)
					break
				}
				x.Answer(r.carry(t))
			}
		}
		if t, ok := r.h.Reads(); ok {
			r.h.Read(r.must(t), nil)
		}
		for _, res := range r.h.Results() {
			all[res.Claim.request.ID] = res
		}
		for _, err := range r.errs {
			r.t.Fatal(err)
		}
	}
	return all
}

// fence ends that the outcome of a transaction is unknown.
func (r *rig) fence(x *half) {
	t := x.Fence()
	if r.refuse(t) == nil && x.Fenced(r.must(t)) {
		x.Resolved(r.must(x.Unresolved()))
		x.unknown = false
	}
}

func withKeys(keys ...string) (x store.Extra) {
	for _, k := range keys {
		x.Then = append(x.Then, store.Put(k, nil, 0))
	}
	return x
}

// A refusal by etcd that is about one claim is the end of that one, and of no other.
func TestWhatEtcdRefusesHitsOneClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		x    store.Extra
		code problem.Code
		text string
	}{
		"denied":             {withKeys("/b/denied/x"), problem.EtcdDenied, "the claim was refused: etcd refused"},
		"a key twice":        {withKeys("/b/x", "/b/x"), problem.EtcdUnavailable, "the claim was refused: txn: etcd can't take the request: rpc error: code = InvalidArgument desc = etcdserver: duplicate key given in txn request"},
		"too large":          {store.Extra{Then: []*pb.RequestOp{store.Put("/b/x", make([]byte, 2<<20), 0)}}, problem.EtcdUnavailable, "the claim was refused: txn: request is too large for etcd: rpc error: code = InvalidArgument desc = etcdserver: request is too large"},
		"a lease is gone":    {store.Extra{Then: []*pb.RequestOp{store.Put("/b/x", nil, goneLease)}}, problem.EtcdUnavailable, "what claim bad was to happen with can't be written: txn: lease is gone: rpc error: code = NotFound desc = etcdserver: requested lease not found"},
		"a condition failed": {store.Extra{If: []*pb.Compare{store.Present("/b/no")}}, problem.Precondition, `what claim "bad" was to happen with is no longer so`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.ask("a", 1, withKeys("/b/a"))
			r.ask("bad", 1, tc.x)
			r.ask("c", 1, store.Extra{})
			all := r.pass(time.Second)
			for _, id := range []string{"a", "c"} {
				if all[id].Outcome != Granted {
					t.Errorf("claim %s: %+v", id, all[id])
				}
			}
			if r.sent > 5 { // together, and each by itself, some of them twice
				t.Errorf("%d transactions", r.sent)
			}
			bad := all["bad"]
			if bad.Outcome != Refused || problem.CodeOf(bad.Err) != tc.code || bad.Err.Error() != tc.text {
				t.Errorf("%d: %v", bad.Outcome, bad.Err)
			}
			if bad.Claim.races != 0 {
				t.Errorf("it has lost %d races", bad.Claim.races)
			}
			if r.ask("d", 2, store.Extra{}); r.pass(time.Second)["d"].Outcome != Granted {
				t.Error("its slots are not free")
			}
		})
	}
}

// A login that has ended refuses nobody.
func TestWithoutALoginNobodyIsRefused(t *testing.T) {
	for _, err := range []error{store.ErrTokenExpired, store.ErrNoLogin} {
		r := newRig(t)
		r.refuse = func(*pb.TxnRequest) error { return fmt.Errorf("txn: %w", err) }
		for i := range 6 {
			r.ask(fmt.Sprint("c", i), 1, store.Extra{})
		}
		for id, res := range r.pass(time.Second) {
			if res.Outcome == Refused {
				t.Errorf("%s: %v", id, res.Err)
			}
		}
		r.refuse = func(*pb.TxnRequest) error { return nil }
		granted, sent := 0, r.sent
		for _, res := range r.pass(time.Second) {
			if res.Outcome == Granted {
				granted++
			}
		}
		if granted != 4 || r.sent-sent > 6 {
			t.Errorf("%d are granted by %d transactions", granted, r.sent-sent)
		}
	}
}

// A release that etcd refuses is tried again after some time. Others go on.
func TestAReleaseThatIsRefusedIsTriedAgain(t *testing.T) {
	r := newRig(t)
	a, b := r.ask("a", 1, store.Extra{}), r.ask("b", 1, store.Extra{})
	r.pass(time.Second)
	key := a.main.Key(r.keys)
	r.refuse = func(t *pb.TxnRequest) error {
		if slices.Contains(deletes(t), key) {
			return store.ErrDenied
		}
		return nil
	}
	r.h.Release(a)
	r.h.Release(b)
	sent := r.sent
	if all := r.pass(time.Second); all["b"].Outcome != Released || len(all) != 1 {
		t.Errorf("%+v", all)
	}
	if r.pass(5 * time.Second); r.sent-sent > 4 {
		t.Errorf("%d transactions", r.sent-sent)
	}
	r.refuse = func(*pb.TxnRequest) error { return nil }
	if all := r.pass(shelfTime); all["a"].Outcome != Released || all["a"].Err != nil {
		t.Errorf("%+v", all)
	}
}

// deletes returns the keys that a transaction deletes.
func deletes(t *pb.TxnRequest) (keys []string) {
	for _, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			keys = append(keys, deletes(child)...)
		} else if d := op.GetRequestDeleteRange(); d != nil {
			keys = append(keys, string(d.Key))
		}
	}
	return keys
}

// A demand that etcd refuses waits where no other instance sees it, and is put again after some time. Others are put.
func TestADemandThatIsRefusedIsPutLater(t *testing.T) {
	for name, part := range map[string]string{"its key": "/pools/gpu/demands/", "a pool that becomes pending": "/pending/gpu"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := pool.DefaultSpec()
			s.Limit = 1
			r.putSpec("gpu", s)
			ask := func(id, name string, n int) *Claim {
				c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{name: n}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
				r.h.Claim(c, r.now(), time.Unix(1, 0))
				return c
			}
			ask("a", "db", 4)
			ask("b", "gpu", 1)
			r.pass(time.Second)
			r.refuse = func(t *pb.TxnRequest) error {
				if names(t, part) {
					return store.ErrDenied
				}
				return nil
			}
			ask("c", "gpu", 1)
			ask("d", "db", 1)
			sent := r.sent
			r.pass(time.Second)
			in := func() string {
				var ids []string
				for _, x := range r.waiters() {
					ids = append(ids, x.Claim)
				}
				return strings.Join(slices.Sorted(slices.Values(ids)), "")
			}
			want := "d"
			if strings.HasPrefix(part, "/pending") {
				want = "cd"
			}
			if got := in(); got != want {
				t.Errorf("%s wait in etcd, want %s", got, want)
			}
			if _, ok := r.get(r.keys.Pending("db")); !ok {
				t.Error("another pool is not pending")
			}
			if r.pass(5 * time.Second); r.sent-sent > 8 {
				t.Errorf("%d transactions", r.sent-sent)
			}
			r.refuse = func(*pb.TxnRequest) error { return nil }
			r.pass(shelfTime)
			if got := in(); got != "cd" {
				t.Errorf("%s wait in etcd", got)
			}
			if _, ok := r.get(r.keys.Pending("gpu")); !ok {
				t.Error("the pool is not pending")
			}
		})
	}
}
