package lease

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// fakeClock follows the test's time, and can be made to jump as the machine's
// does over a suspend, which timers don't notice.
type fakeClock struct {
	start time.Time
	skew  atomic.Int64
}

func newFakeClock() *fakeClock { return &fakeClock{start: time.Now()} }

func (c *fakeClock) Now() time.Duration {
	return time.Hour + time.Since(c.start) + time.Duration(c.skew.Load())
}

func (c *fakeClock) jump(d time.Duration) { c.skew.Add(int64(d)) }

// call is one request that reached the fake.
type call struct {
	op string
	id store.LeaseID
	at time.Duration
}

type fakeLease struct {
	ttl  time.Duration
	ends time.Duration
}

// fakeEtcd is as much of etcd as this package uses: keys, leases that end, and
// transactions with compares of single keys.
type fakeEtcd struct {
	clock *fakeClock

	// fault is asked before a request is carried out, without the lock. An error
	// is the answer, and the request is not carried out. It may wait.
	fault atomic.Pointer[func(ctx context.Context, op string, id store.LeaseID) error]
	// late is asked after a request was carried out: its error replaces the
	// answer. It may wait.
	late atomic.Pointer[func(ctx context.Context, op string, id store.LeaseID) error]

	mu     sync.Mutex
	rev    int64
	kvs    map[string]*mvccpb.KeyValue
	leases map[store.LeaseID]*fakeLease
	nextID store.LeaseID
	calls  []call

	cluster  uint64
	replaced chan struct{}
}

var _ store.Backend = (*fakeEtcd)(nil)

func newFakeEtcd(clock *fakeClock) *fakeEtcd {
	return &fakeEtcd{
		clock: clock, rev: 1, nextID: 0x100,
		kvs: map[string]*mvccpb.KeyValue{}, leases: map[store.LeaseID]*fakeLease{},
		cluster: 1, replaced: make(chan struct{}),
	}
}

type hook = func(ctx context.Context, op string, id store.LeaseID) error

// failing makes every request of the given kinds fail at once, or all of them.
func failing(err error, ops ...string) *hook {
	h := func(_ context.Context, op string, _ store.LeaseID) error {
		if len(ops) == 0 {
			return err
		}
		for _, o := range ops {
			if o == op {
				return err
			}
		}
		return nil
	}
	return &h
}

// hanging makes every request hang until its deadline.
func hanging() *hook {
	h := func(ctx context.Context, op string, _ store.LeaseID) error {
		<-ctx.Done()
		return fmt.Errorf("%s: %w: %v", op, store.ErrUnavailable, ctx.Err())
	}
	return &h
}

// begin records a request and lets faults happen. Leases that have ended go.
func (f *fakeEtcd) begin(ctx context.Context, op string, id store.LeaseID) error {
	f.mu.Lock()
	void := store.IsReplaced(ctx, f.cluster)
	if !void {
		f.calls = append(f.calls, call{op: op, id: id, at: f.clock.Now()})
	}
	f.mu.Unlock()
	if void {
		return fmt.Errorf("%s: %w", op, store.ErrOtherCluster)
	}
	if h := f.fault.Load(); h != nil {
		if err := (*h)(ctx, op, id); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w: %v", op, store.ErrUnavailable, err)
	}
	return nil
}

func (f *fakeEtcd) end(ctx context.Context, op string, id store.LeaseID) error {
	if h := f.late.Load(); h != nil {
		return (*h)(ctx, op, id)
	}
	return nil
}

func (f *fakeEtcd) expire() {
	now := f.clock.Now()
	for id, l := range f.leases {
		if l.ends <= now {
			f.remove(id)
		}
	}
}

func (f *fakeEtcd) remove(id store.LeaseID) {
	delete(f.leases, id)
	f.rev++
	for k, kv := range f.kvs {
		if kv.Lease == int64(id) {
			delete(f.kvs, k)
		}
	}
}

// kill ends a lease as an operator or an expiry does.
func (f *fakeEtcd) kill(id store.LeaseID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(id)
}

func (f *fakeEtcd) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	if err := f.begin(ctx, "grant", 0); err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	f.expire()
	f.nextID++
	id := f.nextID
	f.leases[id] = &fakeLease{ttl: ttl, ends: f.clock.Now() + ttl}
	f.mu.Unlock()
	return id, ttl, f.end(ctx, "grant", id)
}

func (f *fakeEtcd) Renew(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	if err := f.begin(ctx, "renew", id); err != nil {
		return 0, err
	}
	f.mu.Lock()
	f.expire()
	l := f.leases[id]
	if l == nil {
		f.mu.Unlock()
		return 0, fmt.Errorf("renew: %w", store.ErrLeaseNotFound)
	}
	l.ends = f.clock.Now() + l.ttl
	ttl := l.ttl
	f.mu.Unlock()
	return ttl, f.end(ctx, "renew", id)
}

func (f *fakeEtcd) Revoke(ctx context.Context, id store.LeaseID) error {
	if err := f.begin(ctx, "revoke", id); err != nil {
		return err
	}
	f.kill(id)
	return f.end(ctx, "revoke", id)
}

func (f *fakeEtcd) TimeToLive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	if err := f.begin(ctx, "ttl", id); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
	if l := f.leases[id]; l != nil {
		return l.ends - f.clock.Now(), nil
	}
	return 0, fmt.Errorf("read lease: %w", store.ErrLeaseNotFound)
}

func (f *fakeEtcd) LeaseKeys(context.Context, store.LeaseID) ([]string, error) { return nil, nil }

func (f *fakeEtcd) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := f.begin(ctx, "txn", 0); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.expire()
	resp, err := f.apply(req)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return resp, f.end(ctx, "txn", 0)
}

func (f *fakeEtcd) apply(req *pb.TxnRequest) (*pb.TxnResponse, error) {
	ok := true
	for _, c := range req.Compare {
		var mod int64
		if kv := f.kvs[string(c.Key)]; kv != nil {
			mod = kv.ModRevision
		}
		ok = ok && mod == c.GetModRevision()
	}
	if !ok {
		return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: f.rev}}, nil
	}
	for _, op := range req.Success {
		if p := op.GetRequestPut(); p.Lease != 0 && f.leases[store.LeaseID(p.Lease)] == nil {
			return nil, fmt.Errorf("txn: %w", store.ErrLeaseNotFound)
		}
	}
	f.rev++
	for _, op := range req.Success {
		p := op.GetRequestPut()
		f.kvs[string(p.Key)] = &mvccpb.KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, ModRevision: f.rev}
	}
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: f.rev}, Succeeded: true}, nil
}

func (f *fakeEtcd) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := f.begin(ctx, "range", 0); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: f.rev}}
	for _, kv := range f.kvs {
		in := bytes.Equal(kv.Key, req.Key)
		if len(req.RangeEnd) > 0 {
			in = bytes.Compare(kv.Key, req.Key) >= 0 && bytes.Compare(kv.Key, req.RangeEnd) < 0
		}
		if in {
			resp.Kvs = append(resp.Kvs, kv)
		}
	}
	sort.Slice(resp.Kvs, func(i, j int) bool { return bytes.Compare(resp.Kvs[i].Key, resp.Kvs[j].Key) < 0 })
	return resp, nil
}

func (f *fakeEtcd) Watch(context.Context, store.KeyRange, int64) store.Watch {
	panic("this package watches nothing")
}

func (f *fakeEtcd) History() uint64 { return 0 }

func (f *fakeEtcd) Cluster() (id uint64, replaced <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cluster, f.replaced
}

// replace has another cluster answer, as after a restore: with the same leases and keys.
func (f *fakeEtcd) replace() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cluster++
	close(f.replaced)
	f.replaced = make(chan struct{})
}

// put puts a key as another process would.
func (f *fakeEtcd) put(key string, value []byte, id store.LeaseID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev++
	f.kvs[key] = &mvccpb.KeyValue{Key: []byte(key), Value: value, Lease: int64(id), ModRevision: f.rev}
}

// lease makes a lease as another process would.
func (f *fakeEtcd) lease(ttl time.Duration) store.LeaseID {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextID++
	f.leases[f.nextID] = &fakeLease{ttl: ttl, ends: f.clock.Now() + ttl}
	return f.nextID
}

func (f *fakeEtcd) get(key string) *mvccpb.KeyValue {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
	return f.kvs[key]
}

// alive returns the leases that exist, in order.
func (f *fakeEtcd) alive() []store.LeaseID {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
	var ids []store.LeaseID
	for id := range f.leases {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// times returns when requests of a kind reached the fake for a lease.
func (f *fakeEtcd) times(op string, id store.LeaseID) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var at []time.Duration
	for _, c := range f.calls {
		if c.op == op && c.id == id {
			at = append(at, c.at)
		}
	}
	return at
}
