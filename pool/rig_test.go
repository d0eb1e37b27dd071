package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// rig is a few cores on one stand-in for etcd, driven by hand: nothing happens
// but what a test says, and time passes only in [rig.pass].
type rig struct {
	t     *testing.T
	etcd  *storetest.Etcd
	keys  store.Keys
	now   time.Time
	hosts []*rigHost
	// narrow hosts watch only what they act on; others watch all pools, as hosts do that claim
	// often.
	narrow bool
}

// rigHost is one core with its watches. A wedged host does nothing.
type rigHost struct {
	*core
	r      *rig
	name   string
	feeds  *simFeeds
	wedged bool
	off    bool // etcd can't be reached
	leases map[time.Duration]store.LeaseID
	// line is the lease of all its waiters; there is none while it is suspect.
	waiterLeaseID store.LeaseID
	suspect       bool
	// noLeases is why it gets no leases for claims, if it does not.
	noLeases error
	// refuse is asked before each call: an error keeps it from etcd.
	refuse func(*pb.TxnRequest) error
	calls  []*call
}

// rigLeases grants at once. Its leases are renewed by rig.pass.
type rigLeases struct{ h *rigHost }

func (l rigLeases) Acquire(d time.Duration, _ int) (store.LeaseID, bool) {
	if l.h.noLeases != nil {
		return 0, false
	}
	if _, ok := l.h.leases[d]; !ok {
		id, _, err := l.h.r.etcd.Grant(d)
		if err != nil {
			return 0, false
		}
		l.h.leases[d] = id
	}
	return l.h.leases[d], true
}
func (l rigLeases) Keeps(id store.LeaseID) bool {
	return slices.Contains(slices.Collect(maps.Values(l.h.leases)), id)
}
func (l rigLeases) Valid(id store.LeaseID) bool { return l.Keeps(id) }
func (l rigLeases) Release(store.LeaseID, int)  {}
func (l rigLeases) Suspect(...store.LeaseID)    {}
func (l rigLeases) Trouble() error              { return l.h.noLeases }

// rigWaiters has one lease for all waiters of a host, which never ends.
type rigWaiters struct{ h *rigHost }

func (l rigWaiters) Acquire(time.Duration, int) (store.LeaseID, bool) {
	return l.h.waiterLeaseID, l.h.waiterLeaseID != 0 && !l.h.suspect
}
func (l rigWaiters) Keeps(id store.LeaseID) bool { return id == l.h.waiterLeaseID }
func (l rigWaiters) Valid(id store.LeaseID) bool { return l.Keeps(id) }
func (l rigWaiters) Release(store.LeaseID, int)  {}
func (l rigWaiters) Suspect(...store.LeaseID)    { l.h.suspect = true }
func (l rigWaiters) Trouble() error              { return nil }

func newRig(t *testing.T, hosts ...string) *rig {
	t.Helper()
	r := &rig{t: t, etcd: storetest.New(storetest.Options{}), keys: store.NewKeys("/b/"), now: time.Unix(1_000_000, 0)}
	for _, name := range hosts {
		r.host(name)
	}
	r.resolve()
	return r
}

// host adds a host, or a further life of one.
func (r *rig) host(name string, adopt ...store.LeaseID) *rigHost {
	r.t.Helper()
	h := &rigHost{r: r, name: name, leases: map[time.Duration]store.LeaseID{}}
	h.core = newCore(Config{Keys: r.keys, Host: name, Instance: "i", Leases: rigLeases{h}, WaiterLeases: rigWaiters{h}, Logger: silent})
	if len(adopt) > 0 {
		h.adopt = map[store.LeaseID]bool{}
		for _, id := range adopt {
			h.adopt[id] = true
		}
	}
	var err error
	if h.waiterLeaseID, _, err = r.etcd.Grant(time.Hour); err != nil {
		r.t.Fatal(err)
	}
	h.feeds = newSimFeeds(h.core, r.etcd)
	h.feeds.wide = !r.narrow
	for kv := range r.etcd.All(r.keys.Pools()) {
		if k, err := r.keys.ParsePoolKey(string(kv.Key)); err == nil {
			h.following(h.view.pool(k.Pool))
		}
	}
	h.resync()
	r.hosts = append(r.hosts, h)
	return h
}

// resync has the host read everything again.
func (h *rigHost) resync(reason ...error) {
	h.feeds.etcd = h.r.etcd
	h.feeds.resync(errors.Join(reason...), h.r.now)
}

// listen delivers what the watches have, and what is read, and then progress.
func (h *rigHost) listen() {
	h.feeds.all(h.r.now)
	h.revokedRev = h.r.etcd.Revision()
}

// act makes the next call to etcd and takes the answer; false if there is none.
func (h *rigHost) act() bool {
	call := h.next(h.r.now)
	if call == nil && !h.waitersAt.IsZero() {
		call = h.next(h.waitersAt) // as a moment later
	}
	if call == nil {
		return false
	}
	if h.off {
		h.answer(call, nil, store.ErrUnavailable, h.r.now)
		return false
	}
	h.calls = append(h.calls, call)
	if h.refuse != nil {
		if err := h.refuse(call.txn); err != nil {
			h.answer(call, nil, err, h.r.now)
			return true
		}
	}
	resp, err := h.r.etcd.Txn(call.txn)
	h.answer(call, resp, err, h.r.now)
	return true
}

// resolve lets all hosts listen and act until none has anything to do.
func (r *rig) resolve() {
	r.t.Helper()
	for range 1000 {
		busy := false
		for _, h := range r.hosts {
			if h.wedged {
				continue
			}
			if !h.off {
				h.listen()
			}
			busy = h.act() || busy
		}
		if !busy {
			return
		}
	}
	r.t.Fatal("the hosts find no rest")
}

// pass lets time go by in steps of a tick.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		step := min(tickEvery, end.Sub(r.now))
		r.now = r.now.Add(step)
		for _, h := range r.hosts {
			for _, id := range h.leases {
				_, _ = r.etcd.Renew(id)
			}
		}
		r.etcd.Advance(step)
		for _, h := range r.hosts {
			if !h.wedged {
				h.core.tick(r.now)
			}
		}
		r.resolve()
	}
}

func (r *rig) txn(ops ...*pb.RequestOp) {
	r.t.Helper()
	if _, err := r.etcd.Txn(&pb.TxnRequest{Success: ops}); err != nil {
		r.t.Fatal(err)
	}
}

// pool creates or changes a pool, with waiters that never reserve.
func (r *rig) pool(name string, limit int, change ...func(*Spec)) {
	r.t.Helper()
	r.spec(name, limit, change...)
	for _, h := range r.hosts {
		if !r.narrow {
			h.following(h.view.pool(name))
		}
	}
	r.resolve()
}

// spec puts the spec of a pool, which no host has seen yet.
func (r *rig) spec(name string, limit int, change ...func(*Spec)) {
	r.t.Helper()
	s := DefaultSpec()
	s.Limit, s.ReserveAfter = limit, NeverReserve
	for _, f := range change {
		f(&s)
	}
	r.txn(store.Put(r.keys.Spec(name), encodeSpec(s, layoutOf(s.Limit), 0), 0))
}

// key returns a key as it is in etcd, nil if it is not there.
func (r *rig) key(name string) *mvccpb.KeyValue {
	r.t.Helper()
	resp, err := r.etcd.Range(&pb.RangeRequest{Key: []byte(name)})
	if err != nil {
		r.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return nil
	}
	return resp.Kvs[0]
}

// asked is a request that is under way or answered.
type asked struct {
	h     *rigHost
	id    string
	reply chan outcome
}

// ask asks for slots of pool "db" and lets all hosts act.
func (h *rigHost) ask(id string, n int, change ...func(*Request)) asked {
	h.r.t.Helper()
	req := &Request{ID: id, Slots: map[string]int{"db": n}, Wait: time.Hour}
	for _, f := range change {
		f(req)
	}
	a := asked{h, id, make(chan outcome, 1)}
	h.request(newEntry(req, h.host, h.instance), a.reply, h.r.now)
	if !h.wedged {
		h.r.resolve()
	}
	return a
}

func noWait(r *Request) { r.Wait = 0 }

// got returns the claim that must have been granted.
func (a asked) got() *Claim {
	a.h.r.t.Helper()
	select {
	case o := <-a.reply:
		if o.err != nil {
			a.h.r.t.Fatalf("%s was refused: %v", a.id, o.err)
		}
		return o.claim
	default:
		a.h.r.t.Fatalf("%s is not answered", a.id)
		return nil
	}
}

// refused checks the code of the refusal that must have come.
func (a asked) refused(code problem.Code) error {
	a.h.r.t.Helper()
	select {
	case o := <-a.reply:
		if o.claim != nil || problem.CodeOf(o.err) != code {
			a.h.r.t.Fatalf("%s: %v, %v, want %s", a.id, o.claim, o.err, code)
		}
		return o.err
	default:
		a.h.r.t.Fatalf("%s is not answered, want %s", a.id, code)
		return nil
	}
}

// waits checks that there is no answer yet.
func (a asked) waits() {
	a.h.r.t.Helper()
	if len(a.reply) > 0 {
		o := <-a.reply
		a.h.r.t.Fatalf("%s is answered: %v, %v", a.id, o.claim, o.err)
	}
}

// cancel withdraws the request, as a client does that hangs up.
func (a asked) cancel() {
	a.h.core.cancel(a.id, a.reply, errStopped, a.h.r.now)
	a.h.r.resolve()
}

// giveBack releases a claim.
func (h *rigHost) giveBack(id string) {
	h.r.t.Helper()
	reply := make(chan error, 1)
	h.core.release(h.core.entries[id].claim, reply, h.r.now)
	h.r.resolve()
	select {
	case err := <-reply:
		if err != nil {
			h.r.t.Fatal(err)
		}
	default:
		h.r.t.Fatalf("%s is not released", id)
	}
}

// inQueue returns the waiting claims of pool "db", in order, as etcd has them;
// those that reserve are marked.
func (r *rig) inQueue() []string {
	r.t.Helper()
	var all []string
	for kv := range r.etcd.All(r.keys.Waiters("db")) {
		k, err := r.keys.ParsePoolKey(string(kv.Key))
		if err != nil {
			r.t.Fatal(err)
		}
		o, err := ParseOrder(k.Order)
		if err != nil {
			r.t.Fatal(err)
		}
		v, err := decodeWaiter(string(kv.Key), kv.Value, o)
		if err != nil {
			r.t.Fatal(err)
		}
		if v.Reserve {
			o.Claim += " reserves"
		}
		all = append(all, o.Claim)
	}
	return all
}

func (r *rig) wantWaiters(want ...string) {
	r.t.Helper()
	if got := r.inQueue(); !slices.Equal(got, want) {
		r.t.Errorf("waiting are %q, want %q", got, want)
	}
}

// used is what is held of pool "db" according to etcd.
func (r *rig) used() int {
	r.t.Helper()
	n := 0
	for kv := range r.etcd.All(r.keys.Slots("db")) {
		v, err := decodeSlot(string(kv.Key), kv.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		n += v.N
	}
	return n
}

func (r *rig) wantUsed(want int) {
	r.t.Helper()
	if got := r.used(); got != want {
		r.t.Errorf("%d slots are held, want %d", got, want)
	}
}

// sound fails if an invariant is broken.
func (r *rig) sound() {
	r.t.Helper()
	s := store.Snapshot{Revision: r.etcd.Revision()}
	for kv := range r.etcd.All(r.keys.Pools()) {
		s.KVs = append(s.KVs, kv)
	}
	for _, v := range newReader(s, r.keys).Verify() {
		r.t.Errorf("%s: %s", v.Key, v.Problem)
	}
}

// clean fails if something is left below the pools but specs.
func (r *rig) clean() {
	r.t.Helper()
	r.pass(tickEvery)
	r.sound()
	for kv := range r.etcd.All(r.keys.Pools()) {
		if k, err := r.keys.ParsePoolKey(string(kv.Key)); err != nil || k.Kind != store.SpecKey {
			r.t.Errorf("%s is left", kv.Key)
		}
	}
	for _, h := range r.hosts {
		if h.wedged {
			continue
		}
		if left := fmt.Sprint(len(h.entries), len(h.core.queue), len(h.releases), len(h.drops), len(h.revokes), len(h.revoking)); left != "0 0 0 0 0 0" {
			r.t.Errorf("host %s has entries, queue, releases, drops, revokes, revoking: %s", h.name, left)
		}
	}
}

// space is what the host reads of the pools, with its own waiters.
func (h *rigHost) space() *Space { return newReader(h.r.snapshot(), h.r.keys).space(h.own()) }

// snapshot is all below the pools.
func (r *rig) snapshot() store.Snapshot {
	s := store.Snapshot{Revision: r.etcd.Revision()}
	for kv := range r.etcd.All(r.keys.Pools()) {
		s.KVs = append(s.KVs, kv)
	}
	return s
}
