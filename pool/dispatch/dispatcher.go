package dispatch

import (
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// Options of a [Dispatcher].
type Options struct {
	Keys store.Keys
	// Host and Instance are those of the dispatcher's own instance, to which it offers in memory.
	Host, Instance string
	// Role is the revision at which this instance has put the role's key, and Lease the lease of that key.
	Role  int64
	Lease store.LeaseID
}

// Dispatcher offers slots to the owners of demands, under one role. When the role is lost it has to be dropped. Times
// are those of one clock that never goes back, from any start.
type Dispatcher struct {
	keys     wire.Keys
	self     instance
	role     int64
	lost     bool // the role was: nothing is sent any longer
	view     view
	batches  map[wire.DemandKey]*batch // by the key in the first of their pools
	changed  map[wire.DemandKey]bool   // batches of which a key has changed
	order    order
	owners   owners
	book     book
	await    awaited
	pending  pending
	advances advances
	silence  silence
	mark     mark
	flight   *flight
	own      []wire.Offer     // not returned yet
	dirty    bool             // something has changed since the last plan, or that had to leave something out
	planAt   time.Duration    // when the next one is made though nothing has changed
	failing  map[*demand]bool // demands with two or more offers that came to nothing
	pace     pace
	counts   Counts
}

// New returns a dispatcher that knows nothing: see [Dispatcher.Restart].
func New(o Options) *Dispatcher {
	keys := wire.Keys{Keys: o.Keys}
	return &Dispatcher{
		keys: keys, self: instance{o.Host, o.Instance}, role: o.Role,
		view:    newView(keys),
		batches: map[wire.DemandKey]*batch{}, changed: map[wire.DemandKey]bool{},
		order:   order{lanes: map[string]*lane{}, count: counts[*followed]{}},
		owners:  owners{all: map[instance]*owner{}, byHost: map[string]map[*owner]bool{}},
		book:    newBook(),
		await:   awaited{},
		pending: newPending(), advances: newAdvances(),
		mark:    mark{lease: o.Lease},
		failing: map[*demand]bool{}, planAt: never,
	}
}

// Demands returns how many demands the view has that have no slots.
func (d *Dispatcher) Demands() int { return d.owners.demands }

// Pending returns how many pools are pending. A dispatcher that sleeps knows of none.
func (d *Dispatcher) Pending() int { return len(d.view.pending) }

// Listing is what was read at one revision.
type Listing struct {
	Revision int64
	Pools    []string // of which all keys were read
	Pages    [][]*mvccpb.KeyValue
}

// Restart records which keys there are below offers/ and pending/. It is to be called first, and again whenever events may be missing;
// events may be shown only after it. All pools that are pending, and all that were known, are to be read then.
func (d *Dispatcher) Restart(l Listing, now time.Duration) {
	d.mark.current(now)
	d.view.restart(l.Revision)
	d.book.hide(l.Revision)
	d.owners.unpass()
	d.advances.hide()
	for _, page := range l.Pages {
		for _, kv := range page {
			d.apply(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv}, now)
		}
	}
	d.shown(now)
	for _, o := range d.owners.all {
		d.left(o)
	}
}

// Wants returns the pools that have demands and are not known, until [Dispatcher.Listed] has shown them: all of their keys are to be
// read at one revision, that of the last events or a later one.
func (d *Dispatcher) Wants() []string { return d.view.wanted() }

// Listed records pools that were read. Those that were read too early, or at revision 0, for not at all, are still wanted.
func (d *Dispatcher) Listed(l Listing, now time.Duration) {
	pools := d.view.awaited(l.Pools, l.Revision)
	var early []*mvccpb.Event
	for _, p := range pools {
		early = append(early, d.listed(p, l.Revision)...)
	}
	for _, page := range l.Pages {
		for _, kv := range page {
			if name, _ := d.view.poolOf(string(kv.Key)); slices.Contains(pools, d.view.pools[name]) {
				d.apply(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv}, now)
			}
		}
	}
	for _, p := range pools {
		d.view.wantAll(p)
	}
	for _, ev := range early {
		if ev.Kv.ModRevision > l.Revision {
			d.apply(ev, now)
		}
	}
	d.shown(now)
}

// listed forgets what is known of a pool that was read, and returns the events that came meanwhile.
func (d *Dispatcher) listed(p *followed, revision int64) []*mvccpb.Event {
	for name, key := range p.keys {
		d.changed[name.In(key.first(p.name))] = true
	}
	early := p.listed(revision)
	for _, o := range d.book.all() {
		for _, l := range o.loans {
			d.lendIn(l, p)
		}
	}
	return early
}

// lendIn lends a pool what is offered of it.
func (d *Dispatcher) lendIn(l *loan, p *followed) {
	for i, h := range l.held {
		if l.demand.needs[i].pool == p {
			p.slots.Lend(h)
		}
	}
}

// Watched returns the keys that a dispatcher follows: from offers/ to the end of pools/.
func Watched(keys store.Keys) store.KeyRange {
	k := wire.Keys{Keys: keys}
	return store.KeyRange{Key: k.OffersAll(), End: string(store.RangeEnd(k.Pools()))}
}

// Events records what a watch of the keys of [Watched] has shown up to a revision; without events, that there were none: an
// answer to a request for its progress. No revision may be in two calls.
func (d *Dispatcher) Events(revision int64, events []*mvccpb.Event, now time.Duration) {
	for i, ev := range events {
		at := ev.Kv.ModRevision
		if d.view.isNew(string(ev.Kv.Key), at) {
			d.apply(ev, now)
		}
		if i+1 == len(events) || events[i+1].Kv.ModRevision != at {
			d.view.shown(at)
			d.shown(now)
		}
	}
	d.view.shown(revision)
	d.shown(now)
	d.mark.current(now)
}

// apply records a key that was put or deleted.
func (d *Dispatcher) apply(ev *mvccpb.Event, now time.Duration) {
	key, deleted := string(ev.Kv.Key), ev.Type == mvccpb.DELETE
	switch {
	case strings.HasPrefix(key, d.keys.Pools()):
		if !d.applyPool(ev, key, deleted, now) {
			return
		}
	case strings.HasPrefix(key, d.keys.OffersAll()):
		d.applyOffer(ev.Kv, key, deleted, now)
	case strings.HasPrefix(key, d.keys.Pending("")):
		revision := ev.Kv.ModRevision
		if deleted {
			revision = 0
		}
		if name := d.view.putPending(key, revision); !deleted && !d.view.knows(name) {
			d.view.want(d.view.follow(name)) // it has demands
		}
	}
	d.touch()
}

// applyPool records a key of a pool. It is false if that changes nothing, since the pool has no demands.
func (d *Dispatcher) applyPool(ev *mvccpb.Event, key string, deleted bool, now time.Duration) bool {
	name, rest := d.view.poolOf(key)
	demands := strings.HasPrefix(rest, "demands/")
	p := d.view.pools[name]
	switch {
	case p == nil:
		if demands && !deleted && isPool(name) {
			d.view.want(d.view.follow(name))
		}
		return false
	case !p.read:
		if !p.wait(ev) {
			d.view.want(p)
		}
		return false
	case demands:
		p.use(now)
		d.applyDemands(p, ev.Kv, key, deleted, now)
	case deleted:
		p.delete(d.keys, key)
	default:
		if h, ok := p.put(d.keys, ev.Kv); ok {
			d.claimed(h)
		}
	}
	return true
}

// applyDemands records a key of demands that was put or deleted. One that can't be read has none.
func (d *Dispatcher) applyDemands(p *followed, kv *mvccpb.KeyValue, key string, deleted bool, now time.Duration) {
	name, err := d.keys.DemandKey(key)
	if err != nil {
		return
	}
	of := instance{name.Host, name.Instance}
	d.owners.write(of, kv.ModRevision)
	was, is := p.changeDemands(d.keys, name, kv, deleted)
	if was.created != 0 {
		d.changed[name.In(was.first(p.name))] = true
	}
	if is.created != 0 {
		d.changed[name.In(is.first(p.name))] = true
		p.crowd.add(of, now)
	}
}

// claimed records that a claim has its slots.
func (d *Dispatcher) claimed(h holding) {
	d.owners.write(h.instance, h.put)
	if b := d.batches[h.batch()]; b != nil && b.created == h.demand.Created {
		if x := b.demands[h.demand.Index]; x != nil {
			d.end(x, ended)
		}
	}
}

// shown acts on what the view shows now that a revision is complete.
func (d *Dispatcher) shown(now time.Duration) {
	for name := range d.changed {
		d.regroup(name)
	}
	clear(d.changed)
	for _, o := range d.book.left(d.view.revision) {
		d.closed(o, now)
	}
}

// regroup records the demands of a batch as its keys have them. They count only if there is a key in each of their pools
// that was created at one revision: each pool decides who may have claims wait there.
func (d *Dispatcher) regroup(name wire.DemandKey) {
	b, key := d.batches[name], d.complete(name)
	if b != nil && b.created != key.created {
		for _, x := range b.demands {
			d.end(x, gone)
		}
		delete(d.batches, name)
		b = nil
	}
	if key.created == 0 {
		return
	}
	if b == nil {
		b = &batch{key.created, map[int]*demand{}}
		d.batches[name] = b
	}
	there := map[int]bool{}
	for i := range key.List {
		w := &key.List[i]
		there[w.Index] = true
		if x := b.demands[w.Index]; x != nil {
			d.order.remove(x)
			x.change(w, key.created)
			d.queue(x)
			continue
		}
		x := d.newDemand(name, key.created, w)
		b.demands[w.Index] = x
		d.begin(x)
	}
	for index, x := range b.demands {
		if !there[index] {
			d.end(x, gone)
			delete(b.demands, index)
		}
	}
}

// complete returns the key of a batch that has its demands, if the keys of all their pools are there.
func (d *Dispatcher) complete(name wire.DemandKey) demandsKey {
	p := d.view.pools[name.Pool]
	if p == nil {
		return demandsKey{}
	}
	key := p.keys[name]
	if len(key.List) == 0 {
		return demandsKey{}
	}
	for other := range key.List[0].Pools {
		q := d.view.pools[other]
		if q == nil {
			return demandsKey{}
		}
		if part := q.keys[name.In(other)]; other != name.Pool && (part.created != key.created || part.First != name.Pool) {
			return demandsKey{}
		}
	}
	return key
}

// begin begins to serve a demand.
func (d *Dispatcher) begin(x *demand) {
	d.owners.waiting(x.owner, 1)
	for _, n := range x.needs {
		n.pool.waiting.add(x.owner, 1)
	}
	if x.needs[0].pool.ended[instanceDemand{x.owner.instance, x.ref}] > 0 {
		d.end(x, ended)
	}
	d.queue(x)
}

// queue adds a demand to the order if it may get an offer.
func (d *Dispatcher) queue(x *demand) {
	if x.mayHave() {
		d.order.add(x)
	}
}

// end ends that a demand is served. One that has its slots has been served, also when it is no longer in etcd.
func (d *Dispatcher) end(x *demand, s stage) {
	if x.stage != waits {
		return
	}
	d.owners.waiting(x.owner, -1)
	for _, n := range x.needs {
		n.pool.waiting.add(x.owner, -1)
	}
	d.order.remove(x)
	delete(d.failing, x)
	x.end(s)
	d.left(x.owner)
}

// failed records that an offer to a demand came to nothing.
func (d *Dispatcher) failed(x *demand) {
	if x.fails > 1 {
		d.failing[x] = true
	}
}

// left acts on that an owner may have no demands: it need not be passed.
func (d *Dispatcher) left(o *owner) {
	if !o.idle() {
		return
	}
	if o.passing == passed {
		d.book.see(o.passedKey(), true)
	}
	o.pass(served)
	d.owners.forget(o)
}

// Busy reports whether there are demands, offers or pending pools.
func (d *Dispatcher) Busy() bool {
	offers := len(d.book.keys) + len(d.book.own) + len(d.book.leaving) + len(d.book.strays) + len(d.advances.there)
	return len(d.owners.all)+offers+len(d.view.pending)+len(d.await) > 0
}

// Sleep ends that the dispatcher follows pools, if there is nothing to follow: no demands, offers or pending pools for a
// second, which its sign of life has said. It is to be woken by Restart when a key below pending/ is put after the
// revision that is returned, or its own instance puts a demand.
func (d *Dispatcher) Sleep(now time.Duration) (revision int64, ok bool) {
	if d.Busy() || d.flight != nil || !d.mark.idle(now) || !d.view.complete() {
		return 0, false
	}
	return d.view.sleep(), true
}

// age forgets pools that have had no demands for a while.
func (d *Dispatcher) age(now time.Duration) {
	d.await.age(d.view.revision)
	for _, p := range d.view.byIndex {
		if p == nil || !p.read || now-p.used <= forgetAfter {
			continue
		}
		if len(p.keys)+d.book.perPool[p] == 0 {
			d.view.forget(p)
		}
	}
}
