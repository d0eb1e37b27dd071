package registry_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/wire"
)

// cluster is an etcd with a registry.
type cluster struct {
	t      testing.TB
	client *store.Client
	keys   wire.Keys
	reg    registry.Registry
	// spec returns a spec, with its revision and that since which its limit holds.
	spec func(name string) shown
}

type shown struct {
	pool.Spec
	revision, limitSince int64
}

func newCluster(t testing.TB) *cluster {
	client := embedtest.Client(t, embedtest.New(t))
	c := &cluster{t: t, client: client, keys: wire.Keys{Keys: store.NewKeys(store.DefaultPrefix)}}
	c.reg = registry.Registry{Backend: c.client, Keys: c.keys.Keys}
	c.spec = func(name string) shown {
		c.t.Helper()
		kv := c.get(c.keys.Spec(name))
		s, counted, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
		if err != nil {
			t.Fatal(err)
		}
		return shown{s, counted.Revision, counted.Since}
	}
	return c
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *cluster) change(name string, ch pool.Change) {
	c.t.Helper()
	if _, err := c.reg.Set(c.ctx(), name, ch); err != nil {
		c.t.Fatal(err)
	}
}

// pool creates a pool, or changes its limit.
func (c *cluster) pool(name string, limit int) {
	c.t.Helper()
	c.change(name, pool.Change{Limit: &limit})
}

// get returns a key that must exist.
func (c *cluster) get(key string) *mvccpb.KeyValue {
	c.t.Helper()
	resp, err := c.client.Range(c.ctx(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) != 1 {
		c.t.Fatalf("%s: %v", key, err)
	}
	return resp.Kvs[0]
}

func (c *cluster) txn(ops ...*pb.RequestOp) {
	c.t.Helper()
	if _, err := c.client.Txn(c.ctx(), &pb.TxnRequest{Success: ops}); err != nil {
		c.t.Fatal(err)
	}
}

// keysUnder is how many keys there are.
func (c *cluster) keysUnder(prefix string) int {
	c.t.Helper()
	n, _, err := store.Pages{Prefix: prefix}.Count(c.ctx(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	return int(n)
}

func TestSpecsKeepWhatAChangeDoesNotName(t *testing.T) {
	c := newCluster(t)
	limit, lease, reserve, yes := 3, time.Minute, 5*time.Second, true
	put, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit})
	want := pool.DefaultSpec()
	want.Limit = 3
	if err != nil || !put.Created || put.Spec != want || put.Revision == 0 {
		t.Errorf("created: %+v, %v", put, err)
	}
	created := put.Revision
	put, err = c.reg.Set(c.ctx(), "db", pool.Change{LeaseDuration: &lease, ReserveAfter: &reserve, Paused: &yes})
	want.LeaseDuration, want.ReserveAfter, want.Paused = lease, reserve, true
	if err != nil || put.Created || put.Spec != want || put.Revision <= created {
		t.Errorf("changed: %+v, %v", put, err)
	}
	same, err := c.reg.Change(c.ctx(), "db", pool.Change{Limit: &limit})
	if err != nil || same.Revision != put.Revision || same.Spec != want {
		t.Errorf("to change nothing: %+v, %v", same, err)
	}
	if s := c.spec("db"); s != (shown{want, put.Revision, created}) {
		t.Errorf("read back: %+v", s)
	}
	limit = 4
	put, err = c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit})
	if s := c.spec("db"); err != nil || s.limitSince != put.Revision || s.Limit != 4 || !s.Paused {
		t.Errorf("with another limit: %+v, %v", s, err)
	}
}

func TestChangesThatCanNotBeAreRefused(t *testing.T) {
	c := newCluster(t)
	limit, far, short := 3, pool.MaxLimit+1, time.Second
	for name, tc := range map[string]struct {
		do   func() error
		code problem.Code
	}{
		"a new pool without a limit": {func() error { _, err := c.reg.Set(c.ctx(), "db", pool.Change{LeaseDuration: &short}); return err }, problem.Invalid},
		"too large a limit":          {func() error { _, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: &far}); return err }, problem.Invalid},
		"too short a lease": {func() error {
			_, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit, LeaseDuration: &short})
			return err
		}, problem.Invalid},
		"a bad name":                {func() error { _, err := c.reg.Set(c.ctx(), "DB", pool.Change{Limit: &limit}); return err }, problem.Invalid},
		"a bad name to change":      {func() error { _, err := c.reg.Change(c.ctx(), "a/b", pool.Change{}); return err }, problem.Invalid},
		"a bad name to delete":      {func() error { _, err := c.reg.Delete(c.ctx(), "", nil); return err }, problem.Invalid},
		"an unknown pool to change": {func() error { _, err := c.reg.Change(c.ctx(), "no", pool.Change{Limit: &limit}); return err }, problem.PoolNotFound},
		"an unknown pool to delete": {func() error { _, err := c.reg.Delete(c.ctx(), "no", nil); return err }, problem.PoolNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.do(); problem.CodeOf(err) != tc.code {
				t.Errorf("got %v, want %s", err, tc.code)
			}
		})
	}
	if n := c.keysUnder(c.keys.Pools()); n != 0 {
		t.Errorf("%d keys were written all the same", n)
	}
}

func TestOperatorsDoNotUndoEachOther(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	var wg sync.WaitGroup
	yes, reserve, lease := true, pool.NeverReserve, time.Hour
	for _, ch := range []pool.Change{{Paused: &yes}, {ReserveAfter: &reserve}, {LeaseDuration: &lease}} {
		wg.Go(func() {
			if _, err := c.reg.Set(c.ctx(), "db", ch); err != nil {
				t.Error(err)
			}
		})
	}
	for limit := 2; limit <= 10; limit++ {
		wg.Go(func() {
			if _, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := c.spec("db")
	if s.Limit < 2 || !s.Paused || s.ReserveAfter != reserve || s.LeaseDuration != lease {
		t.Errorf("the pool is %+v", s.Spec)
	}
}

func TestAConditionHoldsWhenAChangeIsMade(t *testing.T) {
	c := newCluster(t)
	put, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: new(1)})
	if err != nil {
		t.Fatal(err)
	}
	outdated := problem.New(problem.Precondition, "another revision")
	// unless returns a condition after which, the first time, another operator changes the pool.
	unless := func(limit int) store.Condition {
		wanted, others := c.spec("db").revision, false
		return func(rev int64) error {
			if rev != wanted {
				return outdated
			}
			if !others {
				others = true
				c.change("db", pool.Change{Limit: &limit})
			}
			return nil
		}
	}
	if _, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: new(9), If: unless(2)}); !errors.Is(err, outdated) {
		t.Errorf("changed: %v", err)
	}
	if _, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: new(9), Replace: true, If: unless(3)}); !errors.Is(err, outdated) {
		t.Errorf("replaced: %v", err)
	}
	if _, err := c.reg.Delete(c.ctx(), "db", unless(4)); !errors.Is(err, outdated) {
		t.Errorf("deleted: %v", err)
	}
	if s := c.spec("db"); s.Limit != 4 || s.revision <= put.Revision {
		t.Errorf("the pool is %+v", s)
	}
}

func TestASpecThatCanNotBeReadIsNotOverwritten(t *testing.T) {
	c := newCluster(t)
	key := c.keys.Spec("db")
	c.txn(store.Put(key, []byte(`{"v":3,"limit":3}`), 0))
	limit := 4
	_, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit})
	var corrupt *store.CorruptError
	if problem.CodeOf(err) != problem.CorruptValue || !errors.As(err, &corrupt) || corrupt.Key != key {
		t.Errorf("got %v", err)
	}
	if _, err := c.reg.Delete(c.ctx(), "db", nil); err != nil {
		t.Errorf("it can't be deleted either: %v", err)
	}
}

func TestAPoolHasTheLimitThatIsDeclared(t *testing.T) {
	c := newCluster(t)
	same, create, err := c.reg.Declare(c.ctx(), "task.t", 3)
	if err != nil || create == nil {
		t.Fatal(err)
	}
	at, err := store.Commit(c.ctx(), c.client, []*pb.Compare{same}, create)
	if s := c.spec("task.t"); err != nil || s.Limit != 3 || s.revision != at || s.limitSince != at {
		t.Errorf("created: %+v, %v", s, err)
	}
	if same, create, err = c.reg.Declare(c.ctx(), "task.t", 3); err != nil || create != nil || same.GetModRevision() != at {
		t.Errorf("declared again: %v, %v, %v", same, create, err)
	}
	var other *pool.OtherLimitError
	if _, _, err = c.reg.Declare(c.ctx(), "task.t", 4); !errors.As(err, &other) || *other != (pool.OtherLimitError{Pool: "task.t", Declared: 4, Limit: 3}) {
		t.Errorf("declared with another limit: %v", err)
	}
	if _, _, err = c.reg.Declare(c.ctx(), "other", pool.MaxLimit+1); problem.CodeOf(err) != problem.Invalid {
		t.Errorf("declared with a limit that cannot be: %v", err)
	}
}

func TestSlotsThatCanNotBeGrantedAreRefused(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	c.pool("closed", pool.Closed)
	c.pool("open", pool.Unlimited)
	for _, tc := range []struct {
		slots map[string]int
		code  problem.Code // empty if it can be granted
	}{
		{map[string]int{"db": 3, "closed": 5, "open": 9}, ""},
		{map[string]int{"db": 4, "zzz": 1}, problem.ExceedsLimit},
		{map[string]int{"db": 1, "aaa": 1}, problem.PoolNotFound},
	} {
		var p *problem.Error
		err := c.reg.Check(c.ctx(), tc.slots)
		if errors.As(err, &p); tc.code == "" && err != nil || tc.code != "" && (p == nil || p.Code != tc.code || p.Field == "") {
			t.Errorf("%v: %v", tc.slots, err)
		}
	}
}
