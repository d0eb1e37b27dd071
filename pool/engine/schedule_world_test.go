package engine

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/dispatch"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// world is some instances on one stand-in for etcd, driven by a seed. Each has the owner of its claims, the succession and, while
// it has the role, the dispatcher, connected as the engine connects them. Time is simulated: requests, answers and events are
// under way for some milliseconds, are late, or are lost.
type world struct {
	*rand.Rand
	fault
	etcd    *storetest.Etcd
	keys    wire.Keys
	now     time.Duration
	queue   happenings
	seq     int
	pools   []string
	nodes   []*node
	leader  *node // of the coordinators; it may be a life that has ended
	ids     int
	calm    bool // nothing goes wrong
	calmAt  time.Duration
	serves  bool // instances serve themselves where nobody dispatches
	denied  bool // etcd refuses the role to all
	sender  *node
	part    part
	changed time.Duration // when anything changed last but signs of life
	*records
	order *ordering // nil if it is not checked
	errs  []string
}

// fault leaves a rule or a connection out. All that is the zero value is as it has to be.
type fault struct {
	without func(part, *pb.Compare) bool   // drops compares on their way to etcd
	undone  func(part, *pb.RequestOp) bool // drops operations
	missing connection
}

// connection is what connects two state machines.
type connection int

const (
	none connection = iota
	roleChanged
	ownOffersReported
	ownOffersMade
	roleOfDemands
	offersPolled
	rolePolled
	leasesLost
	pendingWakes
	staleViews
	unknownPools
	eventsWhileListed
	offersWatched
	succession
)

// part says what sends a transaction.
type part int

const (
	ofCommits part = iota
	ofQueue
	ofDispatcher
	ofSuccession
	ofReads
)

// happening is what happens at a time.
type happening struct {
	at  time.Duration
	seq int
	do  func()
}

type happenings []happening

func (q happenings) Len() int { return len(q) }
func (q happenings) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[k].at), cmp.Compare(q[i].seq, q[k].seq)) < 0
}
func (q happenings) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q *happenings) Push(x any)   { *q = append(*q, x.(happening)) }
func (q *happenings) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

const (
	// claimTTL is the lease duration of all pools.
	claimTTL = 10 * time.Second
	ms       = time.Millisecond
)

func newScheduleWorld(seed uint64, f fault) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 11)), fault: f, etcd: storetest.New(storetest.Options{ExpiryLag: 300 * ms}),
		keys: wire.Keys{Keys: store.NewKeys("/b/")}, now: time.Second, pools: []string{"db", "gpu", "net"}, records: newRecords(),
	}
	w.etcd.Advance(w.now)
	w.etcd.OnCommit(w.committed)
	w.pools = w.pools[:1+w.IntN(3)]
	for _, p := range w.pools {
		w.setSpec(p)
	}
	w.serves = w.IntN(2) == 0
	w.denied = w.serves && w.IntN(6) == 0
	for i := range 2 + w.IntN(3) {
		w.start(fmt.Sprint("host-", i), kinds[w.IntN(len(kinds))], nil)
	}
	if w.IntN(5) == 0 {
		w.fragment(w.pools[0])
		for i, n := range []int{170, 1, 1} { // and others, who take slots of it at the same time
			w.nodes[i%2].ask(map[string]int{w.pools[0]: n})
		}
	}
	return w
}

var kinds = []wire.Kind{wire.Command, wire.Service, wire.Service, wire.Server, wire.Coordinator}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.errs = append(w.errs, fmt.Sprintf("%v: ", w.now)+fmt.Sprintf(format, args...))
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, happening{w.now + d, w.seq, do})
}

// delay is how long a message is under way.
func (w *world) delay() time.Duration {
	if !w.calm && w.IntN(30) == 0 {
		return time.Duration(w.IntN(300)) * ms
	}
	return time.Duration(200+w.IntN(2_500)) * time.Microsecond
}

// run has time pass.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for len(w.errs) == 0 && len(w.queue) > 0 && w.queue[0].at <= end {
		h := heap.Pop(&w.queue).(happening)
		w.pass(h.at)
		h.do()
	}
	w.pass(end)
}

func (w *world) pass(at time.Duration) {
	if at > w.now {
		d := at - w.now
		w.now = at
		w.etcd.Advance(d)
	}
}

// must has etcd carry out what no instance has sent.
func (w *world) must(ops ...*pb.RequestOp) *pb.TxnResponse {
	w.sender = nil
	resp, err := w.etcd.Txn(&pb.TxnRequest{Success: ops})
	if err != nil {
		panic(err)
	}
	return resp
}

// carry has etcd carry out what a part of an instance has sent.
func (w *world) carry(n *node, p part, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if w.without != nil {
		dropCompares(t, func(c *pb.Compare) bool { return w.without(p, c) })
	}
	if w.undone != nil {
		dropOps(t, func(op *pb.RequestOp) bool { return w.undone(p, op) })
	}
	switch {
	case !w.calm && w.IntN(150) == 0:
		return nil, store.ErrTokenExpired
	case w.denied && p == ofSuccession:
		return nil, store.ErrDenied
	}
	w.sender, w.part = n, p
	resp, err := w.etcd.Txn(t)
	w.sender = nil
	return resp, err
}

// dropOps has operations read nothing instead.
func dropOps(t *pb.TxnRequest, which func(*pb.RequestOp) bool) {
	for i, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			dropOps(child, which)
		} else if which(op) {
			t.Success[i] = store.Get("/nothing")
		}
	}
}

func dropCompares(t *pb.TxnRequest, which func(*pb.Compare) bool) {
	t.Compare = slices.DeleteFunc(t.Compare, which)
	for _, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			dropCompares(child, which)
		}
	}
}

// setSpec changes a pool.
func (w *world) setSpec(name string) {
	s := pool.DefaultSpec()
	s.Limit = []int{0, 1, 2, 3, 3, 5, 8, 60, 300, pool.Unlimited}[w.IntN(10)]
	s.Paused = w.IntN(10) == 0
	s.ReserveAfter = []time.Duration{0, time.Second, pool.NeverReserve, pool.NeverReserve, pool.NeverReserve}[w.IntN(5)]
	w.putSpec(name, s)
}

func (w *world) putSpec(name string, s pool.Spec) {
	s.LeaseDuration = claimTTL
	since := int64(0)
	if kv := w.get(w.keys.Spec(name)); kv != nil {
		if was, of, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision); err == nil && was.Limit == s.Limit {
			since = of.Since
		}
	}
	w.must(store.Put(w.keys.Spec(name), wire.EncodeSpec(s, since), 0))
}

// fragment names the claims of an instance that has ended: they have every other number of a pool, so that a claim of many slots
// compares whole pools.
const fragment = "fragment"

// fragment fragments a pool for some time.
func (w *world) fragment(name string) {
	w.putSpec(name, pool.Spec{Limit: 300, ReserveAfter: time.Second})
	id, _, _ := w.etcd.Grant(time.Duration(2+w.IntN(20)) * time.Second)
	r := &pool.Request{ID: fragment, Slots: map[string]int{name: 1}, Holder: pool.Holder{Host: fragment, Instance: "i"}}
	var ops []*pb.RequestOp
	for n := 0; n < 254; n += 2 {
		put := wire.Spell(r).Puts(map[string]slots.Held{name: {Numbers: []int{n}}}, wire.Written{Since: time.Unix(1, 0)})[0]
		ops = append(ops, store.Put(put.Key(w.keys), put.Value, id))
	}
	w.must(ops...)
}

// deletePool deletes a pool with its demands; it comes back later.
func (w *world) deletePool(name string) {
	w.must(store.Delete(w.keys.Spec(name)), store.DeleteAll(w.keys.DemandsAll(name)), store.Delete(w.keys.Pending(name)))
	w.after(time.Duration(w.IntN(1_500))*ms, func() {
		if w.get(w.keys.Spec(name)) == nil {
			w.setSpec(name)
		}
	})
}

// force frees the slots of a claim by force.
func (w *world) force() {
	all := map[string][]*pb.RequestOp{}
	for _, p := range w.pools {
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			if _, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision); err == nil && len(all[s.Claim]) < 100 {
				all[s.Claim] = append(all[s.Claim], store.Delete(string(kv.Key)))
			}
		}
	}
	if len(all) == 0 {
		return
	}
	ids := slices.Sorted(maps.Keys(all))
	id := ids[w.IntN(len(ids))]
	w.must(append(all[id], store.Delete(w.keys.ID(id)))...)
	w.seen["forced"]++
}

// get returns a key, nil if it is absent.
func (w *world) get(key string) *mvccpb.KeyValue {
	for kv := range w.etcd.All(key) {
		if string(kv.Key) == key {
			return kv
		}
	}
	return nil
}

// reader is etcd for what the engine reads in several requests.
type reader struct {
	store.Backend
	w *world
	n *node
}

func (r reader) Txn(_ context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	return r.w.carry(r.n, ofReads, t)
}
func (r reader) Range(_ context.Context, t *pb.RangeRequest) (*pb.RangeResponse, error) {
	return r.w.etcd.Range(t)
}
func (r reader) Revoke(_ context.Context, id store.LeaseID) error {
	_ = r.w.etcd.Revoke(id)
	return nil
}
func (r reader) LeaseKeys(_ context.Context, id store.LeaseID) ([]string, error) {
	return r.w.etcd.LeaseKeys(id)
}
func (reader) History() uint64                    { return 0 }
func (reader) Cluster() (uint64, <-chan struct{}) { return 1, nil }

// condition is what hinders an instance.
type condition int

const (
	lives condition = iota
	hangs
	cutOff
	dead
)

// node is one life of an instance.
type node struct {
	w      *world
	name   string
	kind   wire.Kind
	owner  *owner.Owner
	of     map[*owner.Claim]*wanted
	leases *lender // of claims
	wait   *lender // of claims that wait, and of the role

	commits, queue *writer
	offers         *stream
	links          links
	seat           *seat
	life           condition
	until          time.Duration
	later          []func() // what arrives while it hangs
	wake           time.Duration
	aged, answered time.Duration
	skew           time.Duration
	streams        []*stream
	adopt          []store.LeaseID // of an earlier life
	adopting       adopting
	audit          checking
	reads          pace
	sent           func(*pb.TxnResponse) // is called when the next request is carried out; nil for nothing
}

// halfOf names a half of the writer of an instance, in all of its lives.
type halfOf struct {
	name string
	part part
}

// checking is how far an instance is with the comparison of its leases with its claims.
type checking struct {
	at   time.Duration
	busy bool
}

// wanted is a claim that was asked for.
type wanted struct {
	*owner.Claim
	waits   bool
	granted bool
	gone    bool          // its lease was lost, or its release was asked for
	dropped bool          // it was withdrawn: it may be released before it is known to be granted
	at      time.Duration // when it was granted
}

// start starts an instance, or the next life of one that has ended.
func (w *world) start(name string, kind wire.Kind, adopt []store.LeaseID) *node {
	n := &node{w: w, name: name, kind: kind, of: map[*owner.Claim]*wanted{}, adopt: adopt, skew: time.Duration(w.IntN(10_000)-5_000) * ms, answered: w.now}
	n.audit.at = w.now + auditEvery
	n.leases, n.wait = newLender(n, claimTTL), newLender(n, pool.WaiterTTL)
	n.owner = owner.New(owner.Config{Keys: w.keys.Keys, Host: name, Instance: "i", Leases: n.leases, Presence: n.wait})
	n.commits, n.queue = newWriter(n.owner.Commits(), n.owner.Space()), newWriter(n.owner.Queue(), n.owner.Space())
	n.seat = newSeat(n)
	n.links.succession = dispatch.NewSuccession(w.keys, name, "i", kind)
	for _, id := range adopt {
		n.leases.ids[id] = w.now + claimTTL
	}
	w.nodes = append(w.nodes, n)
	n.renew()
	n.step()
	return n
}

// wall is the time of day as the instance has it.
func (n *node) wall() time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(n.w.now + n.skew)
}

func (n *node) reachable() bool { return n.life == lives || n.life == hangs }

// arrive has something arrive at an instance.
func (n *node) arrive(do func()) {
	switch n.life {
	case dead:
	case hangs:
		n.later = append(n.later, func() { n.arrive(do) })
	default:
		do()
		n.step()
	}
}

// request sends a transaction. Exactly one answer or error arrives, unless the instance has ended.
func (n *node) request(p part, t *pb.TxnRequest, done func(*pb.TxnResponse, error)) {
	w, over := n.w, false
	carried := n.sent
	n.sent = nil
	answer := func(resp *pb.TxnResponse, err error) {
		if !over {
			over = true
			n.arrive(func() {
				if err == nil {
					n.contact()
				}
				done(resp, err)
			})
		}
	}
	w.after(txnTimeout, func() { answer(nil, store.ErrUnavailable) })
	lost := n.life == cutOff || !w.calm && w.IntN(60) == 0
	if lost && w.IntN(2) == 0 {
		return
	}
	d := w.delay()
	if p == ofSuccession && !w.calm && w.IntN(4) == 0 {
		d += time.Duration(w.IntN(3_000)) * ms
	}
	if lost {
		d += time.Duration(w.IntN(6_000)) * ms // it is carried out, and nobody knows
	}
	w.after(d, func() {
		resp, err := w.carry(n, p, t)
		if err == nil && carried != nil {
			carried(resp)
		}
		if lost || n.life == cutOff || !w.calm && w.IntN(60) == 0 {
			return
		}
		w.after(w.delay(), func() {
			if n.life != cutOff {
				answer(resp, err)
			}
		})
	})
}

// query reads something at one moment.
func (n *node) query(read func(store.Backend) error, done func(error)) {
	w := n.w
	w.after(w.delay(), func() {
		err := store.ErrUnavailable
		if n.life == lives && (w.calm || w.IntN(30) > 0) {
			err = read(reader{w: w, n: n})
		}
		w.after(w.delay(), func() { n.arrive(func() { done(err) }) })
	})
}

// contact forgets what may have changed unseen while etcd did not answer.
func (n *node) contact() {
	if n.w.now-n.answered > 4*time.Second {
		n.owner.Forget()
	}
	n.answered = n.w.now
}

// step has the machines go on, as the loop of an engine does.
func (n *node) step() {
	w := n.w
	if n.life == dead || n.life == hangs {
		return
	}
	now := w.now
	n.results()
	if now >= n.aged+ageEvery {
		n.owner.Age(now)
		n.aged = now
	}
	if n.offers == nil && n.owner.Waiting() > 0 {
		n.offers = n.follow(store.Prefix(n.owner.Watched()), func() { n.links.at = w.now }, func(m message) {
			for _, ev := range m.Events {
				if w.missing != offersWatched {
					n.owner.Offered(ev)
				}
			}
		})
	}
	if n.adopting == toAdopt && n.commits.fenced() && n.queue.fenced() {
		n.takeOver()
	}
	n.polls()
	n.seat.act()
	n.write(n.commits, ofCommits)
	n.write(n.queue, ofQueue)
	n.read()
	claims, demands := n.owner.Suspects()
	n.leases.suspect(claims)
	n.wait.suspect(demands)
	n.results()
	n.compare()
	n.sleep()
}

// sleep has the instance go on at the time at which something is to be done.
func (n *node) sleep() {
	now := n.w.now
	at := now + ageEvery
	for _, t := range []time.Duration{
		n.owner.Wakes(now), n.commits.after, n.queue.after, n.seat.writer.after, n.reads.after, n.links.wakes(), n.seat.wakes(now), n.audit.at,
	} {
		if t > now {
			at = min(at, t)
		}
	}
	if n.wake <= now || at < n.wake {
		n.wake = at
		n.w.after(at-now, func() {
			if n.wake == at {
				n.arrive(func() {})
			}
		})
	}
}

// write sends the next transaction of a half.
func (n *node) write(x *writer, p part) {
	w := n.w
	t := x.next(w.now, n.wall())
	if t == nil {
		return
	}
	if half := (halfOf{n.name, p}); x.state == sending {
		was := w.fences[half]
		n.sent = func(resp *pb.TxnResponse) {
			w.check(!resp.Succeeded || w.fences[half] == was, "a write of %s is carried out after it was fenced", n.name)
		}
	} else if x.state == fencing {
		n.sent = func(resp *pb.TxnResponse) {
			if resp.Succeeded {
				w.fences[half]++
			}
		}
	}
	n.request(p, t, func(resp *pb.TxnResponse, err error) {
		if err == nil && p == ofQueue && x.state == sending && resp.Succeeded {
			n.w.known(resp.Header.Revision)
		}
		x.answer(resp, err, n.w.now)
		n.seeRole()
	})
}

// read reads what claims need to know.
func (n *node) read() {
	if !n.reads.free(n.w.now) {
		return
	}
	if t, ok := n.owner.Reads(); ok {
		n.reads.begin()
		n.request(ofReads, t, func(resp *pb.TxnResponse, err error) {
			n.reads.answered(err, n.w.now)
			n.owner.Read(resp, err)
		})
	}
}

// takeOver adopts what an earlier life has left.
func (n *node) takeOver() {
	if len(n.adopt) == 0 && !n.queue.earlier {
		n.adopting = adopted
		return
	}
	n.adopting = adoptNow
	var kvs []*mvccpb.KeyValue
	n.query(func(b store.Backend) (err error) {
		ctx := context.Background()
		if err = endEarlier(ctx, b, n.w.keys, n.name, "i", n.queue.fencedAt, n.adopt); err == nil {
			kvs, err = readClaims(ctx, b, n.w.keys, n.adopt)
			slices.SortFunc(kvs, func(x, y *mvccpb.KeyValue) int { return strings.Compare(string(x.Key), string(y.Key)) })
		}
		return err
	}, func(err error) {
		if n.adopting = adopted; err != nil {
			n.adopting = toAdopt
			return
		}
		for _, c := range n.owner.Adopt(kvs, n.w.now) {
			n.of[c] = &wanted{Claim: c, granted: true}
			n.w.seen["adopted"]++
		}
	})
}

// compare compares the keys on the leases of claims with the claims.
func (n *node) compare() {
	w := n.w
	if n.audit.busy || w.now < n.audit.at || n.adopting != adopted {
		return
	}
	n.audit.busy = true
	var with []*owner.Claim
	for _, a := range n.sorted() {
		if a.granted {
			with = append(with, a.Claim)
		}
	}
	ids := slices.Sorted(maps.Keys(n.leases.ids))
	ctx := context.Background()
	end := func(err error) {
		if n.audit = (checking{at: w.now + auditEvery}); err != nil {
			n.audit.at = w.now + time.Second
		}
	}
	var keys []string
	n.query(func(b store.Backend) (err error) {
		keys, _, err = attached(ctx, b, ids)
		return err
	}, func(err error) {
		unmatched := n.owner.Unmatched(keys, n.claims(), with, false)
		if err != nil || len(unmatched) == 0 {
			end(err)
			return
		}
		var read map[string]*mvccpb.KeyValue
		n.query(func(b store.Backend) (err error) {
			read, err = readKeys(ctx, b, unmatched)
			return err
		}, func(err error) {
			if err == nil {
				n.owner.Audit(read, n.claims(), with, func(id store.LeaseID) bool { return slices.Contains(ids, id) }, w.now)
			}
			end(err)
		})
	})
}

// claims returns all claims of the instance.
func (n *node) claims() (all []*owner.Claim) {
	for _, a := range n.sorted() {
		all = append(all, a.Claim)
	}
	return all
}

// sorted returns what was asked for, in an order that depends on the seed alone.
func (n *node) sorted() []*wanted {
	return slices.SortedFunc(maps.Values(n.of), func(x, y *wanted) int { return strings.Compare(x.Request().ID, y.Request().ID) })
}

// results takes what has become of claims.
func (n *node) results() {
	for _, r := range n.owner.Results() {
		a := n.of[r.Claim]
		if a == nil {
			continue // slots that belonged to no claim
		}
		switch r.Outcome {
		case owner.Waits:
			n.w.seen["waited"]++
			a.waits = true
			continue
		case owner.Granted:
			n.w.grant(n, a)
			continue
		case owner.Stays:
			n.w.check(false, "claim %s stays", r.Claim.Request().ID)
			continue
		}
		n.w.check(a.dropped || a.granted == (r.Outcome == owner.Released || r.Outcome == owner.Lost), "claim %s ends with %d, granted %v", r.Claim.Request().ID, r.Outcome, a.granted)
		delete(n.of, r.Claim)
	}
}

// claim asks for a claim.
func (n *node) claim() {
	w := n.w
	if n.life != lives || n.links.ending || len(n.of) > 40 {
		return
	}
	needs := map[string]int{}
	for range 1 + w.IntN(2) {
		needs[w.pools[w.IntN(len(w.pools))]] = []int{1, 1, 1, 1, 1, 2, 2, 3, 3, 40, 40, 170}[w.IntN(12)]
	}
	n.ask(needs)
}

// ask asks for a claim that needs some slots.
func (n *node) ask(needs map[string]int) {
	w := n.w
	w.ids++
	r := &pool.Request{ID: fmt.Sprintf("c%04d", w.ids), Slots: needs, Wait: time.Hour, Holder: pool.Holder{Host: n.name, Instance: "i"}, Priority: w.IntN(6) / 5}
	if w.IntN(5) == 0 && !w.calm {
		r.Wait = 0
	}
	r.Chosen = w.IntN(8) == 0
	c := owner.NewClaim(r)
	n.of[c] = &wanted{Claim: c}
	w.requests[r.ID] = r
	n.owner.Claim(c, w.now, time.Unix(0, 0).Add(w.now))
	n.step()
}

// release asks for the end of a claim that is held.
func (n *node) release() {
	var held []*wanted
	for _, a := range n.sorted() {
		if a.granted && !a.gone {
			held = append(held, a)
		}
	}
	if len(held) > 0 && n.life == lives {
		n.giveUp(held[n.w.IntN(len(held))])
		n.step()
	}
}

func (n *node) giveUp(a *wanted) {
	a.gone = true
	n.owner.Release(a.Claim)
}

// withdraw withdraws a claim that was not granted.
func (n *node) withdraw() {
	var open []*wanted
	for _, a := range n.sorted() {
		if !a.granted {
			open = append(open, a)
		}
	}
	if len(open) > 0 && n.life == lives {
		n.drop(open[n.w.IntN(len(open))], n.w.IntN(2) == 0)
		n.step()
	}
}

func (n *node) drop(a *wanted, kept bool) {
	a.dropped = true
	n.owner.Withdraw(a.Claim, kept)
}

// end has an instance end in good order: its claims are left to a later life.
func (n *node) end() {
	if n.links.ending {
		return
	}
	n.links.ending = true
	for _, a := range n.sorted() {
		if !a.granted {
			n.drop(a, false)
		}
	}
	n.links.succession.End(n.seat.follower())
	n.w.after(2*time.Second, n.restart)
	n.step()
}

// restart has an instance end, and start again under its name.
func (n *node) restart() {
	w := n.w
	if n.life == dead {
		return
	}
	n.life = dead
	for _, s := range n.streams {
		s.close()
	}
	w.nodes = slices.DeleteFunc(w.nodes, func(o *node) bool { return o == n })
	var ids []store.LeaseID
	if w.IntN(3) > 0 {
		ids = slices.Sorted(maps.Keys(n.leases.ids))
	}
	w.seen["restarts"]++
	w.after(time.Duration(w.IntN(1_000))*ms, func() { w.start(n.name, n.kind, ids) })
}

// replace ends the role of who dispatches, with the process or without it.
func (w *world) replace() {
	kv, r := w.get(w.keys.Role()), w.held()
	switch {
	case kv == nil || r == nil:
	case w.IntN(2) == 0:
		r.by.restart()
	default:
		_ = w.etcd.Revoke(store.LeaseID(kv.Lease))
	}
}

// hinder has something happen to an instance for some time.
func (n *node) hinder(c condition, d time.Duration) {
	if n.life != lives {
		return
	}
	n.life, n.until = c, n.w.now+d
	n.w.after(d, n.recover)
}

// recover ends what hinders an instance.
func (n *node) recover() {
	if n.life == dead || n.life == lives || n.w.now < n.until && !n.w.calm {
		return
	}
	n.life = lives
	later := n.later
	n.later = nil
	for _, f := range later {
		f()
	}
	for _, s := range n.streams {
		s.arrived()
	}
	n.step()
}

// act has anything happen.
func (w *world) act() {
	n := w.nodes[w.IntN(len(w.nodes))]
	switch x := w.IntN(200); {
	case x < 90:
		n.claim()
	case x < 155:
		n.release()
	case x < 165:
		n.withdraw()
	case x < 170:
		w.setSpec(w.pools[w.IntN(len(w.pools))])
	case x < 172 && w.IntN(2) == 0:
		w.force()
	case x < 172:
		w.must(store.DeleteAll(w.keys.Offers(n.name, "i")))
	case x < 174:
		n.hinder(hangs, time.Duration(w.IntN([]int{100, 1_000, 9_000, 15_000}[w.IntN(4)]))*ms)
	case x < 176:
		n.hinder(cutOff, time.Duration(w.IntN([]int{500, 3_000, 15_000}[w.IntN(3)]))*ms)
	case x < 178:
		n.leases.revoke()
	case x < 180:
		n.wait.revoke()
	case x < 182:
		n.leases.change()
		n.wait.change()
	case x < 188:
		n.disturb()
	case x < 191:
		w.run(time.Duration(w.IntN(2_000)) * ms)
	case x < 192:
		w.run(time.Duration(w.IntN(7_000)) * ms)
	case x < 194 && w.IntN(2) == 0:
		n.restart()
	case x < 195:
		n.end()
	case x < 196:
		n.lead()
	case x < 197:
		w.deletePool(w.pools[w.IntN(len(w.pools))])
	case x < 198:
		n.owner.Forget()
	}
}

// disturb has the watches of an instance be slow or silent.
func (n *node) disturb() {
	if len(n.streams) == 0 {
		return
	}
	s := n.streams[n.w.IntN(len(n.streams))]
	if s.silent = n.w.IntN(3) == 0; !s.silent {
		s.lag = time.Duration(n.w.IntN([]int{1, 20, 300, 2_000}[n.w.IntN(4)])) * ms
	}
}
