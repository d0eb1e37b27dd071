package dispatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// queueWorld is a dispatcher and some owners on one stand-in for etcd, driven by a seed: who wants what, what arrives when,
// and whose answers are lost.
type queueWorld struct {
	*rand.Rand
	mutant  mutant
	etcd    *storetest.Etcd
	keys    wire.Keys
	pools   []string
	owners  []*peer
	peers   int // processes so far
	chair   *chair
	former  []*chair // that still send
	now     time.Duration
	ids     int
	rush    bool           // all want slots of one pool
	seen    map[string]int // what happened how often
	trace   func(*chair)
	decoded map[any]any
	openAt  map[*open]time.Duration
	firstAt map[instanceDemand]time.Duration
	silent  map[string]bool // hosts with an owner whose offers key a dispatcher has deleted
	errs    []string
}

// chair is a dispatcher with its watch and the transactions that it has sent.
type chair struct {
	d      *Dispatcher
	peer   *peer
	role   int64
	lease  store.LeaseID
	follow *storetest.Follower
	sent   *pb.TxnRequest
	flew   bool // it was carried out, or never will be
	resp   *pb.TxnResponse
	err    error
	fence  bool
	asleep bool
	read   []Listing // on their way
	offers []wire.Offer
}

// mutant changes what a dispatcher sees or sends, as if one of its rules were missing.
type mutant struct {
	deaf   bool                                  // it does not wake
	before func(*Dispatcher, *queueWorld)        // each plan
	txn    func(*queueWorld, *pb.TxnRequest)     // what it sends
	answer func(*pb.TxnResponse)                 // what it gets
	event  func(*Dispatcher, *mvccpb.Event) bool // false: it is not shown
}

var errLost = errors.New("no answer")

func newQueueWorld(seed uint64, m mutant) *queueWorld {
	w := &queueWorld{Rand: rand.New(rand.NewPCG(seed, 2)), mutant: m, etcd: storetest.New(storetest.Options{}), keys: wire.Keys{Keys: store.NewKeys("/b/")}, pools: []string{"db", "gpu", "net"}, seen: map[string]int{}, decoded: map[any]any{}, openAt: map[*open]time.Duration{}, silent: map[string]bool{}, firstAt: map[instanceDemand]time.Duration{}}
	w.etcd.OnCommit(w.committed)
	if w.rush = seed%3 == 2; w.rush {
		w.pools = w.pools[:1]
	}
	for _, p := range w.pools {
		w.setSpec(p)
	}
	for range 2 + w.IntN(3) {
		w.peers++
		w.owners = append(w.owners, w.newPeer(fmt.Sprint("host-", w.IntN(3)), fmt.Sprint("i", w.peers)))
	}
	w.takeRole()
	return w
}

func (w *queueWorld) must(t *pb.TxnRequest) *pb.TxnResponse {
	resp, err := w.etcd.Txn(t)
	if err != nil {
		panic(err)
	}
	return resp
}

func (w *queueWorld) newID() string {
	w.ids++
	return fmt.Sprint("c", w.ids)
}

func (w *queueWorld) setSpec(name string) {
	s := pool.DefaultSpec()
	s.Limit = []int{0, 1, 2, 3, 3, 5, 5, 8, 20, 300, pool.Unlimited}[w.IntN(11)]
	if s.Paused = w.IntN(10) == 0; w.rush {
		s.Limit, s.Paused = []int{4, 6, 8}[w.IntN(3)], false
	}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Spec(name), wire.EncodeSpec(s, 0), 0)}})
}

func (w *queueWorld) somePools() []string {
	if w.rush || w.IntN(3) > 0 {
		return []string{w.pools[w.IntN(len(w.pools))]}
	}
	i := w.IntN(len(w.pools))
	return slices.Delete(slices.Clone(w.pools), i, i+1)
}

// takeRole has the process of an owner dispatch from now on.
func (w *queueWorld) takeRole() {
	if w.chair != nil {
		w.former = append(w.former, w.chair)
	}
	c := &chair{peer: w.owners[w.IntN(len(w.owners))]}
	c.lease, _, _ = w.etcd.Grant(time.Hour)
	role := wire.EncodeRole(wire.Role{Host: c.peer.host, Instance: c.peer.name, Kind: wire.Service})
	resp := w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Role(), role, c.lease), store.DeleteAll(w.keys.OffersAll())}})
	c.role = resp.Header.Revision
	c.d = New(Options{Keys: w.keys.Keys, Host: c.peer.host, Instance: c.peer.name, Role: c.role, Lease: c.lease})
	w.chair = c
	clear(w.firstAt) // a new dispatcher counts from its own start
	for _, p := range w.owners {
		p.seen = false
	}
	w.readAll(c)
	w.seen["roles"]++
}

// readAll opens the watch of a dispatcher and has it read all, at a revision that may be later.
func (w *queueWorld) readAll(c *chair) {
	c.follow = w.etcd.Follow(Watched(w.keys.Keys), 0)
	c.read, c.asleep = nil, false
	w.idle(w.IntN(3))
	l := Listing{Revision: w.etcd.Revision()}
	for _, prefix := range []string{w.keys.OffersAll(), w.keys.Pending("")} {
		for kv := range w.etcd.All(prefix) {
			l.Pages = append(l.Pages, []*mvccpb.KeyValue{kv})
		}
	}
	c.d.Restart(l, w.now)
}

// idle has owners go on.
func (w *queueWorld) idle(n int) {
	for range n {
		w.owners[w.IntN(len(w.owners))].act(false)
	}
}

func (w *queueWorld) run(steps int) *queueWorld {
	for i := range steps {
		w.step()
		if len(w.errs) == 0 && i%150 == 149 {
			w.rest()
		}
		if len(w.errs) > 0 {
			return w
		}
	}
	w.drain()
	return w
}

// drain has all end that waits and holds slots. Then there is nothing left, the dispatcher sleeps, and wakes for the next
// demand.
func (w *queueWorld) drain() {
	w.rest()
	for round := 0; len(w.errs) == 0; round++ {
		busy := false
		for _, p := range w.owners {
			for p.act(true) || p.tidy(len(p.keys) > 0) || p.release() {
				busy = true
			}
		}
		if !busy {
			break
		}
		if w.rest(); round > 100 {
			w.check(false, "drain: it does not end")
		}
	}
	s := w.state(w.etcd.Revision())
	w.check(len(s.demands)+len(s.pending)+len(s.offers)+len(s.advance) == 0 || len(w.errs) > 0, "drain: left are %+v", s)
	for range 3 {
		w.now += time.Second
		w.show(w.chair, 100)
		for w.dispatch(w.chair) {
		}
	}
	d := w.chair.d
	w.check(w.chair.asleep || len(w.errs) > 0, "drain: the dispatcher is awake: %d owners, offers %+v, pending %v, advance offers %+v, sign of life %+v", len(d.owners.all), d.book, d.pending, d.advances, d.mark)
	for range 20 {
		for _, p := range w.owners {
			p.demand()
			p.act(true)
		}
	}
	if len(w.errs) == 0 {
		w.rest()
	}
}

func (w *queueWorld) step() {
	p := w.owners[w.IntN(len(w.owners))]
	switch x := w.IntN(100); {
	case x < 10:
		p.demand()
	case x < 35:
		p.act(false)
	case x < 43:
		p.release()
	case x < 47:
		p.direct()
	case x < 49:
		p.tidy(w.IntN(2) == 0)
	case x < 66:
		w.show(w.chair, 1+w.IntN(4))
	case x < 88:
		w.dispatch(w.chair)
	case x < 94:
		w.now += time.Duration(w.IntN(60)) * time.Millisecond
	case x < 95:
		w.now += time.Duration(w.IntN([]int{700, 700, 4000, 6000}[w.IntN(4)])) * time.Millisecond
	case x < 96:
		p.hungTo = w.now + time.Duration(w.IntN([]int{3000, 3000, 15_000}[w.IntN(3)]))*time.Millisecond
	default:
		w.rare(p)
	}
	if len(w.former) > 0 && w.IntN(5) == 0 {
		c := w.former[0]
		w.show(c, 1)
		if w.dispatch(c); c.d.lost || c.sent == nil {
			w.former = w.former[1:]
		}
	}
}

func (w *queueWorld) rare(p *peer) {
	switch x := w.IntN(20); {
	case w.rush && x > 1 && x < 18:
	case x < 10:
		w.setSpec(w.pools[w.IntN(len(w.pools))])
	case x < 11:
		w.deletePool(w.pools[w.IntN(len(w.pools))])
	case x < 13 && w.chair.peer != p:
		i := slices.Index(w.owners, p)
		w.owners[i] = p.die()
	case x < 16:
		w.takeRole()
	case x < 18:
		w.readAll(w.chair)
	case x < 19:
		w.garbage()
	}
}

// deletePool deletes a spec; demands stay, and are refused.
func (w *queueWorld) deletePool(name string) {
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(w.keys.Spec(name))}})
}

// garbage puts keys below offers/ that no dispatcher knows, or values that can't be read, and deletes the latter again.
func (w *queueWorld) garbage() {
	p := w.owners[w.IntN(len(w.owners))]
	keys := []string{w.keys.Offer(wire.OfferKey{Host: p.host, Instance: p.name, Name: 77}), w.keys.Number(w.pools[0], 999_999), w.keys.Block(w.pools[0], 0, 999_999), w.keys.Spec(w.pools[len(w.pools)-1])}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(keys[w.IntN(len(keys))], []byte("junk"), 0)}})
	w.seen["garbage"]++
}

func (w *queueWorld) tidy() {
	_, _ = w.etcd.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(w.keys.Number(w.pools[0], 999_999)), store.Delete(w.keys.Block(w.pools[0], 0, 999_999))}})
	for _, p := range w.pools {
		if s := w.state(w.etcd.Revision()).pools[p]; s == nil || s.bad {
			w.setSpec(p)
		}
	}
}

// show has a dispatcher see what its watch has.
func (w *queueWorld) show(c *chair, revisions int) bool {
	if len(c.read) > 0 {
		l := c.read[0]
		c.read = c.read[1:]
		c.d.Listed(l, w.now)
		return true
	}
	m, ok := c.follow.Next(revisions)
	if c.asleep {
		if slices.ContainsFunc(m.Events, func(ev *mvccpb.Event) bool {
			return ev.Type == mvccpb.PUT && strings.HasPrefix(string(ev.Kv.Key), w.keys.Pending("")) && !w.mutant.deaf
		}) {
			w.seen["woken"]++
			w.readAll(c)
		}
		return ok
	}
	if ok {
		events := slices.DeleteFunc(m.Events, func(ev *mvccpb.Event) bool {
			return !w.inView(ev.Kv) || w.mutant.event != nil && !w.mutant.event(c.d, ev)
		})
		c.d.Events(m.Revision, events, w.now)
		ok = len(events) > 0
	} else {
		if m, ok := c.follow.Progress(); ok {
			c.d.Events(m.Revision, nil, w.now)
		}
	}
	for _, name := range c.d.Wants() {
		if slices.ContainsFunc(c.read, func(l Listing) bool { return l.Pools[0] == name }) {
			continue
		}
		l := Listing{Revision: w.etcd.Revision(), Pools: []string{name}}
		for kv := range w.etcd.All(w.keys.Pool(name)) {
			l.Pages = append(l.Pages, []*mvccpb.KeyValue{kv})
		}
		c.read = append(c.read, l)
	}
	return ok
}

// dispatch has a dispatcher send its next transaction, or that get on which it has sent.
func (w *queueWorld) dispatch(c *chair) bool {
	switch {
	case c.fence:
		c.fence, c.sent = false, nil // what was not carried out never will be
		c.d.Fenced(w.etcd.Revision(), w.now)
	case c.sent == nil:
		check := w.plans(c)
		if w.mutant.before != nil {
			w.mutant.before(c.d, w)
		}
		t, ok := c.d.Next(w.now)
		c.offers = append(c.offers, c.d.Offers()...)
		if check(); !ok {
			if _, ok := c.d.Sleep(w.now); ok {
				c.asleep = true
			}
			return false
		}
		c.sent, c.flew, c.err = t, false, nil
		w.check(len(t.Success) <= MaxOps, "%d operations", len(t.Success))
		if w.trace != nil {
			w.trace(c)
		}
	case !c.flew:
		c.flew = true
		if w.IntN(40) == 0 {
			c.err = errLost
			break
		}
		if w.mutant.txn != nil {
			w.mutant.txn(w, c.sent)
		}
		if c.resp, c.err = w.etcd.Txn(c.sent); c.err != nil {
			w.check(false, "%v", c.err)
		}
		if w.mutant.answer != nil && c.err == nil {
			w.mutant.answer(c.resp)
		}
		if w.IntN(40) == 0 {
			c.err = errLost
		}
	default:
		if c.fence = c.d.Answer(c.resp, c.err, w.now); !c.fence {
			c.sent = nil
		}
	}
	return true
}

func (w *queueWorld) check(ok bool, format string, args ...any) {
	if !ok {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

// poolState is a pool as etcd has it at a revision.
type poolState struct {
	limit  int
	open   bool
	exists bool
	bad    bool
	slots  *slots.Exact
}

// waiting is a demand as etcd has it at a revision.
type waiting struct {
	instance
	ref wire.DemandRef
	wire.Demand
	stamp wire.Stamp
}

func (x waiting) compare(y waiting) int {
	return cmp.Or(cmp.Compare(y.Priority, x.Priority), x.stamp.Compare(y.stamp), cmp.Compare(x.Claim, y.Claim))
}

// state is what etcd has at a revision.
type state struct {
	pools   map[string]*poolState
	pending map[string]bool
	demands []waiting // in their order, without those that have ended
	passed  map[instance]bool
	offers  map[wire.OfferKey][]wire.Offer
	advance map[wire.OfferKey]bool
}

func (w *queueWorld) state(revision int64) *state {
	s := &state{pools: map[string]*poolState{}, pending: map[string]bool{}, passed: map[instance]bool{}, offers: map[wire.OfferKey][]wire.Offer{}, advance: map[wire.OfferKey]bool{}}
	resp, err := w.etcd.Range(&pb.RangeRequest{Key: []byte(w.keys.Prefix()), RangeEnd: store.RangeEnd(w.keys.Prefix()), Revision: revision})
	if err != nil {
		panic(err)
	}
	for _, p := range w.pools {
		s.pools[p] = &poolState{slots: slots.NewExact()}
	}
	over, parts := map[instanceDemand]bool{}, map[wire.DemandKey]int64{}
	lists := map[wire.DemandKey]wire.Demands{}
	junk := false
	for _, kv := range resp.Kvs {
		switch v := w.decode(kv).(type) {
		case decodedDemands:
			parts[v.key], lists[v.key] = kv.CreateRevision, v.Demands
		case decodedOffers:
			of := instance{v.key.Host, v.key.Instance}
			if s.passed[of] = s.passed[of] || v.key.Passed(); v.key.Name >= 0 {
				s.offers[v.key] = v.list
			} else if v.key.Advance != "" {
				s.advance[v.key] = true
			}
		case decodedSlot:
			s.pools[v.ref.Pool].hold(v.ref, v.Block)
			if v.record != nil {
				of := instance{v.record.Holder.Host, v.record.Holder.Instance}
				over[instanceDemand{of, v.Demand}] = true
			}
		case decodedSpec:
			p := s.pools[v.pool]
			p.exists, p.bad, p.limit, p.open = true, v.err != nil, v.spec.Limit, v.err == nil && !v.spec.Paused && v.spec.Limit != 0
			p.slots.SetSpec(v.of)
		case string:
			s.pending[v] = true
		case error:
			junk = true // the only block that can't be read
		}
	}
	s.pools[w.pools[0]].open = s.pools[w.pools[0]].open && !junk
	for key, list := range lists {
		for _, one := range list.List {
			x := waiting{instance{key.Host, key.Instance}, wire.DemandRef{Pool: key.Pool, Name: key.Name, Created: parts[key], Index: one.Index}, one, one.Stamped(parts[key])}
			ok := !over[instanceDemand{x.instance, x.ref}]
			for name := range one.Pools {
				ok = ok && parts[wire.DemandKey{Pool: name, Host: key.Host, Instance: key.Instance, Name: key.Name}] == x.ref.Created
			}
			if ok {
				s.demands = append(s.demands, x)
			}
		}
	}
	slices.SortFunc(s.demands, waiting.compare)
	return s
}

type (
	decodedDemands struct {
		key wire.DemandKey
		wire.Demands
	}
	decodedOffers struct {
		key  wire.OfferKey
		list []wire.Offer
	}
	decodedSlot struct {
		ref wire.Ref
		wire.Slot
		record *wire.Record
	}
	decodedSpec struct {
		pool string
		spec pool.Spec
		of   slots.Spec
		err  error
	}
)

// decode reads a key with its value, once.
func (w *queueWorld) decode(kv *mvccpb.KeyValue) any {
	type version struct {
		key string
		rev int64
	}
	key := string(kv.Key)
	of := version{key, kv.ModRevision}
	v, ok := w.decoded[of]
	if ok {
		return v
	}
	rest := strings.TrimPrefix(key, w.keys.Pools())
	switch {
	case strings.Contains(key, "/demands/"):
		d, list, _ := w.keys.DecodeDemands(key, kv.Value)
		v = decodedDemands{d, list}
	case strings.Contains(key, "/offers/"):
		o, err := w.keys.OfferKey(key)
		if v = (decodedOffers{key: o}); err == nil && o.Name >= 0 {
			list, _ := wire.DecodeOffers(key, kv.Value)
			v = decodedOffers{o, list}
		}
	case strings.Contains(key, "/slots/"):
		ref, slot, err := w.keys.DecodeSlot(key, kv.Value, kv.CreateRevision)
		one := decodedSlot{ref: ref, Slot: slot}
		if slot.Record != nil {
			one.record, _ = slot.Decode(key)
		}
		if v = one; err != nil && ref.IsBlock() {
			v = err
		}
	case strings.HasSuffix(key, "/spec"):
		spec, of, err := wire.DecodeSpec(key, kv.Value, kv.ModRevision)
		v = decodedSpec{strings.Split(rest, "/")[0], spec, of, err}
	case strings.Contains(key, "/pending/"):
		v = strings.TrimPrefix(key, w.keys.Pending(""))
	}
	w.decoded[of] = v
	return v
}

func (p *poolState) hold(ref wire.Ref, b slots.Block) {
	if ref.IsBlock() {
		p.slots.AddBlock(b)
	} else {
		p.slots.Add(ref.Number)
	}
}

// free returns the free slots of a pool, as if it had none if nothing may be taken.
func (p *poolState) free() int {
	switch {
	case p == nil || !p.open:
		return 0
	case p.limit == pool.Unlimited:
		return 1 << 40
	}
	return p.limit - p.slots.Used()
}

func batchOf(of instance, ref wire.DemandRef) wire.DemandKey {
	return wire.DemandKey{Pool: ref.Pool, Host: of.host, Instance: of.name, Name: ref.Name}
}

// admitted decides as a plain reading of the rules does: who may have slots, of demands in their order.
func admitted(s *state, free map[string]int, left func(waiting) bool, granted func(waiting)) (all map[instanceDemand]bool) {
	all = map[instanceDemand]bool{}
	reserved := map[string]bool{}
	for _, x := range s.demands {
		possible := !left(x)
		for name, n := range x.Pools {
			p := s.pools[name]
			possible = possible && p.open && (p.limit == pool.Unlimited || n <= p.limit)
		}
		fits, held := true, false
		for name, n := range x.Pools {
			fits, held = fits && free[name] >= n, held || reserved[name]
		}
		if !possible || !fits && (!x.Reserve || held) {
			continue
		}
		for name, n := range x.Pools {
			free[name] -= n
			reserved[name] = reserved[name] || !fits
		}
		if fits {
			all[instanceDemand{x.instance, x.ref}] = true
			granted(x)
		}
	}
	return all
}

// plans checks the next plan of a dispatcher against what etcd had at the revision of its view.
func (w *queueWorld) plans(c *chair) func() {
	d := c.d
	ready := d.view.listed > 0 && d.flight == nil && !d.lost && (d.dirty || w.now >= d.planAt) && len(d.order.lanes) > 0
	for _, p := range d.view.pools {
		ready = ready && p.read && p.at <= d.view.revision
	}
	if !ready {
		return func() {}
	}
	s := w.state(d.view.revision)
	free, open, had := map[string]int{}, map[instance]map[string]int{}, map[instanceDemand]bool{}
	begun := map[*loan]bool{}
	begunKeys := d.book.all()
	for name, p := range s.pools {
		for _, o := range d.book.all() {
			for _, l := range o.loans {
				begun[l] = true
				for i, h := range l.held {
					if l.demand.needs[i].pool.name == name {
						p.slots.Lend(h)
					}
				}
			}
		}
		if free[name] = p.free(); !p.open {
			free[name] = -1 << 30
		}
	}
	count := func(l *loan) {
		x := l.demand
		if had[instanceDemand{x.owner.instance, x.ref}] = true; l.refused {
			return
		}
		if open[x.owner.instance] == nil {
			open[x.owner.instance] = map[string]int{}
		}
		for _, n := range x.needs {
			open[x.owner.instance][n.pool.name]++
		}
	}
	for l := range begun {
		count(l)
	}
	full := func(x waiting) bool { // its owner has enough offers in a pool in which others wait
		for name := range x.Pools {
			others := s.others(name, x.instance)
			if limit := s.pools[name].limit; others > 0 && limit != pool.Unlimited && open[x.instance][name] >= bound(limit, others) {
				return true
			}
		}
		return false
	}
	counted := map[instanceDemand]bool{} // that have a place in the order, though perhaps no offer
	grants := admitted(s, free, func(x waiting) bool {
		of := instanceDemand{x.instance, x.ref}
		b := d.batches[batchOf(x.instance, x.ref)]
		if b == nil || b.demands[x.ref.Index] == nil || b.demands[x.ref.Index].stage != waits {
			return true
		}
		if s.passed[x.instance] || b.demands[x.ref.Index].owner.passing != served {
			return true
		}
		counted[of] = true
		return had[of] || full(x)
	}, func(x waiting) { // it is offered, as far as the bounds of the others are concerned
		if open[x.instance] == nil {
			open[x.instance] = map[string]int{}
		}
		for name := range x.Pools {
			open[x.instance][name]++
		}
	})
	waited := map[*demand]bool{}
	for _, b := range d.batches {
		for _, x := range b.demands {
			if x.again > w.now {
				waited[x] = true
			}
		}
	}
	return func() {
		for key, o := range d.book.keys {
			if o.stage != put {
				continue
			}
			if _, ok := w.openAt[o]; !ok {
				w.openAt[o] = w.now
			}
			many := d.flight != nil && len(d.flight.silent) == maxDeletes // the others follow
			w.check(many || w.now-w.openAt[o] <= oftenPatience, "silence: %+v was left alone for %v", key, w.now-w.openAt[o])
		}
		w.checkAdvances(d, s, grants, counted)
		if len(d.book.all()) == len(begunKeys) {
			return
		}
		for _, o := range d.book.all() {
			for _, l := range o.loans {
				x := l.demand
				if begun[l] {
					continue
				}
				w.seen["offers"]++
				if l.whole {
					w.seen["whole"]++
				}
				w.check(l.refused || grants[instanceDemand{x.owner.instance, x.ref}], "order: %s of %s/%s gets an offer and may have no slots", x.claim, x.owner.host, x.owner.name)
				w.check(!waited[x], "pause: %s gets an offer too soon", x.claim)
			}
		}
		w.checkBounds(d, s, begun)
		w.checkLoans(d)
	}
}

// checkAdvances checks which owners have advance offers after a plan.
func (w *queueWorld) checkAdvances(d *Dispatcher, s *state, grants, counted map[instanceDemand]bool) {
	if d.pending.part || w.chair.d != d {
		return
	}
	have, puts := maps.Clone(s.advance), map[wire.OfferKey]bool{}
	if d.flight != nil {
		for _, op := range d.flight.ops {
			if key, err := w.keys.OfferKey(string(op.GetRequestPut().GetKey())); err == nil && key.Advance != "" {
				have[key], puts[key] = true, true
				w.seen["advance"]++
			}
			if key, err := w.keys.OfferKey(string(op.GetRequestDeleteRange().GetKey())); err == nil {
				delete(have, key)
			}
		}
	}
	offered := map[instanceDemand]bool{}
	for _, o := range d.book.all() {
		for _, l := range o.loans {
			offered[instanceDemand{l.demand.owner.instance, l.demand.ref}] = true
		}
	}
	for key := range have {
		of := instance{key.Host, key.Instance}
		if _, sent := d.await[w.keys.Offer(key)]; sent && !puts[key] {
			continue // it is being deleted, or nobody knows
		}
		p := s.pools[key.Advance]
		w.check(p.open && p.limit != pool.Unlimited && p.slots.Held() <= p.limit, "advance: %+v in a pool of %+v", key, p)
		w.check(!s.passed[of], "advance: %+v is passed", key)
		waiters := map[instance]bool{}
		var all []waiting // that count, in their order
		for _, x := range s.demands {
			if x.Pools[key.Advance] == 0 {
				continue
			}
			possible := counted[instanceDemand{x.instance, x.ref}]
			for name, n := range x.Pools {
				possible = possible && s.pools[name].open && (s.pools[name].limit == pool.Unlimited || n <= s.pools[name].limit)
			}
			if waiters[x.instance] = true; possible {
				all = append(all, x)
			}
		}
		w.check(2*len(waiters) <= max(2, p.limit), "advance: %+v, and %d owners wait for %d slots", key, len(waiters), p.limit)
		next := slices.IndexFunc(all, func(x waiting) bool {
			return x.instance == of && !offered[instanceDemand{x.instance, x.ref}]
		})
		for i := range max(0, next) {
			x, id := all[i], instanceDemand{all[i].instance, all[i].ref}
			late := i == 0 && x.instance != of && w.late(d, id)
			must := x.Priority > all[next].Priority || x.Reserve || grants[id]
			w.check(!late && (offered[id] || !must), "advance: %+v, whose next demand %s ranks behind %s (late %v, offered %v)", key, all[next].Claim, x.Claim, late, offered[id])
		}
	}
}

// late reports whether a demand has been first in its pool for longer than the order may wait.
func (w *queueWorld) late(d *Dispatcher, of instanceDemand) bool {
	b := d.batches[batchOf(of.instance, of.demand)]
	if b == nil || b.demands[of.demand.Index] == nil {
		return false
	}
	if x := b.demands[of.demand.Index]; w.firstAt[of] == 0 {
		w.firstAt[of] = x.first
	}
	return w.firstAt[of] > 0 && w.now-(w.firstAt[of]-1) > orderHolds
}

// others returns how many other instances wait for a pool.
func (s *state) others(name string, than instance) int {
	all := map[instance]bool{}
	for _, x := range s.demands {
		if x.Pools[name] > 0 && x.instance != than {
			all[x.instance] = true
		}
	}
	return len(all)
}

// bound is how many offers an owner may have in a pool in which others wait.
func bound(limit, others int) int { return min(128, max(4, limit/8, limit/(others+1))) }

// checkBounds checks how many open offers each owner has.
func (w *queueWorld) checkBounds(d *Dispatcher, s *state, begun map[*loan]bool) {
	open, made := map[instance]map[string]int{}, map[instance]map[string]bool{}
	for _, o := range d.book.all() {
		for _, l := range o.loans {
			of := l.demand.owner.instance
			if open[of] == nil {
				open[of], made[of] = map[string]int{}, map[string]bool{}
			}
			for i := range l.held {
				name := l.demand.needs[i].pool.name
				open[of][name]++
				made[of][name] = made[of][name] || !begun[l]
			}
		}
	}
	for of, pools := range open {
		for name, n := range pools {
			p := s.pools[name]
			others := s.others(name, of)
			w.check(others == 0 || !made[of][name] || p.limit == pool.Unlimited || n <= bound(p.limit, others), "bound: %s/%s has %d open offers in %s of %d", of.host, of.name, n, name, p.limit)
		}
	}
}

// checkLoans checks that no number is offered twice, in offers that can be committed.
func (w *queueWorld) checkLoans(d *Dispatcher) {
	lent, whole, all := map[string]map[int]bool{}, map[string]bool{}, map[string]int{}
	see := func(name string, t wire.Take) int {
		h, err := t.Held()
		w.check(err == nil, "%v", err)
		if lent[name] == nil {
			lent[name] = map[int]bool{}
		}
		all[name]++
		for _, n := range numbersOf(h) {
			w.check(!lent[name][n], "loan: number %d of %s is offered twice", n, name)
			lent[name][n] = true
		}
		return h.Compares()
	}
	offer := func(o wire.Offer) {
		n := 0
		for name, t := range o.Take {
			n += see(name, t)
		}
		for name, t := range o.Take {
			whole[name] = whole[name] || n > slots.MaxCompares && len(t.Areas) > 0
		}
	}
	if w.chair.d != d || d.lost {
		return
	}
	if w.chair.sent == nil && d.flight != nil { // it is about to be sent
		for _, o := range d.flight.puts {
			for _, l := range o.loans {
				offer(l.offer())
			}
		}
	}
	for _, list := range w.state(w.etcd.Revision()).offers {
		for _, o := range list {
			offer(o)
		}
	}
	for _, o := range w.chair.offers {
		offer(o)
	}
	for name := range whole {
		w.check(!whole[name] || all[name] < 2, "loan: %s is lent as a whole, and has %d offers", name, all[name])
	}
}

func numbersOf(h slots.Held) (all []int) {
	all = append(all, h.Numbers...)
	for _, b := range h.Blocks {
		for _, r := range b.Runs {
			for n := r.From; n < r.To; n++ {
				all = append(all, n)
			}
		}
	}
	return all
}

// committed checks what etcd has after a revision.
func (w *queueWorld) committed(_ int64, events []*mvccpb.Event, t *pb.TxnRequest) {
	took := map[string]bool{}
	for _, ev := range events {
		w.checkOffer(ev, t)
		if ref, err := w.keys.Ref(string(ev.Kv.Key)); err == nil && ev.Type == mvccpb.PUT && string(ev.Kv.Value) != "junk" {
			took[ref.Pool] = true
		}
		if name, ok := strings.CutPrefix(string(ev.Kv.Key), w.keys.Pending("")); ok && ev.Type == mvccpb.DELETE {
			w.checkStops(name)
		}
	}
	for name := range took {
		w.checkPool(name)
	}
	if t != nil {
		w.checkRole(t)
	}
}

// checkOffer records when offers keys come and go, and checks that no owner is passed that was not silent.
func (w *queueWorld) checkOffer(ev *mvccpb.Event, t *pb.TxnRequest) {
	o, err := w.keys.OfferKey(string(ev.Kv.Key))
	switch {
	case err != nil:
	case o.Passed() && ev.Type == mvccpb.PUT:
		w.check(w.silent[o.Host], "passed: %s/%s is passed, and nobody of its host was silent", o.Host, o.Instance)
	case ev.Type == mvccpb.DELETE:
		if w.chair != nil && t == w.chair.sent {
			w.silent[o.Host] = true
		}
	}
}

// checkRole checks that nobody else writes offers than who has the role.
func (w *queueWorld) checkRole(t *pb.TxnRequest) {
	for _, c := range w.former {
		if c.sent == t {
			w.check(false, "role: a former dispatcher has written %v", t)
		}
	}
}

// checkStops checks that no pool stops being pending over a demand that its dispatcher has not seen.
func (w *queueWorld) checkStops(name string) {
	d := w.chair.d
	for _, x := range w.state(w.etcd.Revision()).demands {
		if !slices.Contains(x.Pending, name) {
			continue
		}
		b := d.batches[batchOf(x.instance, x.ref)]
		w.check(b != nil && b.created == x.ref.Created && b.demands[x.ref.Index] != nil, "pending: %s stops being so over the demand of %s, which was not seen", name, x.Claim)
	}
}

// checkPool checks a pool in which slots were taken.
func (w *queueWorld) checkPool(name string) {
	used, has := 0, map[int]bool{}
	for kv := range w.etcd.All(w.keys.Slots(name)) {
		ref, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		if err != nil {
			continue
		}
		numbers := []int{ref.Number}
		if ref.IsBlock() {
			numbers = numbersOf(slots.Held{Blocks: []slots.Block{s.Block}})
		}
		for _, n := range numbers {
			w.check(!has[n], "number %d of %s is held twice", n, name)
			has[n] = true
		}
		used += max(1, s.Block.Count)
	}
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		s, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
		w.check(err == nil && !s.Paused && s.Limit != pool.Closed, "slots of %s were taken: %+v, %v", name, s, err)
		w.check(s.Limit == pool.Unlimited || used <= s.Limit, "%d of %d slots of %s are used", used, s.Limit, name)
	}
}

// rest has all go on until nothing happens, and checks that nobody waits for what is free.
func (w *queueWorld) rest() {
	w.tidy()
	quiet := 0
	for round := 0; quiet < 40 && len(w.errs) == 0; round++ {
		busy := false
		for _, c := range append(w.former, w.chair) {
			for w.show(c, 100) {
				busy = true
			}
			for range 5 {
				busy = w.dispatch(c) && c == w.chair && !onlyMark(w, c) || busy
			}
		}
		w.former = nil
		for _, p := range w.owners {
			p.hungTo = 0
			busy = p.act(true) || busy
			busy = p.tidy(false) || busy
		}
		if quiet++; busy {
			quiet = 0
		}
		w.now += 100 * time.Millisecond
		if round > 600 {
			w.check(false, "it does not come to rest")
		}
	}
	if len(w.errs) == 0 {
		w.checkRest()
	}
}

// onlyMark reports whether a dispatcher sends its sign of life alone.
func onlyMark(w *queueWorld, c *chair) bool {
	if c.sent == nil {
		return true
	}
	return len(c.sent.Success) == 1 && string(c.sent.Success[0].GetRequestPut().GetKey()) == w.keys.Mark()
}

func (w *queueWorld) checkRest() {
	s, d := w.state(w.etcd.Revision()), w.chair.d
	free := map[string]int{}
	for name, p := range s.pools {
		if free[name] = p.free(); !p.open {
			free[name] = -1 << 30
		}
	}
	kept := maps.Clone(free)
	for of := range admitted(s, free, func(waiting) bool { return false }, func(waiting) {}) {
		w.check(false, "rest: demand %+v may have slots and waits", of)
	}
	for key, list := range s.offers {
		w.check(false, "rest: %+v is left: %+v", key, list)
	}
	w.check(len(d.book.keys)+len(d.book.own) == 0, "rest: %d offers are open", len(d.book.keys)+len(d.book.own))
	w.check(len(s.passed) == 0 || !slices.Contains(slices.Collect(maps.Values(s.passed)), true), "rest: owners are passed: %v", s.passed)
	waits := map[string]bool{}
	for _, x := range s.demands {
		possible := true
		for name, n := range x.Pools {
			p := s.pools[name]
			possible = possible && p.open && (p.limit == pool.Unlimited || n <= p.limit)
		}
		for name, n := range x.Pools {
			if p := s.pools[name]; possible && n > kept[name] || !p.open {
				w.check(s.pending[name], "rest: %s has no free slots for %s, and is not pending", name, x.Claim)
			}
			waits[name] = true
			w.check(s.pools[name].exists, "rest: %s waits for %s, which does not exist", x.Claim, name)
		}
	}
	for name := range s.pending {
		w.check(waits[name], "rest: %s is pending, and nobody waits", name)
	}
	for name, p := range d.view.pools {
		w.check(p.slots.Held() == s.pools[name].slots.Held(), "rest: %d slots of %s are held in the view, %d in etcd", p.slots.Held(), name, s.pools[name].slots.Held())
		w.check(p.slots.Used() == p.slots.Held(), "rest: slots of %s are lent", name)
	}
	counted := map[instanceDemand]bool{}
	for _, x := range s.demands {
		counted[instanceDemand{x.instance, x.ref}] = true
	}
	w.checkAdvances(d, s, nil, counted)
	for key := range s.advance {
		w.check(slices.ContainsFunc(s.demands, func(x waiting) bool { return x.Pools[key.Advance] > 0 }), "rest: %+v is left, and nobody waits", key)
	}
	if w.check(!w.chair.asleep || len(s.demands) == 0, "rest: the dispatcher sleeps, and there are demands"); w.chair.asleep {
		return
	}
	seen := 0
	for _, o := range d.owners.all {
		seen += o.demands
	}
	w.check(seen == len(s.demands), "rest: the view has %d demands, etcd %d", seen, len(s.demands))
}

func TestDispatcherKeepsItsRules(t *testing.T) {
	long(t)
	t.Parallel()
	seen := map[string]int{}
	seeds, usual := storetest.Seeds(schedules)
	for seed := range seeds {
		w := newQueueWorld(seed, mutant{}).run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Log(seen)
	for _, what := range []string{"committed", "direct", "offers", "passed", "roles", "garbage", "advance"} {
		if usual && seen[what] < schedules {
			t.Errorf("%s: only %d in %d schedules", what, seen[what], schedules)
		}
	}
}

// schedules is how many the test of all rules runs.
const schedules = 600

// long skips a test of many schedules when the tests are shortened, as with the race detector: nothing here is concurrent.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
}
