package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// peer is the owner of claims, honest if not always fast. It has one transaction under way, or none.
type peer struct {
	instance
	w        *queueWorld
	presence store.LeaseID
	lease    store.LeaseID
	keys     map[int]*demands // by name
	held     map[string]*claim
	txn      *pb.TxnRequest
	answered func(*pb.TxnResponse)
	hungTo   time.Duration // it does nothing before
	seen     bool          // the present role
}

// demands is a batch in etcd, or on its way.
type demands struct {
	name    int
	created int64
	pools   []string
	list    []wire.Demand
	over    map[int]bool // indexes that ended and are in etcd still
}

// claim has its slots.
type claim struct {
	id     string
	refs   []wire.Ref
	put    int64
	demand wire.DemandRef
}

func (w *queueWorld) newPeer(host, name string) *peer {
	p := &peer{instance: instance{host, name}, w: w, keys: map[int]*demands{}, held: map[string]*claim{}}
	p.presence, _, _ = w.etcd.Grant(time.Hour)
	p.lease, _, _ = w.etcd.Grant(time.Hour)
	return p
}

func (p *peer) send(t *pb.TxnRequest, answered func(*pb.TxnResponse)) {
	p.txn, p.answered = t, answered
}

// deliver has etcd carry out what is under way.
func (p *peer) deliver() {
	t, answered := p.txn, p.answered
	p.txn, p.answered = nil, nil
	resp, err := p.w.etcd.Txn(t)
	if err != nil {
		panic(err)
	}
	answered(resp)
}

// act has an owner do something. It is well if it does at once what it has to.
func (p *peer) act(well bool) bool {
	switch {
	case p.txn != nil:
		p.deliver()
		return true
	case p.w.now < p.hungTo && !well:
		return false
	case p.seeRole(), p.seePassed(), p.takeOffers(well), p.takeOwn(well):
		return true
	}
	return false
}

// demand puts demands.
func (p *peer) demand() {
	if p.txn != nil || len(p.keys) > 8 {
		return
	}
	w := p.w
	d := &demands{pools: w.somePools(), over: map[int]bool{}}
	for p.keys[d.name] != nil {
		d.name++
	}
	now := w.state(w.etcd.Revision())
	most := 3
	if w.rush {
		most = 1
	}
	for i := range 1 + w.IntN(most) {
		one := wire.Demand{Index: i, Claim: w.newID(), Pools: map[string]int{}, Priority: w.IntN(6) / 4, Reserve: w.IntN(6) == 0, Since: time.Unix(1, 0), Holder: pool.Holder{Host: p.host, Instance: p.name}}
		for _, name := range d.pools {
			if one.Pools[name] = []int{1, 1, 1, 2, 3, 5, 40}[w.IntN(7)]; w.rush && w.IntN(8) > 0 {
				one.Pools[name] = 1
			}
			if now.pools[name].free() < one.Pools[name] {
				one.Pending = append(one.Pending, name)
			}
		}
		if len(one.Pending) == 0 {
			one.Pending = d.pools[:1]
		}
		d.list = append(d.list, one)
	}
	p.keys[d.name] = d
	p.putDemands(d, true, nil)
}

// putDemands puts the keys of demands, the first time or with what is left.
func (p *peer) putDemands(d *demands, first bool, more []*pb.RequestOp) {
	t := &pb.TxnRequest{Compare: p.ofDemands(d)}
	t.Success = append(p.opsOf(d), more...)
	if first {
		for _, one := range d.list {
			for _, name := range one.Pending {
				if op := store.Put(p.w.keys.Pending(name), wire.EncodeEmpty(), 0); !slices.ContainsFunc(t.Success, func(o *pb.RequestOp) bool { return string(o.GetRequestPut().GetKey()) == p.w.keys.Pending(name) }) {
					t.Success = append(t.Success, op)
				}
			}
		}
	}
	p.send(t, func(resp *pb.TxnResponse) {
		if !resp.Succeeded {
			delete(p.keys, d.name) // its lease had ended
		} else if first {
			d.created = resp.Header.Revision
		}
	})
}

func (p *peer) keyOf(d *demands, pool string) string {
	return p.w.keys.Demand(wire.DemandKey{Pool: pool, Host: p.host, Instance: p.name, Name: d.name})
}

func (p *peer) ofDemands(d *demands) []*pb.Compare {
	return []*pb.Compare{store.CreateEquals(p.keyOf(d, d.pools[0]), d.created)}
}

// opsOf puts what is left of demands, or deletes their keys.
func (p *peer) opsOf(d *demands) (ops []*pb.RequestOp) {
	var list []wire.Demand
	for _, one := range d.list {
		if !d.over[one.Index] {
			list = append(list, one)
		}
	}
	if d.list, d.over = list, map[int]bool{}; len(list) == 0 {
		delete(p.keys, d.name)
		for _, name := range d.pools {
			ops = append(ops, store.Delete(p.keyOf(d, name)))
		}
		return ops
	}
	values := wire.EncodeDemands(list)
	for _, name := range d.pools {
		ops = append(ops, store.Put(p.keyOf(d, name), values[name], p.presence))
	}
	return ops
}

// tidy puts demands again without those that have ended, or that are given up.
func (p *peer) tidy(give bool) bool {
	if p.txn != nil {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(p.keys)) {
		d := p.keys[name]
		if give {
			d.over[d.list[p.w.IntN(len(d.list))].Index] = true
		} else if len(d.over) == 0 {
			continue
		}
		p.putDemands(d, false, nil)
		return true
	}
	return false
}

// find returns the demand that an offer names.
func (p *peer) find(ref wire.DemandRef) (*demands, *wire.Demand) {
	d := p.keys[ref.Name]
	if d == nil || d.created != ref.Created || d.pools[0] != ref.Pool || d.over[ref.Index] {
		return nil, nil
	}
	for i := range d.list {
		if d.list[i].Index == ref.Index {
			return d, &d.list[i]
		}
	}
	return nil, nil
}

// seeRole puts the pools of its demands as pending, so that a new dispatcher knows of them.
func (p *peer) seeRole() bool {
	t, put := &pb.TxnRequest{}, map[string]bool{}
	for _, d := range p.keys {
		for _, name := range d.pools {
			put[name] = !p.seen
		}
	}
	p.seen = true
	for _, name := range slices.Sorted(maps.Keys(put)) {
		if put[name] {
			t.Success = append(t.Success, store.Put(p.w.keys.Pending(name), wire.EncodeEmpty(), 0))
		}
	}
	if len(t.Success) > 0 {
		p.send(t, func(*pb.TxnResponse) {})
	}
	return len(t.Success) > 0
}

// seePassed deletes the key that says that it is passed, and puts its demands again.
func (p *peer) seePassed() bool {
	key := p.w.keys.Offer(wire.OfferKey{Host: p.host, Instance: p.name, Name: -1})
	if !p.w.has(key) {
		return false
	}
	t := &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(key)}}
	for _, name := range slices.Sorted(maps.Keys(p.keys)) {
		d := p.keys[name]
		t.Success = append(t.Success, store.Nest(&pb.TxnRequest{Compare: p.ofDemands(d), Success: p.opsOf(d)}))
	}
	p.w.seen["passed"]++
	p.send(t, func(*pb.TxnResponse) {})
	return true
}

// takeOffers commits or declines what is offered.
func (p *peer) takeOffers(well bool) bool {
	for kv := range p.w.etcd.All(p.w.keys.Offers(p.host, p.name)) {
		name, err := p.w.keys.OfferKey(string(kv.Key))
		if err != nil || name.Name < 0 {
			continue
		}
		list, err := wire.DecodeOffers(string(kv.Key), kv.Value)
		if err != nil {
			continue
		}
		p.take(list, store.CreateEquals(string(kv.Key), kv.CreateRevision), string(kv.Key), well)
		return true
	}
	return false
}

// take commits offers, each in a child under a compare that they may be committed.
func (p *peer) take(list []wire.Offer, may *pb.Compare, key string, well bool) (taken []*claim) {
	t := &pb.TxnRequest{}
	var done []func(int64)
	for _, o := range list {
		d, one := p.find(o.Demand)
		switch {
		case d == nil, !well && p.w.IntN(8) == 0:
			continue
		case o.Refused:
			d.over[one.Index] = true
			continue
		}
		child := &pb.TxnRequest{Compare: []*pb.Compare{may}}
		c := p.claimOf(o, one, child)
		ends := len(d.list) == 1
		if ends {
			child.Compare = append(child.Compare, p.ofDemands(d)...)
			for _, name := range d.pools {
				child.Success = append(child.Success, store.Delete(p.keyOf(d, name)))
			}
		}
		t.Success = append(t.Success, store.Nest(child))
		taken = append(taken, c)
		done = append(done, func(revision int64) {
			c.put = revision
			p.held[c.id] = c
			switch {
			case ends:
				delete(p.keys, d.name)
			default:
				d.over[one.Index] = true
			}
		})
	}
	if key != "" {
		t.Success = append(t.Success, store.Nest(&pb.TxnRequest{Compare: []*pb.Compare{may}, Success: []*pb.RequestOp{store.Delete(key)}}))
	}
	p.send(t, func(resp *pb.TxnResponse) {
		for i, f := range done {
			if resp.Responses[i].GetResponseTxn().Succeeded {
				f(resp.Header.Revision)
				p.w.seen["committed"]++
			}
		}
	})
	return taken
}

// claimOf adds the compares and the puts of a claim as it is offered.
func (p *peer) claimOf(o wire.Offer, one *wire.Demand, t *pb.TxnRequest) *claim {
	c := &claim{id: one.Claim, demand: o.Demand}
	taken := map[string]slots.Held{}
	compares := 0
	for name, of := range o.Take {
		taken[name], _ = of.Held()
		compares += taken[name].Compares()
	}
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		h := taken[name]
		p.w.check(h.Slots() == one.Pools[name], "%d slots of %s are offered for %d", h.Slots(), name, one.Pools[name])
		t.Compare = append(t.Compare, p.w.compares(name, h, compares > slots.MaxCompares)...)
	}
	p.w.check(len(taken) == len(one.Pools), "offered are %v of %v", o.Take, one.Pools)
	t.Success = append(t.Success, p.putsOf(c, one.Pools, one.Priority, taken)...)
	return c
}

func (p *peer) putsOf(c *claim, needs map[string]int, priority int, taken map[string]slots.Held) (ops []*pb.RequestOp) {
	r := &pool.Request{ID: c.id, Slots: needs, Priority: priority, Holder: pool.Holder{Host: p.host, Instance: p.name}}
	for _, put := range wire.Spell(r).Puts(taken, wire.Written{Since: time.Unix(1, 0), Demand: c.demand}) {
		c.refs = append(c.refs, put.Ref)
		ops = append(ops, store.Put(put.Key(p.w.keys), put.Value, p.lease))
	}
	return ops
}

// compares are those of slots of a pool, one by one or of the whole pool.
func (w *queueWorld) compares(name string, h slots.Held, whole bool) (all []*pb.Compare) {
	all = append(all, store.ModEquals(w.keys.Spec(name), h.Spec))
	if whole && len(h.Areas) > 0 {
		return append(all, store.NoneCreatedSince(w.keys.Slots(name), h.Areas[0].Revision))
	}
	for _, r := range h.Runs() {
		from, to := w.keys.Numbers(name, r)
		c := store.CreateEquals(from, 0)
		c.RangeEnd = []byte(to)
		all = append(all, c)
	}
	for _, b := range h.Blocks {
		if len(b.Runs) == 0 {
			all = append(all, store.CreateEquals(w.keys.Block(name, b.Area, b.Name), 0))
		}
	}
	for _, a := range h.AreaRuns() {
		c := store.NoneCreatedSince(w.keys.Area(name, a.From), a.Revision)
		c.RangeEnd = store.RangeEnd(w.keys.Area(name, a.To))
		all = append(all, c)
	}
	return all
}

// takeOwn commits what the dispatcher of the same process offers.
func (p *peer) takeOwn(well bool) bool {
	c := p.w.chair
	if c == nil || c.peer != p || len(c.offers) == 0 {
		return false
	}
	o := c.offers[0]
	c.offers = c.offers[1:]
	taken := p.take([]wire.Offer{o}, store.ModEquals(p.w.keys.Role(), c.role), "", well)
	answered := p.answered
	p.answered = func(resp *pb.TxnResponse) {
		answered(resp)
		if len(taken) > 0 && p.held[taken[0].id] == taken[0] {
			c.d.Committed(o.Demand, resp.Header.Revision, p.w.now)
		} else {
			c.d.Declined(o.Demand, p.w.now)
		}
	}
	return true
}

// release gives slots back, and takes a demand that has ended out of its key, if it is there still.
func (p *peer) release() bool {
	if p.txn != nil || len(p.held) == 0 {
		return false
	}
	ids := slices.Sorted(maps.Keys(p.held))
	c := p.held[ids[p.w.IntN(len(ids))]]
	delete(p.held, c.id)
	if p.handOn(c) {
		return true
	}
	t := &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(c.refs[0].Key(p.w.keys), c.put)}}
	for _, r := range c.refs {
		t.Success = append(t.Success, store.Delete(r.Key(p.w.keys)))
	}
	if d := p.keys[c.demand.Name]; d != nil && d.created == c.demand.Created && len(d.over) > 0 {
		t.Success = append(t.Success, p.opsOf(d)...)
	}
	p.send(t, func(*pb.TxnResponse) {})
	return true
}

// handOn gives the slots of a claim to the next demand that fits, if there is an advance offer.
func (p *peer) handOn(c *claim) bool {
	w, name := p.w, c.refs[0].Pool
	key := wire.OfferKey{Host: p.host, Instance: p.name, Name: -1, Advance: name}
	may := store.Present(w.keys.Offer(key))
	own := w.chair != nil && w.chair.peer == p && w.chair.d.Advance(name)
	if own {
		may = store.ModEquals(w.keys.Role(), w.chair.role)
	}
	s := w.state(w.etcd.Revision())
	var held slots.Held
	for _, r := range c.refs {
		if r.Pool != name || r.IsBlock() || r.Number >= s.pools[name].slots.Ceiling() {
			return false
		}
		held.Numbers = append(held.Numbers, r.Number)
	}
	if !s.pools[name].open || !own && !w.has(w.keys.Offer(key)) {
		return false
	}
	for _, at := range slices.Sorted(maps.Keys(p.keys)) {
		d := p.keys[at]
		one := d.list[0]
		if d.created == 0 || len(d.list) > 1 || len(d.over) > 0 || len(one.Pools) > 1 || one.Pools[name] != len(held.Numbers) {
			continue
		}
		next := &claim{id: one.Claim, demand: wire.DemandRef{Pool: name, Name: d.name, Created: d.created, Index: one.Index}}
		t := &pb.TxnRequest{Compare: append(p.ofDemands(d), may, store.ModEquals(w.keys.Spec(name), s.pools[name].slots.Spec().Revision))}
		t.Success = p.putsOf(next, one.Pools, one.Priority, map[string]slots.Held{name: held})
		for _, r := range c.refs {
			t.Compare = append(t.Compare, store.ModEquals(r.Key(w.keys), c.put))
		}
		t.Success = append(t.Success, store.Delete(p.keyOf(d, name)))
		p.send(t, func(resp *pb.TxnResponse) {
			if !resp.Succeeded {
				p.held[c.id] = c
				return
			}
			next.put = resp.Header.Revision
			p.held[next.id] = next
			delete(p.keys, d.name)
			w.seen["handed on"]++
		})
		return true
	}
	return false
}

// direct makes a claim where nobody waits.
func (p *peer) direct() {
	name := p.w.pools[p.w.IntN(len(p.w.pools))]
	s := p.w.state(p.w.etcd.Revision())
	of := s.pools[name]
	if p.txn != nil || s.pending[name] || of == nil || !of.open {
		return
	}
	n := []int{1, 1, 2, 6}[p.w.IntN(4)]
	h, ok := of.slots.Choose(n, n > 5, slots.Hash(p.host, p.name), p.w.etcd.Revision())
	if !ok || of.limit >= 0 && of.slots.Used()+n > of.limit {
		return
	}
	c := &claim{id: p.w.newID()}
	t := &pb.TxnRequest{Compare: append(p.w.compares(name, h, false), store.CreateEquals(p.w.keys.Pending(name), 0))}
	t.Success = p.putsOf(c, map[string]int{name: n}, 0, map[string]slots.Held{name: h})
	p.send(t, func(resp *pb.TxnResponse) {
		if resp.Succeeded {
			c.put = resp.Header.Revision
			p.held[c.id] = c
			p.w.seen["direct"]++
		}
	})
}

// die ends a process; another one of the same host comes, under another name.
func (p *peer) die() *peer {
	_ = p.w.etcd.Revoke(p.presence)
	_ = p.w.etcd.Revoke(p.lease)
	p.w.peers++
	return p.w.newPeer(p.host, fmt.Sprint("i", p.w.peers))
}

func (w *queueWorld) has(key string) bool {
	for kv := range w.etcd.All(key) {
		if string(kv.Key) == key {
			return true
		}
	}
	return false
}

// inView reports whether the dispatcher's watch has a key.
func (w *queueWorld) inView(kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	for _, prefix := range []string{w.keys.OffersAll(), w.keys.Pending(""), w.keys.Pools()} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}
