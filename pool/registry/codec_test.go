package registry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// A limit holds since the revision that has set it, whatever else of the pool was changed since.
func TestALimitHoldsSinceItWasSet(t *testing.T) {
	c := newCluster(t)
	for _, limit := range []int{3, pool.Unlimited, pool.Closed, 5, 4} {
		c.pool("db", limit)
		at := c.spec("db").revision
		for _, ch := range []pool.Change{{Paused: new(true)}, {ReserveAfter: new(pool.NeverReserve)}, {LeaseDuration: new(time.Hour)}, {Limit: &limit, Paused: new(false)}} {
			c.change("db", ch)
			if s := c.spec("db"); s.limitSince != at || s.Limit != limit || s.revision == at {
				t.Errorf("limit %d, set at %d, is %+v", limit, at, s)
			}
		}
	}
	if _, err := c.reg.Delete(c.ctx(), "db", nil); err != nil {
		t.Fatal(err)
	}
	c.pool("db", 4)
	if s := c.spec("db"); s.limitSince != s.revision {
		t.Errorf("the pool that was created again is %+v", s)
	}
}

// What is deleted with a pool is what waits for it. What is held is kept, and so is all of other pools.
func TestDemandsAreDeletedWithTheirPool(t *testing.T) {
	c := newCluster(t)
	held := []string{c.keys.Number("db", 3), c.keys.Block("db", 0, 7)}
	waiting := []string{
		c.keys.Demand(wire.DemandKey{Pool: "db", Host: "one", Instance: "i"}), c.keys.Demand(wire.DemandKey{Pool: "db", Host: "two", Instance: "j", Name: 4}),
		c.keys.Pending("db"),
	}
	others := []string{
		c.keys.Demand(wire.DemandKey{Pool: "db.x", Host: "one", Instance: "i"}), c.keys.Demand(wire.DemandKey{Pool: "d", Host: "one", Instance: "i"}),
		c.keys.Pending("db.x"), c.keys.Pending("d"),
	}
	c.pool("db", 5)
	c.pool("db.x", 5)
	all := append(append(append([]string{}, held...), waiting...), others...)
	for _, key := range all {
		c.txn(store.Put(key, wire.EncodeEmpty(), 0))
	}
	refused := problem.New(problem.Precondition, "another revision")
	if _, err := c.reg.Delete(c.ctx(), "db", func(int64) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("deleted: %v", err)
	}
	if n := c.keysUnder(c.keys.Prefix()); n != len(all)+3 { // with two specs, and the version
		t.Fatalf("after a deletion that was refused, %d keys are left", n)
	}
	if _, err := c.reg.Delete(c.ctx(), "db", nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range append(append([]string{}, held...), others...) {
		c.get(key)
	}
	if n := c.keysUnder(c.keys.Prefix()); n != len(held)+len(others)+2 {
		t.Errorf("%d keys are left", n)
	}
}

// A pool that is deleted if nobody uses it stays while a slot of it is held, one of a block too, and while a claim waits.
func TestAPoolInUseIsNotDeleted(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	at := c.spec("db").revision
	remove := func(revision int64) error {
		ifs, then := c.reg.Unused("db", revision)
		_, err := store.Commit(c.ctx(), c.client, ifs, then...)
		return err
	}
	for name, key := range map[string]string{
		"a number": c.keys.Number("db", 999_999), "a block": c.keys.Block("db", 49, 7),
		"a demand": c.keys.Demand(wire.DemandKey{Pool: "db", Host: "one", Instance: "i"}), "pending": c.keys.Pending("db"),
	} {
		c.txn(store.Put(key, wire.EncodeEmpty(), 0))
		if err := remove(at); !errors.Is(err, store.ErrChanged) {
			t.Errorf("with %s: %v", name, err)
		}
		c.txn(store.Delete(key))
	}
	if err := remove(at - 1); !errors.Is(err, store.ErrChanged) {
		t.Errorf("with another spec: %v", err)
	}
	if err := remove(at); err != nil || c.keysUnder(c.keys.Pools()) != 0 {
		t.Errorf("a pool that nobody uses: %v", err)
	}
}

// lossy loses the answers of the first transactions.
type lossy struct {
	store.Backend
	left int
}

func (l *lossy) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := l.Backend.Txn(ctx, req)
	if err == nil && l.left > 0 {
		l.left--
		return nil, store.ErrUnavailable
	}
	return resp, err
}

// A change whose answer is lost is made once.
func TestAChangeWithoutAnAnswerIsMadeOnce(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	before := c.spec("db")
	c.reg.Backend = &lossy{c.client, 1}
	put, err := c.reg.Set(c.ctx(), "db", pool.Change{Limit: new(6)})
	if s := c.spec("db"); err != nil || s.revision != put.Revision || s.revision != before.revision+1 || s.limitSince != s.revision {
		t.Errorf("changed to %+v at %d, %v", s, put.Revision, err)
	}
}
