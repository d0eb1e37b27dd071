package enginetest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/revoke"
)

// etcd is the etcd of a behavior.
type etcd struct {
	root *storetest.Backend // nil on a real etcd
	any  store.Backend
}

// peer returns a client for one instance; on a stand-in, with faults of its own.
func (e etcd) peer() (store.Backend, *storetest.Backend) {
	if e.root == nil {
		return e.any, nil
	}
	p := e.root.Peer()
	return p, p
}

// world is an etcd with instances on it, for one behavior.
type world struct {
	*testing.T
	registry.Registry
	revoke.Revoker
	etcd etcd
	keys store.Keys
	live *[]*host
	// damaged is set if keys were damaged or etcd was restored: invariants are not verified then.
	damaged *bool
}

func newWorld(t *testing.T, e etcd, keys store.Keys) world {
	return world{
		T: t, Registry: registry.Registry{Backend: e.any, Keys: keys}, Revoker: revoke.Revoker{Backend: e.any, Keys: keys},
		etcd: e, keys: keys, live: &[]*host{}, damaged: new(bool),
	}
}

// long is how long an answer may take: in a bubble, where waiting takes no time, until leases have ended and more.
func (w world) long() time.Duration {
	if w.etcd.root != nil {
		return 20 * patience
	}
	return patience
}

// ctx returns a context that ends when an answer takes too long.
func (w world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), w.long())
	w.Cleanup(cancel)
	return ctx
}

// pass lets time go by, which only a stand-in can.
func (w world) pass(d time.Duration) {
	w.Helper()
	if w.etcd.root == nil {
		w.Fatal("no time passes on a real etcd")
	}
	<-time.After(d)
	synctest.Wait()
}

// rest lets all that is under way come to its end: in a bubble for d, on a real etcd until all engines show the
// present. It is for what must not happen.
func (w world) rest(d time.Duration) {
	w.Helper()
	if w.etcd.root != nil {
		w.pass(d)
		return
	}
	w.caughtUp()
}

// eventually waits until something holds.
func (w world) eventually(what string, holds func() bool) {
	w.Helper()
	late := time.After(patience)
	for !holds() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			w.Fatalf("it did not happen within %s: %s", patience, what)
		}
	}
}

// txn writes something in etcd.
func (w world) txn(ops ...*pb.RequestOp) int64 {
	w.Helper()
	resp, err := w.etcd.any.Txn(w.ctx(), &pb.TxnRequest{Success: ops})
	if err != nil {
		w.Fatal(err)
	}
	return resp.Header.Revision
}

// key is a key that belongs to no engine.
func (w world) key(name string) string { return w.keys.Prefix() + "test/" + name }

// has reports whether a key exists.
func (w world) has(key string) bool { return w.count(key, "") > 0 }

// count counts the keys under a prefix; with an empty end only the key itself.
func (w world) count(key, end string) int {
	w.Helper()
	req := &pb.RangeRequest{Key: []byte(key)}
	if end != "" {
		req.RangeEnd = []byte(end)
	}
	resp, err := w.etcd.any.Range(w.ctx(), req)
	if err != nil {
		w.Fatal(err)
	}
	return len(resp.Kvs)
}

// under counts the keys under a prefix.
func (w world) under(prefix string) int { return w.count(prefix, string(store.RangeEnd(prefix))) }

// caughtUp has all live engines show the present.
func (w world) caughtUp() {
	w.Helper()
	rev := w.txn(store.Put(w.key("mark"), nil, 0))
	for _, h := range *w.live {
		h.Changed(rev)
	}
}

// pool creates a pool, or changes it, and waits until all engines show that.
func (w world) pool(name string, limit int, change ...func(*pool.Change)) {
	w.Helper()
	never := pool.NeverReserve
	ch := pool.Change{Limit: &limit, ReserveAfter: &never}
	for _, f := range change {
		f(&ch)
	}
	if _, err := w.Set(w.ctx(), name, ch); err != nil {
		w.Fatal(err)
	}
	w.caughtUp()
}

// pause pauses a pool, or ends that.
func (w world) pause(name string, paused bool) {
	w.Helper()
	if _, err := w.Change(w.ctx(), name, pool.Change{Paused: &paused}); err != nil {
		w.Fatal(err)
	}
	w.caughtUp()
}

func reserveAfter(d time.Duration) func(*pool.Change) {
	return func(ch *pool.Change) { ch.ReserveAfter = &d }
}

func leaseFor(d time.Duration) func(*pool.Change) {
	return func(ch *pool.Change) { ch.LeaseDuration = &d }
}

// read reads the pools.
func (w world) read() *list.State {
	w.Helper()
	r, err := list.Read(w.ctx(), w.etcd.any, w.keys)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// used is how many slots of a pool are in use.
func (w world) used(name string) int {
	w.Helper()
	d, err := w.read().Pool(name)
	if err != nil {
		w.Fatal(err)
	}
	return d.Claimed
}

// wantUsed checks how many slots of a pool are in use.
func (w world) wantUsed(name string, want int) {
	w.Helper()
	if got := w.used(name); got != want {
		w.Errorf("%d slots of %s are in use, want %d", got, name, want)
	}
}

// becomesUsed waits until so many slots of a pool are in use.
func (w world) becomesUsed(name string, want int) {
	w.Helper()
	w.eventually("the slots of "+name+" in use are as many as wanted", func() bool { return w.used(name) == want })
}

// queue returns the ids of claims that wait, in order.
func (w world) queue() (ids []string) {
	w.Helper()
	_, waiters := w.read().Claims()
	for _, x := range waiters {
		ids = append(ids, x.Claim)
	}
	return ids
}

// becomesQueue waits until those claims wait, in that order.
func (w world) becomesQueue(want ...string) {
	w.Helper()
	var got []string
	late := time.After(patience)
	for got = w.queue(); !slices.Equal(got, want); got = w.queue() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			w.Fatalf("the queue is %q, want %q", got, want)
		}
	}
}

// sound fails if an invariant does not hold.
func (w world) sound() {
	w.Helper()
	for _, v := range w.read().Verify() {
		w.Errorf("%s: %s", v.Key, v.Problem)
	}
}

// empty waits until nothing is held, nothing waits, and nothing of a queue is left.
func (w world) empty() {
	w.Helper()
	w.eventually("nothing is held and nothing waits", func() bool {
		holders, waiters := w.read().Claims()
		return len(holders)+len(waiters)+w.queued() == 0
	})
}

// same checks that a value is as wanted.
func (w world) same(what string, got, want any) {
	w.Helper()
	if !reflect.DeepEqual(got, want) {
		w.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// must ends the test if there is an error.
func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// problem checks the code of an error, and returns it.
func (w world) problem(err error, code problem.Code) *problem.Error {
	w.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != code {
		w.Fatalf("the error is %v, want %s", err, code)
	}
	return p
}
