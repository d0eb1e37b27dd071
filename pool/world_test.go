package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// world is a handful of hosts on one stand-in for etcd, driven by a seed: what
// is asked for, when watches deliver, which answers are lost, what arrives late
// and who restarts are all drawn. The hosts run the real core.
type world struct {
	rnd   *rand.Rand
	etcd  *storetest.Etcd
	keys  store.Keys
	now   time.Time
	hosts []*simHost
	pools []string
	// layouts are those of the pools.
	layouts map[string]layout
	// limits are those that each pool had, in order.
	limits map[string][]limitAt
	retain map[string]time.Duration
	space  storetest.Space
	// changed is when the specs of the pools changed last.
	changed map[string]time.Time
	fences  map[slotRef]lastFence

	// network holds transactions that were sent and not carried out yet.
	network []*message
	// sending is who is the author of what etcd commits now; nil is etcd itself
	// or an operator. Batch is what the author is about.
	sending *simHost
	batch   *batch

	// saved is a snapshot of etcd that it may be restored from.
	saved *saved

	// denying has etcd refuse some transactions.
	denying bool
	// owned are the hosts of leases, and users is set if each host is a user of etcd, which
	// lets none put keys on leases of another.
	owned map[store.LeaseID]*simHost
	users bool

	// mutate changes transactions on their way, and hide what a host learns of a key, to show
	// that the checks bite. An event that becomes nil is not delivered.
	mutate func(*pb.TxnRequest)
	hide   func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event
	// forced are the fences of claims that were released by force.
	forced map[string]store.Fence
	// redates says that what a host reads is as of when it arrives, and quiet that hosts are
	// not notified of releases by force.
	redates, quiet bool
	spoiled

	// free are claims that may lose their keys by a transaction of their host:
	// released, canceled, or ended. Claims are named by [named].
	free map[string]bool
	// bridges are claims that are held until they are taken over, and taken is
	// who may: once one has, the claim is its.
	bridges  map[string]bool
	taken    map[string]takeOverTo
	combined combinedWishes
	// model is what the slot keys hold, by key.
	model map[string]*held1
	// waiters are the waiter keys, notices the notices by key, and dispatchers the hosts
	// that are dispatchers, by pool; queued are the pools that claims wait for.
	waiters     map[string]*mvccpb.KeyValue
	notices     map[string]*notice
	dispatchers map[string]string
	dispatched  map[string]time.Time // when the dispatchers put their keys
	queued      map[string]bool
	// noticed is the revision of the last notice of a claim.
	noticed map[string]int64
	// granters are the hosts that have put the notices that are there, by key.
	granters map[string]string
	nextID   int
	// used is set once a claim of all pools was granted after all trouble.
	used  bool
	errs  []string
	trace []string
}

// held1 is one slot key of the model.
type held1 struct {
	claim string
	n     int
	rev   int64
	host  string
}

// saved is a snapshot of etcd, and of what goes with it.
type saved struct {
	etcd    *storetest.Saved
	layouts map[string]layout
}

// takeOverTo is the wish of a host to take a claim over.
type takeOverTo struct {
	to    string
	fence int64
}

// message is a transaction under way.
type message struct {
	from *simHost
	life int
	call *call
	txn  *pb.TxnRequest
}

// simHost is one host.
type simHost struct {
	w      *world
	name   string
	core   *core
	leases *simLeases
	// waiters are the leases of its waiters.
	waiters *simLeases
	feeds   *simFeeds
	journal *simJournal
	// jobs are what the holders of an earlier life had when it died, by id, until the next life has
	// found them.
	jobs map[string]holding
	life int
	cut  bool // renews nothing
	hung bool // does nothing, though its leases are renewed

	// The answer to the call under way, once there is one.
	pending  *call
	answered bool
	resp     *pb.TxnResponse
	err      error
	// wanted are the claims that the host waits for.
	wanted map[string]chan outcome
	ids    []string // that were used
	// waits has the requests of this life that wait if they have to.
	waits map[string]*wish
	// idPools are the pools that the claims of an id are of.
	idPools map[string]map[string]bool
	// counted is how many of the adopted claims are on the leases' books.
	counted int
	// has are the claims that were granted and not released.
	has map[string]*Claim
	// places are what some of its claims need besides their slots, and heldPlaces theirs.
	places     *Places
	heldPlaces map[string][]*Place
}

// simLeases grants at once, or says that it will.
type simLeases struct {
	h       *simHost
	by      map[time.Duration]store.LeaseID
	former  []store.LeaseID // that are renewed, and take no more keys
	suspect map[store.LeaseID]bool
	keys    map[store.LeaseID]int // by lease, as the core counts them
}

func newSimLeases(h *simHost) *simLeases {
	return &simLeases{h: h, by: map[time.Duration]store.LeaseID{}, suspect: map[store.LeaseID]bool{}, keys: map[store.LeaseID]int{}}
}

func (l *simLeases) Acquire(d time.Duration, keys int) (store.LeaseID, bool) {
	if l.h.w.rnd.IntN(20) == 0 {
		l.h.core.dirty = true
		return 0, false
	}
	id, ok := l.by[d]
	if !ok || l.suspect[id] {
		if ok {
			l.former = append(l.former, id)
		}
		var err error
		if id, _, err = l.h.w.etcd.Grant(d); err != nil {
			return 0, false
		}
		l.by[d] = id
		l.h.w.owned[id] = l.h
	}
	l.keys[id] += keys
	return id, true
}

func (l *simLeases) Release(id store.LeaseID, keys int) {
	if id == 0 {
		return // slots that nobody counted
	}
	l.keys[id] -= keys // of an adopted claim it may not have been counted yet
}

func (l *simLeases) Keeps(id store.LeaseID) bool {
	return slices.Contains(slices.Collect(maps.Values(l.by)), id) || slices.Contains(l.former, id)
}

func (l *simLeases) Valid(id store.LeaseID) bool { return l.Keeps(id) }
func (l *simLeases) Trouble() error              { return nil }
func (l *simLeases) Suspect(ids ...store.LeaseID) {
	for _, id := range ids {
		l.suspect[id] = true
	}
}

// sharedID begins the ids that every host may ask for.
const sharedID = "shared-"

func shared(id string) bool { return strings.HasPrefix(id, sharedID) }

// named is what the books call a claim of a host: two hosts can hold one shared id.
func named(id, host string) string {
	if shared(id) {
		return id + "@" + host
	}
	return id
}

func newWorld(seed uint64, hosts int) *world {
	w := &world{
		rnd:   rand.New(rand.NewPCG(seed, 1)),
		etcd:  storetest.New(storetest.Options{}),
		keys:  store.NewKeys("/b/"),
		now:   time.Unix(1_000_000, 0),
		pools: []string{"a", "b"},
		free:  map[string]bool{}, forced: map[string]store.Fence{},
		owned: map[store.LeaseID]*simHost{},

		layouts: map[string]layout{}, limits: map[string][]limitAt{}, retain: map[string]time.Duration{}, changed: map[string]time.Time{}, fences: map[slotRef]lastFence{},

		bridges: map[string]bool{}, taken: map[string]takeOverTo{},
		model: map[string]*held1{}, waiters: map[string]*mvccpb.KeyValue{}, notices: map[string]*notice{},
		dispatchers: map[string]string{}, dispatched: map[string]time.Time{}, queued: map[string]bool{}, noticed: map[string]int64{}, granters: map[string]string{}, combined: combinedWishes{claim: map[string]string{}, at: map[string]int64{}},
	}
	w.users = w.rnd.IntN(3) == 0
	w.etcd.OnCommit(w.check)
	for _, p := range w.pools {
		w.retain[p] = []time.Duration{0, 2 * time.Second, 8 * time.Second}[w.rnd.IntN(3)]
		w.setPool(p, 1+w.rnd.IntN(9), false)
	}
	for i := range hosts {
		h := &simHost{w: w, name: fmt.Sprintf("h%d", i), idPools: map[string]map[string]bool{}}
		w.hosts = append(w.hosts, h)
		h.start(nil)
	}
	return w
}

func (w *world) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%d ", w.etcd.Revision())+fmt.Sprintf(format, args...))
}

func (w *world) failf(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

// start begins a life of a host.
func (h *simHost) start(adopt []store.LeaseID) {
	h.life++
	h.leases = newSimLeases(h)
	h.waiters = newSimLeases(h)
	if h.jobs = nil; adopt == nil || h.w.forgetful {
		h.journal = &simJournal{deaf: h.w.deaf}
	}
	if adopt != nil {
		h.jobs = h.holdings()
		maps.DeleteFunc(h.jobs, func(_ string, has holding) bool { return !slices.Contains(adopt, has.lease) })
	}
	h.core = newCore(Config{Keys: h.w.keys, Host: h.name, Instance: "i", Leases: h.leases, WaiterLeases: h.waiters, Journal: h.journal, Logger: silent})
	if adopt != nil {
		h.core.adopt = map[store.LeaseID]bool{}
		for _, id := range adopt {
			h.core.adopt[id] = true
		}
	}
	h.pending, h.answered, h.counted = nil, false, 0
	h.wanted, h.has, h.waits = map[string]chan outcome{}, map[string]*Claim{}, map[string]*wish{}
	h.places, h.heldPlaces = NewPlaces(2), map[string][]*Place{}
	h.cut = false
	history := uint64(0)
	if h.feeds != nil {
		history = h.feeds.history
	}
	h.feeds = newSimFeeds(h.core, h.w.etcd)
	h.feeds.sees, h.feeds.history, h.feeds.redates = h.sees, history, h.w.redates
	h.core.present(history)
	h.resync()
}

// loseWaiterLeases has the host lose the leases of its waiters, though they live on.
func (h *simHost) loseWaiterLeases() {
	for d, id := range h.waiters.by {
		delete(h.waiters.by, d)
		h.core.leaseLost(id, store.ErrLeaseNotFound, h.w.now)
	}
}

// resync has the watches of the host read everything again.
func (h *simHost) resync() { h.feeds.resync(nil, h.w.now) }

// restore restores etcd from a snapshot that was taken before, if one was, and takes one
// otherwise. What was under way is lost, and the hosts read everything before they go on:
// the guarantees hold for no host that writes before it knows.
func (w *world) restore() {
	s := w.saved
	if s == nil {
		w.saved = &saved{w.etcd.Save(), maps.Clone(w.layouts)}
		return
	}
	w.saved, w.network = nil, nil
	clear(w.forced) // their fences may be given out again
	for _, h := range w.hosts {
		h.answer(w.rnd.IntN(2) == 0)
	}
	w.collect()
	bump, reason := int64(1000), store.ErrCompacted
	if w.rnd.IntN(2) == 0 { // without --bump-revision
		bump, reason = s.etcd.Revision()-w.etcd.Revision(), store.ErrRestored
	}
	w.etcd.Restore(s.etcd, bump)
	w.now = w.now.Add(store.StaleAfter) // it takes a while
	w.logf("etcd is restored from revision %d", s.etcd.Revision())
	w.layouts = s.layouts
	for _, name := range w.pools {
		w.limits[name] = slices.DeleteFunc(w.limits[name], func(l limitAt) bool { return l.rev > s.etcd.Revision() })
	}
	for _, h := range w.hosts {
		for _, wish := range h.waits {
			wish.since = 0
		}
	}
	for _, p := range w.pools {
		w.changed[p] = w.now
	}
	maps.DeleteFunc(w.combined.at, func(_ string, at int64) bool { return at > s.etcd.Revision() })
	w.reload()
	for _, h := range w.hosts {
		h.feeds.resync(reason, w.now)
		for h.deliver(100) {
		}
	}
	w.collect()
	kept := map[string]int64{} // revisions, by claim
	for _, m := range w.model {
		kept[m.claim] = m.rev
	}
	for _, h := range w.hosts {
		for id := range h.has {
			if e := h.core.entries[id]; e != nil && e.state == held && !e.rewriting && kept[named(e.key().id, h.name)] != e.rev {
				w.failf("%s did not learn that %s is gone with the restore", h.name, id)
			}
		}
	}
	for _, m := range w.model {
		id, _, _ := strings.Cut(m.claim, "@")
		h := w.hosts[slices.IndexFunc(w.hosts, func(h *simHost) bool { return h.name == m.host })]
		if e := h.core.entries[id]; e == nil || e.state != held || e.rev != m.rev {
			w.free[m.claim] = true // it is over, and came back
		}
	}
	clear(w.fences) // they are given out again
}

// reload takes the keys as they are after a restore.
func (w *world) reload() {
	clear(w.model)
	clear(w.waiters)
	clear(w.notices)
	clear(w.dispatchers)
	clear(w.queued)
	clear(w.granters)
	for range 2 { // the main key of a claim may come after others
		for _, kv := range w.under(w.keys.Pools()) {
			key := string(kv.Key)
			switch k, err := w.keys.ParsePoolKey(key); {
			case err != nil || k.Kind == store.SpecKey || k.Kind == store.RecallKey:
			case k.Kind == store.WaiterKey:
				w.waiters[key] = kv
			case k.Kind == store.QueuedKey:
				w.queued[k.Pool] = true
			case k.Kind == store.DispatcherKey:
				by, _ := decodeDispatcher(key, kv.Value)
				w.dispatchers[k.Pool], w.dispatched[k.Pool] = by.host, time.Time{}
			case k.Kind == store.NoticeKey:
				n, _ := decodeNotice(key, kv.Value)
				n.rev = kv.ModRevision
				w.notices[key], w.noticed[named(k.Claim, k.Host)] = n, n.rev
			default:
				h, _, err := w.owner(key, kv)
				if err != nil {
					w.failf("restored: %v", err)
					continue
				}
				w.model[key] = h
			}
		}
	}
}

func (w *world) under(prefix string) []*mvccpb.KeyValue {
	resp, err := w.etcd.Range(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix)})
	if err != nil {
		w.failf("range: %v", err)
		return nil
	}
	return resp.Kvs
}

// collect takes the outcomes of what was asked for.
func (h *simHost) collect() {
	for _, id := range slices.Sorted(maps.Keys(h.wanted)) {
		select {
		case o := <-h.wanted[id]:
			delete(h.wanted, id)
			if wish := h.waits[id]; wish != nil && problem.CodeOf(o.err) == problem.ExceedsLimit && h.w.waitedBefore(wish) {
				h.w.failf("%s refuses %s, which waits: %v", h.name, id, o.err)
			}
			if o.err != nil && shared(id) {
				h.w.free[named(id, h.name)] = true // it may have been granted a moment too late
			}
			if o.claim != nil {
				h.has[id] = o.claim
				if shared(id) {
					delete(h.w.free, named(id, h.name))
				}
				if h.w.bridges[id] && o.claim.Context().Err() == nil {
					delete(h.w.free, id) // whatever its first host thinks
				}
				h.w.checkFence(h, o.claim)
			} else {
				h.returnPlaces(id)
			}
		default:
		}
	}
	for id, c := range h.has {
		if c.Context().Err() != nil {
			name := named(id, h.name)
			h.w.free[name] = h.w.free[name] || !h.w.bridges[id] || h.w.taken[id].to == h.name
			delete(h.has, id)
			h.returnPlaces(id)
		} else if places := h.heldPlaces[id]; len(places) > 0 && !slices.ContainsFunc(places, func(p *Place) bool { return p.taken || p.lent }) {
			h.w.failf("%s has %s without a place", h.name, id)
		}
	}
}

// wish is what a request asks for, and the revision at which its waiter was first written in the
// present history of etcd, 0 if it was not.
type wish struct {
	slots map[string]int
	since int64
}

// limitAt is a limit of a pool, since a revision.
type limitAt struct {
	rev   int64
	limit int
}

// waitedBefore reports whether a claim was in the wait queue before any limit was put that is too
// low for it.
func (w *world) waitedBefore(of *wish) bool {
	for name, n := range of.slots {
		if slices.ContainsFunc(w.limits[name], func(l limitAt) bool { return exceedsLimit(l.limit, n) && l.rev <= of.since }) {
			return false
		}
	}
	return of.since != 0
}

// returnPlaces gives back the place of what is not held any more, or never was.
func (h *simHost) returnPlaces(id string) {
	for _, p := range h.heldPlaces[id] {
		p.Give()
	}
	delete(h.heldPlaces, id)
	h.core.dirty = true
}

func (w *world) setPool(name string, limit int, paused bool) {
	key := w.keys.Spec(name)
	spec := DefaultSpec()
	spec.Limit, spec.Paused, spec.LeaseDuration = limit, paused, 30*time.Second
	spec.ReserveAfter = []time.Duration{0, 5 * time.Second, NeverReserve}[w.rnd.IntN(3)]
	spec.Retain, w.changed[name] = w.retain[name], w.now
	if w.layouts[name].limit != limit {
		w.layouts[name] = w.layouts[name].change(limit)
	}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, encodeSpec(spec, w.layouts[name], 0), 0)}})
	w.limits[name] = append(w.limits[name], limitAt{w.etcd.Revision(), limit})
}

// must has an operator do something, which etcd always takes.
func (w *world) must(t *pb.TxnRequest) {
	w.etcd.SetSpace(storetest.SpaceFree)
	if _, err := w.etcd.Txn(t); err != nil {
		w.failf("operator: %v", err)
	}
	w.etcd.SetSpace(w.space)
}

// owner finds whose slot a value is.
func (w *world) owner(key string, kv *mvccpb.KeyValue) (*held1, *record, error) {
	v, err := decodeSlot(key, kv.Value)
	if err != nil {
		return nil, nil, err
	}
	h := &held1{n: v.N, rev: kv.ModRevision}
	h.host, _, _ = strings.Cut(v.Claim, "-")
	if to := w.taken[v.Claim]; to.fence > 0 && h.rev > to.fence {
		h.host = to.to
	}
	if v.Record == nil {
		if shared(v.Claim) {
			main, _ := parseSlotRef(v.Main)
			if m := w.model[w.keys.Slot(main.pool, main.group, main.index)]; m != nil {
				h.host = m.host // the main key comes first
			}
		}
		h.claim = named(v.Claim, h.host)
		return h, nil, nil
	}
	rec, err := decodeRecord(key, v.Claim, v.Record)
	if err == nil && shared(v.Claim) {
		h.host = rec.Holder.Host
	}
	h.claim = named(v.Claim, h.host)
	if err == nil && rec.Holder.Host != h.host {
		err = fmt.Errorf("claim %s of %s is written by %s", v.Claim, h.host, rec.Holder.Host)
	}
	return h, rec, err
}
