package registry_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// cluster is an etcd with a registry.
type cluster struct {
	t      testing.TB
	client *store.Client
	keys   store.Keys
	reg    registry.Registry
}

func newCluster(t testing.TB) *cluster {
	client := embedtest.Client(t, embedtest.New(t))
	keys := store.NewKeys(store.DefaultPrefix)
	return &cluster{t: t, client: client, keys: keys, reg: registry.Registry{Backend: client, Keys: keys}}
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

func (c *cluster) read() *pool.Reader {
	c.t.Helper()
	r, err := pool.Read(c.ctx(), c.client, c.keys)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
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
	s := c.read().Pools()[0]
	if s.Spec != want || s.LimitSince != created || s.SpecRevision != put.Revision {
		t.Errorf("read back: %+v", s)
	}
	limit = 4
	put, err = c.reg.Set(c.ctx(), "db", pool.Change{Limit: &limit})
	if s := c.read().Pools()[0]; err != nil || s.LimitSince != put.Revision || s.Limit != 4 || !s.Paused {
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
	s := c.read().Pools()[0]
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
		wanted, others := c.read().Pools()[0].SpecRevision, false
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
	if s := c.read().Pools()[0]; s.Limit != 4 || s.SpecRevision <= put.Revision {
		t.Errorf("the pool is %+v", s)
	}
}

func TestASpecThatCanNotBeReadIsNotOverwritten(t *testing.T) {
	c := newCluster(t)
	key := c.keys.Spec("db")
	c.txn(store.Put(key, []byte(`{"v":2,"limit":3}`), 0))
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
