package list

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// world is what etcd holds, in memory, as instances that keep the rules leave it: driven by a seed.
type world struct {
	*rand.Rand
	keys    wire.Keys
	rev     int64
	lease   int64
	kvs     map[string]*kv
	specs   map[string]pool.Spec
	since   map[string]int64
	claims  map[string]*made // by id
	demands map[string]*put  // by the key of the first pool
	n       int
	follows *State // if it is not nil, it is shown each write
}

// made is a claim that was made.
type made struct {
	req   *pool.Request
	held  map[string]slots.Held
	taken int64
	ided  bool
	ended wire.DemandRef
}

// put is a key of demands.
type put struct {
	name  wire.DemandKey
	pools []string
	list  []wire.Demand
	lease int64
}

var (
	worldPools     = []string{"cpu", "db", "gpu", "many"}
	worldInstances = []instance{{"one", "a"}, {"one", "b"}, {"two", "a"}}
	epoch          = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func newWorld(seed uint64) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 1)), keys: wire.Keys{Keys: store.NewKeys("/b/")}, rev: 1, kvs: map[string]*kv{},
		specs: map[string]pool.Spec{}, since: map[string]int64{}, claims: map[string]*made{}, demands: map[string]*put{},
	}
	for _, p := range worldPools[:3] {
		w.setSpec(p)
	}
	return w
}

// one returns one of some values.
func one[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

// write puts keys in one revision. A nil value deletes.
func (w *world) write(lease int64, values map[string][]byte) {
	w.rev++
	for key, v := range values {
		old := w.kvs[key]
		if v == nil {
			delete(w.kvs, key)
			if w.follows != nil {
				w.follows.Delete(key)
			}
			continue
		}
		kv := &kv{Key: []byte(key), Value: v, CreateRevision: w.rev, ModRevision: w.rev, Lease: lease}
		if old != nil {
			kv.CreateRevision = old.CreateRevision
		}
		w.kvs[key] = kv
		if w.follows != nil {
			w.follows.Put(kv)
		}
	}
	if w.follows != nil {
		w.follows.Show(w.rev)
	}
}

func (w *world) newLease() int64 {
	w.lease++
	return w.lease
}

func (w *world) state() *State {
	s := New(w.keys.Keys, w.rev)
	for _, kv := range w.kvs {
		s.Put(kv)
	}
	return s
}

func (w *world) setSpec(name string) {
	s := pool.DefaultSpec()
	s.Limit = one(w, 0, 2, 5, 60, 60, 300, 300, 700, 700, pool.Unlimited)
	s.Paused = w.IntN(16) == 0
	s.ReserveAfter = one(w, 0, time.Second, pool.NeverReserve)
	since := w.since[name]
	if old, ok := w.specs[name]; !ok || old.Limit != s.Limit {
		since = 0
	}
	w.write(0, map[string][]byte{w.keys.Spec(name): wire.EncodeSpec(s, since)})
	if since == 0 {
		since = w.rev
	}
	w.specs[name], w.since[name] = s, since
}

// reading returns all that is held of a pool.
func (w *world) reading(name string) slots.Reading {
	r := slots.Reading{Revision: w.rev, To: slots.MaxNumbersOfPool}
	kv := w.kvs[w.keys.Spec(name)]
	_, r.Spec, _ = wire.DecodeSpec("", kv.Value, kv.ModRevision)
	for _, m := range w.claims {
		r.Numbers, r.Blocks = append(r.Numbers, m.held[name].Numbers...), append(r.Blocks, m.held[name].Blocks...)
	}
	slices.Sort(r.Numbers)
	return r
}

func (w *world) needs() map[string]int {
	needs := map[string]int{}
	for range one(w, 1, 1, 2, 3) {
		needs[one(w, worldPools[:3]...)] = one(w, 1, 1, 1, 1, 2, 3, 40, 90)
	}
	return needs
}

func (w *world) request(by instance) *pool.Request {
	w.n++
	r := &pool.Request{ID: fmt.Sprint("c", w.n), Slots: w.needs(), Priority: one(w, 0, 0, 5, -3), Holder: pool.Holder{Host: by.host, Instance: by.name}}
	if w.IntN(3) == 0 {
		r.Holder.Run, r.Holder.Step = "run", fmt.Sprint("s", w.n)
	}
	return r
}

// claim makes a claim if it fits below the ceilings. With a demand, it is the one that waits there.
func (w *world) claim(r *pool.Request, ended wire.DemandRef) bool {
	m := &made{req: r, held: map[string]slots.Held{}, ided: ended == (wire.DemandRef{}) && w.IntN(4) == 0, ended: ended}
	blocks := slots.ByBlocks(r.Slots)
	for _, name := range sortedNames(r.Slots) {
		p := slots.New(w.Uint32())
		p.Read(w.reading(name))
		h, ok := p.Take(r.Slots[name], blocks[name])
		if !ok || w.specs[name].Paused {
			return false
		}
		m.held[name] = h
	}
	w.putClaim(m, 0, 0)
	m.taken = w.rev
	w.claims[r.ID] = m
	return true
}

// putClaim puts the keys of a claim on a new lease.
func (w *world) putClaim(m *made, admitted int64, fence store.Fence) {
	values := map[string][]byte{}
	for _, p := range wire.Spell(m.req).Puts(m.held, wire.Written{Since: epoch.Add(time.Duration(w.n) * time.Second), Admitted: admitted, Fence: fence, Demand: m.ended}) {
		values[p.Key(w.keys)] = p.Value
	}
	if m.ided {
		values[w.keys.ID(m.req.ID)] = wire.EncodeID(wire.ID{Host: m.req.Holder.Host, Instance: m.req.Holder.Instance})
	}
	w.write(w.newLease(), values)
}

// anyClaim returns a claim, nil if there is none.
func (w *world) anyClaim(is func(*made) bool) *made {
	all := slices.Sorted(maps.Keys(w.claims))
	w.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, id := range all {
		if is(w.claims[id]) {
			return w.claims[id]
		}
	}
	return nil
}

func anything(*made) bool { return true }

func (w *world) refs(m *made) []wire.Ref { return wire.Refs(m.held) }

func (w *world) release() {
	m := w.anyClaim(anything)
	if m == nil {
		return
	}
	values := map[string][]byte{w.keys.ID(m.req.ID): nil}
	for _, ref := range w.refs(m) {
		values[ref.Key(w.keys)] = nil
	}
	w.write(0, values)
	delete(w.claims, m.req.ID)
	for _, p := range w.demands { // what it has ended leaves its key
		if i := slices.IndexFunc(p.list, func(d wire.Demand) bool { return w.ref(p, d) == m.ended }); i >= 0 {
			w.endOne(p, i)
			return
		}
	}
}

// ref names a demand.
func (w *world) ref(p *put, d wire.Demand) wire.DemandRef {
	return wire.DemandRef{Pool: p.name.Pool, Name: p.name.Name, Created: w.kvs[w.keys.Demand(p.name)].CreateRevision, Index: d.Index}
}

// endOne puts a key of demands again without one of them.
func (w *world) endOne(p *put, i int) {
	if p.list = slices.Delete(p.list, i, i+1); len(p.list) > 0 {
		w.putDemands(p)
		return
	}
	w.endDemands(p)
}

// takeOver has another holder take over the keys of a claim, as the starter of an admitted run does.
func (w *world) takeOver() {
	m := w.anyClaim(func(m *made) bool { return !m.ided })
	if m == nil {
		return
	}
	by := one(w, worldInstances...)
	m.req.Holder.Host, m.req.Holder.Instance, m.req.Holder.PID = by.host, by.name, w.n+1
	fence := store.Fence(0)
	if w.IntN(2) == 0 {
		fence = store.FenceAt(m.taken)
	}
	w.putClaim(m, m.taken, fence)
}

// wait puts demands.
func (w *world) wait() *put {
	by := one(w, worldInstances...)
	first := w.request(by)
	p := &put{pools: sortedNames(first.Slots), lease: w.newLease()}
	for i := range 1 + w.IntN(3) {
		r := *first
		if i > 0 {
			w.n++
			r.ID = fmt.Sprint("c", w.n)
		}
		d := wire.Demand{
			Index: 2 * i, Claim: r.ID, Pools: r.Slots, Priority: one(w, 0, 0, 5), Reserve: w.IntN(4) == 0,
			Since: epoch.Add(time.Duration(w.n) * time.Second), Holder: r.Holder,
		}
		if w.IntN(4) == 0 {
			d.Stamp = &wire.Stamp{Revision: 1 + w.Int64N(w.rev)}
		}
		p.list = append(p.list, d)
	}
	p.name = wire.DemandKey{Pool: p.pools[0], Host: by.host, Instance: by.name}
	for w.kvs[w.keys.Demand(p.name)] != nil || w.taken(p) {
		p.name.Name++
	}
	w.putDemands(p)
	w.demands[w.keys.Demand(p.name)] = p
	return p
}

// taken reports whether a name of demands is in use in one of their pools.
func (w *world) taken(p *put) bool {
	return slices.ContainsFunc(p.pools, func(name string) bool { return w.kvs[w.keys.Demand(p.in(name))] != nil })
}

func (p *put) in(pool string) wire.DemandKey {
	k := p.name
	k.Pool = pool
	return k
}

func (w *world) putDemands(p *put) {
	values := map[string][]byte{}
	encoded := wire.EncodeDemands(p.list)
	for _, name := range p.pools {
		values[w.keys.Demand(p.in(name))] = encoded[name]
	}
	w.write(p.lease, values)
}

func (w *world) anyDemands() *put {
	all := slices.Sorted(maps.Keys(w.demands))
	if len(all) == 0 {
		return nil
	}
	return w.demands[all[w.IntN(len(all))]]
}

// serve ends a demand: its claim is made, and its key put again without it, now or later.
func (w *world) serve() {
	p := w.anyDemands()
	if p == nil {
		return
	}
	i := w.IntN(len(p.list))
	d := p.list[i]
	if w.claims[d.Claim] != nil {
		return
	}
	r := &pool.Request{ID: d.Claim, Slots: d.Pools, Priority: d.Priority, Holder: d.Holder}
	if w.claim(r, w.ref(p, d)) && w.IntN(2) == 0 {
		w.endOne(p, i)
	}
}

func (w *world) endDemands(p *put) {
	values := map[string][]byte{}
	for _, name := range p.pools {
		values[w.keys.Demand(p.in(name))] = nil
	}
	w.write(0, values)
	delete(w.demands, w.keys.Demand(p.name))
}

// dispatch writes what the dispatcher and workers do.
func (w *world) dispatch() {
	by := one(w, worldInstances...)
	switch w.IntN(4) {
	case 0:
		w.write(w.newLease(), map[string][]byte{w.keys.Role(): wire.EncodeRole(wire.Role{Host: by.host, Instance: by.name, Kind: wire.Coordinator, Since: epoch})})
	case 1:
		key := w.keys.Offer(wire.OfferKey{Host: by.host, Instance: by.name, Name: -1})
		if w.kvs[key] == nil {
			w.write(0, map[string][]byte{key: wire.EncodeEmpty()})
		} else {
			w.write(0, map[string][]byte{key: nil})
		}
	case 2:
		w.write(0, map[string][]byte{w.keys.Pending("db"): wire.EncodeEmpty(), w.keys.Mark(): wire.EncodeMark(wire.Mark{})})
	default:
		w.offer()
	}
}

func (w *world) offer() {
	p := w.anyDemands()
	if p == nil {
		return
	}
	d := p.list[0]
	o := wire.Offer{
		Demand: w.ref(p, d),
		Take:   map[string]wire.Take{},
	}
	for name, n := range d.Pools {
		o.Take[name] = wire.Take{Blocks: []wire.Block{{Count: n}}, Spec: 1}
	}
	key := w.keys.Offer(wire.OfferKey{Host: p.name.Host, Instance: p.name.Instance})
	if w.kvs[key] == nil {
		w.write(0, map[string][]byte{key: wire.EncodeOffers([]wire.Offer{o})})
	} else {
		w.write(0, map[string][]byte{key: nil})
	}
}

func (w *world) step() {
	switch x := w.IntN(100); {
	case x < 40:
		w.claim(w.request(one(w, worldInstances...)), wire.DemandRef{})
	case x < 55:
		w.release()
	case x < 60:
		w.takeOver()
	case x < 68:
		w.wait()
	case x < 80:
		w.serve()
	case x < 88:
		if p := w.anyDemands(); p != nil {
			w.endDemands(p)
		}
	case x < 97:
		w.dispatch()
	default:
		w.setSpec(one(w, worldPools[:3]...))
	}
}

func (w *world) run(steps int) *world {
	for range steps {
		w.step()
	}
	return w
}
