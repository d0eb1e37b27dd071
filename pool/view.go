package pool

import (
	"maps"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// view is what an instance knows of all pools: read at one revision, then
// watched, and moved ahead of the watch by the instance's own commits.
//
// Two kinds of knowledge are kept apart. Everything that happened up to rev is
// in the view. Beyond that, a group (or a whole pool) is known to have got no
// put but our own up to some later revision, because a commit of ours compared
// it: deletes may be missing there, and those only free slots.
type view struct {
	keys    store.Keys
	rev     int64
	pools   map[string]*poolView
	order   []*poolView // by number
	waiters []*waiter   // in order
	// byWork are those that say what they are for.
	byWork map[work][]*waiter
	// notices are those of grants that were not acknowledged yet, by key.
	notices map[string]*notice
	// instances are those that have waiters or notices.
	instances map[instanceName]*otherInstance
	// acted are those that have written a waiter, and ended the notices that were deleted,
	// since that was last noted: see [core.noteActs].
	acted []*otherInstance
	ended []*notice
	// claims that hold slots, by id: of each the first, see [claimView.next].
	claims map[string]*claimView
	// gone are slots that a commit of ours deleted ahead of the watch, with the
	// revision: older events of the same key must not bring them back.
	gone map[slotRef]int64
	// goneWaiters and goneNotices are the same for waiters and notices.
	goneWaiters map[Order]int64
	goneNotices map[string]int64
	// corrupt are keys that can't be read, with the reason.
	corrupt map[string]error
	// specs counts the changes of specs, and of what can be read, from 1 on.
	specs int
	// sent are the slots that the batch in flight puts: what comes back as it
	// was sent need not be decoded.
	sent map[slotRef]sentSlot
}

// poolView is one pool. It stays while its slots are held, its spec deleted or
// not.
type poolView struct {
	name   string
	number int // index of its [Capacity]
	spec   Spec
	// specRev is the revision of the spec, 0 where there is none.
	specRev    int64
	limitSince int64
	layout     layout
	// wholeRev is the revision up to which a commit of ours compared the whole
	// pool.
	wholeRev   int64
	used       int
	groups     []*groupView // by group; grown as they are met
	waiting    int          // waiters
	queued     mark
	dispatcher dispatcher
	corrupt    int // spec and slot keys that can't be read: it grants nothing
}

func newView(keys store.Keys) *view {
	v := &view{keys: keys, pools: map[string]*poolView{}, specs: 1}
	v.clear()
	return v
}

// clear forgets everything but the pools' numbers, which waiters refer to.
func (v *view) clear() {
	v.waiters, v.byWork = nil, map[work][]*waiter{}
	v.instances = map[instanceName]*otherInstance{}
	v.specs++
	v.claims = map[string]*claimView{}
	v.gone = map[slotRef]int64{}
	v.goneWaiters, v.goneNotices = map[Order]int64{}, map[string]int64{}
	v.notices, v.acted, v.ended = map[string]*notice{}, nil, nil
	v.corrupt = map[string]error{}
	for i, p := range v.order {
		v.order[i] = &poolView{name: p.name, number: p.number}
		v.pools[p.name] = v.order[i]
	}
}

// load replaces everything by a snapshot.
func (v *view) load(s store.Snapshot) {
	v.clear()
	v.rev = s.Revision
	for _, kv := range s.KVs {
		v.put(kv)
	}
}

// apply takes events that the watch delivered, and returns the slots that were
// taken from their claims: deleted, or overwritten by another claim.
func (v *view) apply(events []*mvccpb.Event, rev int64) []change {
	var ended []change
	for _, e := range events {
		if e.Kv.ModRevision <= v.rev {
			continue // a snapshot that was read since has it
		}
		if e.Type == mvccpb.Event_DELETE {
			ended = v.deleted(string(e.Kv.Key), e.Kv.ModRevision, ended)
		} else {
			ended = v.noteOverwrite(e.Kv, ended)
			v.put(e.Kv)
		}
	}
	if rev > v.rev {
		v.rev = rev
	}
	return ended
}

// put takes the present state of a key.
func (v *view) put(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	k, err := v.keys.ParsePoolKey(key)
	if err != nil {
		v.corrupt[key] = err
		return
	}
	p := v.pool(k.Pool)
	v.readable(p, k, key)
	switch k.Kind {
	case store.SpecKey:
		err = v.putSpec(p, kv)
	case store.SlotKey:
		err = v.putSlotValue(slotRef{k.Pool, k.Group, k.Index}, kv)
	case store.WaiterKey:
		err = v.putWaiter(p, k.Order, kv)
	case store.NoticeKey:
		err = v.putNotice(p, k, kv)
	case store.QueuedKey:
		p.queued.set(true, kv.ModRevision)
	case store.DispatcherKey:
		err = p.dispatcher.put(kv)
	}
	if err != nil {
		v.corrupt[key] = err
		if closes(k.Kind) {
			p.corrupt++
			v.specs++
		}
	}
}

// readable forgets that a key could not be read.
func (v *view) readable(p *poolView, k store.PoolKey, key string) {
	if _, bad := v.corrupt[key]; bad {
		delete(v.corrupt, key)
		if closes(k.Kind) {
			p.corrupt--
			v.specs++
		}
	}
}

// closes reports whether a pool grants nothing while a key of that kind can't be read.
func closes(k store.PoolKeyKind) bool { return k == store.SpecKey || k == store.SlotKey }

func (v *view) putSpec(p *poolView, kv *mvccpb.KeyValue) error {
	v.specs++
	p.specRev = kv.ModRevision
	spec, l, since, err := decodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	if err != nil {
		return err
	}
	p.spec, p.limitSince, p.layout = spec, since, l
	return nil
}

func (v *view) deleted(key string, rev int64, ended []change) []change {
	k, err := v.keys.ParsePoolKey(key)
	if err != nil {
		delete(v.corrupt, key)
		return ended
	}
	p := v.pool(k.Pool)
	v.readable(p, k, key)
	switch k.Kind {
	case store.SpecKey:
		v.specs++
		p.spec, p.specRev, p.limitSince, p.layout = Spec{}, 0, 0, layout{}
	case store.WaiterKey:
		v.removeWaiter(p, k.Order)
	case store.NoticeKey:
		if n := v.notices[key]; n != nil {
			v.ended = append(v.ended, n)
		}
		v.removeNotice(key)
	case store.QueuedKey:
		p.queued.set(false, rev)
	case store.DispatcherKey:
		p.dispatcher.set(false, rev)
	case store.SlotKey:
		ref := slotRef{k.Pool, k.Group, k.Index}
		g := p.group(k.Group)
		g.freedRev = max(g.freedRev, rev)
		if s, ok := v.slot(ref); ok && s.rev < rev {
			v.removeSlot(ref)
			ended = append(ended, change{ref: ref, claim: s.claim, rev: s.rev, at: rev})
		}
	}
	return ended
}

// prune forgets commits of ours that the watch has come up to.
func (v *view) prune() {
	maps.DeleteFunc(v.gone, func(_ slotRef, rev int64) bool { return rev <= v.rev })
	maps.DeleteFunc(v.goneWaiters, func(_ Order, rev int64) bool { return rev <= v.rev })
	maps.DeleteFunc(v.goneNotices, func(_ string, rev int64) bool { return rev <= v.rev })
}

// pool returns the view of a pool, made empty if it was not known.
func (v *view) pool(name string) *poolView {
	p := v.pools[name]
	if p == nil {
		p = &poolView{name: name, number: len(v.order)}
		v.pools[name] = p
		v.order = append(v.order, p)
	}
	return p
}

// capacities returns what [Admit] needs to know, by the pools' numbers.
func (v *view) capacities() []Capacity {
	capacities := make([]Capacity, len(v.order))
	for i, p := range v.order {
		capacities[i] = Capacity{Limit: p.spec.Limit, Used: p.used, Open: p.grants()}
	}
	return capacities
}

// known reports whether the pool exists.
func (p *poolView) known() bool { return p.specRev != 0 }

// grants reports whether claims of the pool can be granted at all.
func (p *poolView) grants() bool { return p.known() && p.corrupt == 0 && !p.spec.Paused }

// has reports whether a pool has so many free slots.
func (p *poolView) has(n int) bool {
	return p.grants() && short(p.spec.Limit, p.used, n) == 0
}

func (p *poolView) group(g int) *groupView {
	for g >= len(p.groups) {
		p.groups = append(p.groups, &groupView{slots: map[int]slot{}})
	}
	return p.groups[g]
}

// overfull reports whether a group holds more than its capacity, as after a
// lowered limit or another layout. Then groups say nothing about the pool: a
// claim must compare all of it.
func (p *poolView) overfull() bool {
	for i, g := range p.groups {
		if g.used > p.layout.capacity(i) {
			return true
		}
	}
	return false
}

// putsKnown is the revision up to which every put into the pool is known.
func (p *poolView) putsKnown(v *view) int64 { return max(v.rev, p.wholeRev) }

// groupPutsKnown is the same for one group.
func (p *poolView) groupPutsKnown(v *view, g int) int64 {
	return max(p.putsKnown(v), p.group(g).knownRev)
}
