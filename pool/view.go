package pool

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// view is what an instance knows of pools: read at one revision, then watched, and moved
// ahead of the watch by the instance's own commits. What it knows of each pool, and up to
// which revision, differs: see [scope].
//
// Two kinds of knowledge are kept apart. Everything that happened in a pool up to its rev is
// in the view. Beyond that, a group (or a whole pool) is known to have got no put but our own
// up to some later revision, because a commit of ours compared it: deletes may be missing
// there, and those only free slots.
type view struct {
	keys store.Keys
	// self is the instance whose notices can be known without the rest of a pool; none in the
	// view of a [Reader].
	self    instanceName
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
	// corrupt are keys that can't be read, with the reason.
	corrupt map[string]error
	// specs counts the changes of specs, and of what can be read, from 1 on.
	specs int
	// sent are the slots that the batch in flight puts: what comes back as it
	// was sent need not be decoded.
	sent map[slotRef]sentSlot
}

// poolView is one pool. It stays once it was met.
type poolView struct {
	name   string
	number int // index of its [Capacity]
	// whole: slots and waiters are known, up to revision rev. noticesRev is the revision up to
	// which the notices of this instance are, which may be followed alone.
	whole           bool
	rev, noticesRev int64
	// at is when the watch of the whole pool last delivered something, or when it was read, and
	// markedAt is the same for the spec and the marks.
	at, markedAt time.Time
	// stale: what is known is too old to grant from. unseen: so are the spec and the marks.
	stale, unseen bool

	spec Spec
	// specRev is the revision of the spec, 0 where there is none, and specAt the revision up
	// to which that is known.
	specRev, specAt int64
	limitSince      int64
	layout          layout
	// wholeRev is the revision up to which a commit of ours compared the whole
	// pool, and wrote that of the last one that put a slot or a notice into it.
	wholeRev, wrote int64
	used            int
	leases          map[store.LeaseID]int // slots by lease
	groups          []*groupView          // by group; grown as they are met
	waiting         int                   // waiters
	queued          mark
	recall          recall
	dispatcher      dispatcher
	corrupt         int // spec and slot keys that can't be read: it grants nothing
	// gone are slots that a commit of ours deleted ahead of what is known, with the
	// revision: older events of the same key, or a read, must not bring them back. goneWaiters
	// and goneNotices are the same for waiters and notices.
	gone        map[slotRef]int64
	goneWaiters map[Order]int64
	goneNotices map[string]int64
}

// mark is a key of a pool of which there is at most one.
type mark struct {
	rev int64 // of its last put; 0 if it does not exist
	at  int64 // the revision up to which that is known
}

// know takes what a key was at a revision, and reports whether that was news.
func (m *mark) know(rev, at int64) bool {
	if at <= m.at {
		return false
	}
	m.rev, m.at = rev, at
	return true
}

func newView(keys store.Keys) *view {
	return &view{
		keys: keys, pools: map[string]*poolView{}, specs: 1, byWork: map[work][]*waiter{},
		notices: map[string]*notice{}, instances: map[instanceName]*otherInstance{},
		claims: map[string]*claimView{}, corrupt: map[string]error{},
	}
}

// unload forgets the slots and waiters of a pool, and its notices but for those of this
// instance, which are followed alone from now on.
func (v *view) unload(p *poolView) {
	for i, g := range p.groups {
		for index := range g.slots {
			v.removeSlot(slotRef{p.name, i, index})
		}
	}
	p.groups = nil
	if p.waiting > 0 {
		var in []Order
		for _, w := range v.waiters {
			if slices.Contains(w.in, p) {
				in = append(in, w.order)
			}
		}
		for _, o := range in {
			v.removeWaiter(p, o)
		}
	}
	for key, n := range v.notices {
		if n.pool == p && (v.self == instanceName{} || n.by.name != v.self) {
			v.removeNotice(key)
		}
	}
	prefix, spec := v.keys.Pool(p.name), v.keys.Spec(p.name)
	for key := range v.corrupt {
		if strings.HasPrefix(key, prefix) && key != spec {
			delete(v.corrupt, key)
			v.specs++
		}
	}
	p.corrupt, p.wholeRev, p.whole, p.stale = 0, 0, false, true
	if v.corrupt[spec] != nil {
		p.corrupt = 1
	}
}

// void forgets everything about a pool: what is known is of a history that is no more.
func (v *view) void(p *poolView) {
	v.unload(p)
	for key, n := range v.notices {
		if n.pool == p {
			v.removeNotice(key)
		}
	}
	delete(v.corrupt, v.keys.Spec(p.name))
	*p = poolView{name: p.name, number: p.number, stale: true, unseen: true}
	v.specs++
}

// load replaces everything by a snapshot of all pools.
func (v *view) load(s store.Snapshot) {
	for _, p := range v.order {
		v.void(p)
	}
	clear(v.corrupt)
	v.acted, v.ended = nil, nil
	for _, kv := range s.KVs {
		v.put(kv, s.Revision)
	}
	for _, p := range v.order {
		p.stale, p.unseen = false, false
		v.complete(p, s.Revision)
	}
}

// loadable reports whether a snapshot of a revision shows all that is known of a pool. What a
// batch in flight has compared was known then, so its answer counts on top of the snapshot.
func (p *poolView) loadable(rev int64) bool { return rev >= max(p.rev, p.wrote) }

// loadPool replaces what is known of a pool by a snapshot of it, which is loadable. What is
// known of this instance's notices is kept if it is newer.
func (v *view) loadPool(p *poolView, s store.Snapshot) {
	old := map[string]*notice{}
	for key, n := range v.notices {
		if n.pool == p {
			old[key] = n
		}
	}
	v.unload(p)
	p.shows(s.Revision) // what it brings back was brought back by a restore of etcd
	if p.noticesRev <= s.Revision {
		for key := range old {
			v.removeNotice(key)
		}
		p.noticesRev = 0
	}
	for _, kv := range s.KVs {
		v.put(kv, s.Revision)
	}
	p.rev = s.Revision
	v.complete(p, s.Revision)
	v.keepNotices(old)
}

// loadNotices replaces the notices of this instance in a pool by a snapshot of them.
func (v *view) loadNotices(p *poolView, s store.Snapshot) {
	if s.Revision < p.noticesRev {
		return
	}
	old := map[string]*notice{}
	for key, n := range v.notices {
		if n.pool == p && n.by.name == v.self {
			old[key] = n
			v.removeNotice(key)
		}
	}
	p.noticesRev = 0
	maps.DeleteFunc(p.goneNotices, func(_ string, rev int64) bool { return rev <= s.Revision })
	for _, kv := range s.KVs {
		v.put(kv, s.Revision)
	}
	p.noticesRev = s.Revision
	v.keepNotices(old)
}

// complete takes that all of a pool was read at a revision: what was not there does not exist.
func (v *view) complete(p *poolView, rev int64) {
	p.queued.know(0, rev)
	p.recall.know(0, rev)
	p.dispatcher.know(0, rev)
	if p.specAt < rev {
		v.noSpec(p, rev)
	}
	p.whole = true
	p.reached(rev)
}

// noneWaits records that no claim waits for a pool any more, and that it has no dispatcher.
func (p *poolView) noneWaits(rev int64) {
	p.dispatcher.know(0, rev)
	p.queued.know(0, rev)
	p.recall.know(0, rev)
}

// reached takes that all that has happened in a pool up to a revision is known.
func (p *poolView) reached(rev int64) {
	p.rev, p.noticesRev, p.specAt = max(p.rev, rev), max(p.noticesRev, rev), max(p.specAt, rev)
	for _, m := range []*mark{&p.queued, &p.recall.mark, &p.dispatcher.mark} {
		m.at = max(m.at, rev)
	}
}

// apply takes events that a watch delivered, and returns the slots that were
// taken from their claims: deleted, or overwritten by another claim.
func (v *view) apply(events []*mvccpb.Event) []change {
	var ended []change
	for _, e := range events {
		key := string(e.Kv.Key)
		k, err := v.keys.ParsePoolKey(key)
		if err != nil {
			if delete(v.corrupt, key); e.Type == mvccpb.Event_PUT {
				v.corrupt[key] = err
			}
			continue
		}
		p := v.pool(k.Pool)
		known := p.rev
		if v.ours(k) {
			known = p.noticesRev
		}
		if e.Kv.ModRevision <= known {
			continue // a snapshot that was read since has it
		}
		if e.Type == mvccpb.Event_DELETE {
			ended = v.deleted(p, k, key, e.Kv.ModRevision, ended)
		} else {
			ended = v.noteOverwrite(k, e.Kv, ended)
			v.take(p, k, e.Kv, e.Kv.ModRevision)
		}
	}
	return ended
}

// ours reports whether a key is a notice of this instance.
func (v *view) ours(k store.PoolKey) bool {
	return k.Kind == store.NoticeKey && k.Host == v.self.host && k.Instance == v.self.instance
}

// put takes the state of a key at a revision.
func (v *view) put(kv *mvccpb.KeyValue, at int64) {
	key := string(kv.Key)
	k, err := v.keys.ParsePoolKey(key)
	if err != nil {
		v.corrupt[key] = err
		return
	}
	v.take(v.pool(k.Pool), k, kv, at)
}

func (v *view) take(p *poolView, k store.PoolKey, kv *mvccpb.KeyValue, at int64) {
	key := string(kv.Key)
	if k.Kind == store.SpecKey {
		if at < p.specAt || kv.ModRevision == p.specRev {
			p.specAt = max(p.specAt, at)
			return
		}
		p.specAt = at
	}
	v.readable(p, k, key)
	var err error
	switch k.Kind {
	case store.SpecKey:
		err = v.putSpec(p, kv)
	case store.SlotKey:
		err = v.putSlotValue(p, slotRef{k.Pool, k.Group, k.Index}, kv)
	case store.WaiterKey:
		err = v.putWaiter(p, k.Order, kv)
	case store.NoticeKey:
		if !v.ours(k) || kv.ModRevision > p.noticesRev {
			err = v.putNotice(p, k, kv)
		}
	case store.QueuedKey:
		p.queued.know(kv.ModRevision, at)
	case store.RecallKey:
		err = p.recall.put(kv, at)
	case store.DispatcherKey:
		err = p.dispatcher.put(kv, at)
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

// noSpec takes that a pool has no spec at a revision.
func (v *view) noSpec(p *poolView, at int64) {
	p.specAt = at
	v.readable(p, store.PoolKey{Kind: store.SpecKey}, v.keys.Spec(p.name))
	if p.specRev != 0 {
		v.specs++
	}
	p.spec, p.specRev, p.limitSince, p.layout = Spec{}, 0, 0, layout{}
}

func (v *view) deleted(p *poolView, k store.PoolKey, key string, rev int64, ended []change) []change {
	if k.Kind != store.SpecKey { // a later one may be known
		v.readable(p, k, key)
	}
	switch k.Kind {
	case store.SpecKey:
		if rev >= p.specAt {
			v.noSpec(p, rev)
		}
	case store.WaiterKey:
		if o, err := ParseOrder(k.Order); err == nil {
			v.removeWaiter(p, o)
		}
	case store.NoticeKey:
		if n := v.notices[key]; n != nil {
			v.ended = append(v.ended, n)
		}
		v.removeNotice(key)
	case store.QueuedKey:
		p.queued.know(0, rev)
	case store.RecallKey:
		p.recall.know(0, rev)
	case store.DispatcherKey:
		p.dispatcher.know(0, rev)
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

// prune forgets commits of ours that the watch has come up to, and those of pools of which
// nothing is under way that could be older.
func (v *view) prune(underWay func(*poolView) bool) {
	for _, p := range v.order {
		if p.whole {
			p.shows(p.rev)
			continue
		}
		maps.DeleteFunc(p.goneNotices, func(_ string, rev int64) bool { return rev <= p.noticesRev })
		if !underWay(p) {
			p.gone, p.goneWaiters = nil, nil
		}
	}
}

// shows forgets the commits of ours that are known of a pool with all else up to a revision.
func (p *poolView) shows(at int64) {
	maps.DeleteFunc(p.gone, func(_ slotRef, rev int64) bool { return rev <= at })
	maps.DeleteFunc(p.goneWaiters, func(_ Order, rev int64) bool { return rev <= at })
	maps.DeleteFunc(p.goneNotices, func(_ string, rev int64) bool { return rev <= at })
}

// pool returns the view of a pool, made empty if it was not known.
func (v *view) pool(name string) *poolView {
	p := v.pools[name]
	if p == nil {
		unread := v.self != instanceName{} // a reader has read what there is
		p = &poolView{name: name, number: len(v.order), stale: unread, unseen: unread}
		v.pools[name] = p
		v.order = append(v.order, p)
	}
	return p
}

// capacities returns what [admit.Admit] needs to know, by the pools' numbers.
func (v *view) capacities() []admit.Capacity {
	capacities := make([]admit.Capacity, len(v.order))
	for i, p := range v.order {
		capacities[i] = admit.Capacity{Limit: p.spec.Limit, Used: p.used, Open: p.grants() && !p.stale}
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
func (p *poolView) putsKnown() int64 { return max(p.rev, p.wholeRev) }

// groupPutsKnown is the same for one group.
func (p *poolView) groupPutsKnown(g int) int64 {
	return max(p.putsKnown(), p.group(g).knownRev)
}
