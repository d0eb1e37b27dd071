package dispatch

import (
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// instance names an instance.
type instance struct{ host, name string }

// holding is what the main key of a claim says.
type holding struct {
	instance
	demand wire.DemandRef // that it has ended
	put    int64          // the revision
}

// batch returns the first key of the demands of which it has ended one.
func (h holding) batch() wire.DemandKey {
	return wire.DemandKey{Pool: h.demand.Pool, Host: h.host, Instance: h.name, Name: h.demand.Name}
}

// followed is a pool that the dispatcher follows: one with demands, or that had some not long ago.
type followed struct {
	name  string
	index int  // of its capacity
	read  bool // else it is to be read
	// at is the revision at which it was read: events up to it are part of what was read. Those that came before it was
	// read are in early; while it is to be read, those up to at were dropped.
	at    int64
	early []*mvccpb.Event

	spec   *pool.Spec // nil if there is none
	slots  *slots.Exact
	claims map[wire.Ref]holding   // by main key
	ended  counts[instanceDemand] // demands that claims have ended
	holds  counts[instance]       // claims, by their main keys
	keys   map[wire.DemandKey]demandsKey
	// unreadable are the keys that can't be read: while there are any, nothing is offered.
	unreadable map[string]bool
	waiting    counts[*owner] // demands
	crowd      crowd
	used       time.Duration
}

type instanceDemand struct {
	instance
	demand wire.DemandRef
}

// counts counts what there is of each.
type counts[K comparable] map[K]int

func (c counts[K]) add(k K, n int) {
	if c[k] += n; c[k] <= 0 {
		delete(c, k)
	}
}

// maxEarly bounds the events that are kept for a pool while it is read. If there are more, it is read again.
const maxEarly = 10_000

func newFollowed(name string, index int) *followed {
	p := &followed{name: name, index: index, waiting: counts[*owner]{}}
	p.clear()
	return p
}

// clear forgets what was read.
func (p *followed) clear() {
	p.spec, p.slots, p.claims, p.ended = nil, slots.NewExact(), map[wire.Ref]holding{}, counts[instanceDemand]{}
	p.keys, p.unreadable, p.holds = map[wire.DemandKey]demandsKey{}, map[string]bool{}, counts[instance]{}
}

// capacity returns what may be granted of the pool: nothing while it is read again, since what has come meanwhile is not known.
func (p *followed) capacity() admit.Capacity {
	c := admit.Capacity{Used: p.slots.Used()}
	if p.spec != nil && p.read {
		c.Limit, c.Open = p.spec.Limit, !p.spec.Paused && p.spec.Limit != pool.Closed && len(p.unreadable) == 0
	}
	return c
}

// use keeps the pool from being forgotten.
func (p *followed) use(now time.Duration) { p.used = now }

// wait records an event that came before the pool was read. It is false if there are too many.
func (p *followed) wait(ev *mvccpb.Event) bool {
	p.early = append(p.early, ev)
	return len(p.early) <= maxEarly
}

// listed begins to record what was read at a revision, and returns the events that came since.
func (p *followed) listed(revision int64) (early []*mvccpb.Event) {
	early = p.early
	p.clear()
	p.read, p.at, p.early = true, revision, nil
	return early
}

// unread forgets that a pool was read, and the events up to a revision that came since: it is to be read again.
func (p *followed) unread(latest int64) { p.read, p.at, p.early = false, latest, nil }

// awaits reports whether the pool is to be read, at a revision or a later one.
func (p *followed) awaits(revision int64) bool { return !p.read && p.at <= revision }

// put records a key below the pool's prefix, other than one of demands. It returns what the main key of a claim says.
func (p *followed) put(k wire.Keys, kv *mvccpb.KeyValue) (h holding, ok bool) {
	key := string(kv.Key)
	var err error
	switch {
	case key == k.Spec(p.name):
		err = p.putSpec(key, kv)
	case strings.HasPrefix(key, k.Slots(p.name)):
		h, ok, err = p.putSlot(k, key, kv)
	}
	if delete(p.unreadable, key); err != nil {
		p.unreadable[key] = true
	}
	return h, ok
}

func (p *followed) putSpec(key string, kv *mvccpb.KeyValue) error {
	s, claims, err := wire.DecodeSpec(key, kv.Value, kv.ModRevision)
	if p.spec = &s; err == nil {
		p.slots.SetSpec(claims)
	}
	return err
}

// putSlot records what a slot key or a block holds: a number, whatever the value is, or what the value of the block says. It is an
// error if that can't be read, or if the key is none of these.
func (p *followed) putSlot(k wire.Keys, key string, kv *mvccpb.KeyValue) (h holding, ok bool, err error) {
	ref, s, err := k.DecodeSlot(key, kv.Value, kv.CreateRevision)
	if ref == (wire.Ref{}) {
		return h, false, err
	}
	p.drop(ref)
	p.take(ref, s.Block)
	switch {
	case err != nil && ref.IsBlock():
		return h, false, err
	case s.Record == nil:
		return h, false, nil
	}
	r, err := s.Decode(key)
	if err != nil {
		return h, false, nil
	}
	h = holding{instance{r.Holder.Host, r.Holder.Instance}, s.Demand, kv.ModRevision}
	p.claims[ref] = h
	p.counted(h, 1)
	return h, true, nil
}

// take records that a key holds slots.
func (p *followed) take(ref wire.Ref, b slots.Block) {
	if !ref.IsBlock() {
		p.slots.Add(ref.Number)
	} else if b.Count > 0 {
		p.slots.AddBlock(b)
	}
}

// drop records that a key holds no slots.
func (p *followed) drop(ref wire.Ref) {
	if h, ok := p.claims[ref]; ok {
		delete(p.claims, ref)
		p.counted(h, -1)
	}
	if ref.IsBlock() {
		p.slots.RemoveBlock(ref.Area, ref.Number)
	} else {
		p.slots.Remove(ref.Number)
	}
}

// counted counts a claim, or with -1 one that has ended.
func (p *followed) counted(h holding, n int) {
	p.holds.add(h.instance, n)
	if h.demand != (wire.DemandRef{}) {
		p.ended.add(instanceDemand{h.instance, h.demand}, n)
	}
}

// delete records that a key below the pool's prefix is gone, other than one of demands.
func (p *followed) delete(k wire.Keys, key string) {
	delete(p.unreadable, key)
	if key == k.Spec(p.name) {
		p.spec = nil
		return
	}
	if ref, err := k.Ref(key); err == nil && ref.Pool == p.name {
		p.drop(ref)
	}
}

// changeDemands records a key of demands that was put or deleted, and returns what it was and is; one that can't be read is none.
func (p *followed) changeDemands(k wire.Keys, name wire.DemandKey, kv *mvccpb.KeyValue, deleted bool) (was, is demandsKey) {
	was = p.keys[name]
	delete(p.keys, name)
	if deleted {
		return was, is
	}
	if _, w, err := k.DecodeDemands(string(kv.Key), kv.Value); err == nil {
		is = demandsKey{kv.CreateRevision, w}
		p.keys[name] = is
	}
	return was, is
}
