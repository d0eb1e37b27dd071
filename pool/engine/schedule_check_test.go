package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// records is what has happened.
type records struct {
	requests map[string]*pool.Request
	granted  map[string]bool
	took     map[string]int64         // the revision in which a claim has taken its slots last
	stamps   map[string]wire.Stamp    // of demands that their owners know to be in etcd
	marked   time.Duration            // when the role, or a sign of life, was put last
	offered  map[string]time.Duration // when offers keys were put
	fences   map[halfOf]int
	roles    map[int64]*roleHeld             // by the revision of their keys
	putIn    map[int64]map[string]wire.Stamp // stamps of demands, by the revision that has put them
	seen     map[string]int
}

func newRecords() *records {
	return &records{
		requests: map[string]*pool.Request{}, granted: map[string]bool{}, took: map[string]int64{},
		offered: map[string]time.Duration{}, fences: map[halfOf]int{}, roles: map[int64]*roleHeld{}, stamps: map[string]wire.Stamp{}, putIn: map[int64]map[string]wire.Stamp{}, seen: map[string]int{},
	}
}

// known records that the owner of demands that were put in a revision knows that.
func (w *world) known(rev int64) {
	for id, stamp := range w.putIn[rev] {
		if was, ok := w.stamps[id]; !ok || stamp.Compare(was) < 0 {
			w.stamps[id] = stamp
		}
	}
}

// grant records that a claim was granted.
func (w *world) grant(n *node, a *wanted) {
	id := a.Request().ID
	w.seen["granted"]++
	w.check(!w.granted[id], "claim %s is granted twice", id)
	w.check(a.Fence().Revision() == w.took[id], "claim %s has fencing token %v, and its slots since revision %d", id, a.Fence(), w.took[id])
	w.granted[id], a.granted, a.at = true, true, w.now
	if n.links.ending {
		n.giveUp(a)
	}
}

// committed checks what etcd has after a revision.
func (w *world) committed(rev int64, events []*mvccpb.Event, req *pb.TxnRequest) {
	took := map[string]bool{}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if !strings.Contains(key, "/guards/") && key != w.keys.Mark() {
			w.changed = w.now
		}
		switch ref, err := w.keys.Ref(key); {
		case err == nil && ev.Type == mvccpb.PUT:
			took[ref.Pool] = true
			w.checkClaim(ref, ev, events)
		case strings.HasPrefix(key, w.keys.OffersAll()):
			w.checkOffersKey(ev)
		case key == w.keys.Role():
			w.checkRole(ev)
			w.marked = w.now
		case key == w.keys.Mark() && ev.Type == mvccpb.PUT:
			w.marked = w.now
		case strings.HasPrefix(key, w.keys.Pending("")) && ev.Type == mvccpb.DELETE:
			w.checkEnded(strings.TrimPrefix(key, w.keys.Pending("")))
		case strings.Contains(key, "/demands/") && ev.Type == mvccpb.PUT:
			w.checkDemands(rev, ev)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(took)) {
		w.checkPool(p, rev)
	}
	if w.order != nil {
		w.order.check(w, events)
	}
	for _, n := range w.nodes {
		for _, s := range n.streams {
			s.changed(events)
		}
	}
}

// checkDemands checks that no demand is put on no lease, or with a later stamp than its owner knows.
func (w *world) checkDemands(rev int64, ev *mvccpb.Event) {
	w.check(ev.Kv.Lease != 0, "%s is on no lease", ev.Kv.Key)
	_, all, err := w.keys.DecodeDemands(string(ev.Kv.Key), ev.Kv.Value)
	w.check(err == nil, "%v", err)
	for _, d := range all.List {
		stamp := d.Stamped(ev.Kv.CreateRevision)
		if was, ok := w.stamps[d.Claim]; ok {
			w.check(stamp.Compare(was) <= 0, "claim %s has waited since %v, and now since %v", d.Claim, was, stamp)
		}
		if w.putIn[rev] == nil {
			w.putIn[rev] = map[string]wire.Stamp{}
		}
		w.putIn[rev][d.Claim] = stamp
		w.seen["demands"]++
	}
}

// roleHeld is a role that an instance has held in one of its lives.
type roleHeld struct {
	by   *node
	open map[wire.DemandRef][]wire.Offer // in memory, that may be committed
}

// close ends the offer to a demand that was made first.
func (r *roleHeld) close(d wire.DemandRef) {
	if all := r.open[d]; len(all) > 0 {
		r.open[d] = all[1:]
	}
}

// held returns the role that is in etcd, nil if none is.
func (w *world) held() *roleHeld {
	if kv := w.get(w.keys.Role()); kv != nil {
		return w.roles[kv.ModRevision]
	}
	return nil
}

// roleOf reports whether an instance holds the role. It may not know any longer that it does.
func (w *world) roleOf(n *node) bool {
	r := w.held()
	return r != nil && r.by == n
}

// checkOffersKey checks that only who has the role offers, and that owners that are well use what they are offered soon.
func (w *world) checkOffersKey(ev *mvccpb.Event) {
	key := string(ev.Kv.Key)
	if ev.Type == mvccpb.PUT {
		w.seen["offers"]++
		w.check(w.part == ofDispatcher && w.roleOf(w.sender), "%s is put by an instance that has not the role", key)
		w.offered[key] = w.now
		if !w.calm && w.IntN(12) == 0 {
			w.disturbOffer(key)
		}
		return
	}
	name, err := w.keys.OfferKey(key)
	if err != nil || name.Name < 0 || w.sender == nil || w.part != ofDispatcher || !w.calm || w.offered[key] < w.calmAt+wellAfter {
		return
	}
	for _, n := range w.nodes {
		if well := n.offers != nil && !n.offers.silent; well && n.name == name.Host {
			w.check(w.now-w.offered[key] < firstPoll, "%s was left alone for %v", key, w.now-w.offered[key])
		}
	}
}

// disturbOffer has the role change while an offer is on its way.
func (w *world) disturbOffer(key string) {
	name, _ := w.keys.OfferKey(key)
	for _, n := range w.nodes {
		if n.name == name.Host && n.offers != nil {
			n.offers.lag = time.Duration(w.IntN(300)) * ms
		}
	}
	w.after(time.Duration(w.IntN(5))*ms, w.replace)
}

// lastOffer has the role change while an offer is on its way to the only claim that waits for some pools, if there is one soon.
func (w *world) lastOffer() {
	for range 100 {
		for kv := range w.etcd.All(w.keys.OffersAll()) {
			list, _ := wire.DecodeOffers(string(kv.Key), kv.Value)
			if slices.ContainsFunc(list, w.isAlone) {
				w.disturbOffer(string(kv.Key))
				w.run(200 * ms)
				return
			}
		}
		if len(w.nodes) > 0 {
			w.nodes[w.IntN(len(w.nodes))].release()
		}
		w.run(ms)
	}
}

// isAlone reports whether no pool of an offer is pending.
func (w *world) isAlone(o wire.Offer) bool {
	for p := range o.Take {
		if w.get(w.keys.Pending(p)) != nil {
			return false
		}
	}
	return true
}

// checkRole checks that an offer ends with the role under which it was made, and that nobody takes the role from one that lives
// but for a reason.
func (w *world) checkRole(ev *mvccpb.Event) {
	if w.sender == nil || w.part != ofSuccession {
		return // a lease has taken it
	}
	for kv := range w.etcd.All(w.keys.OffersAll()) {
		w.check(false, "%s is left of the last dispatcher", kv.Key)
	}
	w.check(w.get(w.keys.Mark()) == nil, "the mark of the last dispatcher is left")
	if ev.Type != mvccpb.PUT || ev.PrevKv == nil {
		return
	}
	role, err := wire.DecodeRole(string(ev.Kv.Key), ev.Kv.Value)
	w.check(err == nil, "%v", err)
	was, err := wire.DecodeRole(string(ev.Kv.Key), ev.PrevKv.Value)
	w.check(err == nil, "%v", err)
	silent := slices.ContainsFunc(role.TakeOvers, func(t time.Time) bool { return !slices.ContainsFunc(was.TakeOvers, t.Equal) })
	ranks := []wire.Kind{wire.Command, wire.Service, wire.Server, wire.Coordinator}
	switch {
	case was.Ends, was.Host == role.Host, role.Kind == wire.Coordinator: // who leads may take it from all others
	case silent:
		w.seen["silent"]++
		w.check(w.now-w.marked >= 2*time.Second, "%s takes the role for silence, %v after a sign of life", role.Host, w.now-w.marked)
		well := w.calm && w.now > w.calmAt+wellAfter && slices.ContainsFunc(w.nodes, func(n *node) bool { return n.seat.role == ev.PrevKv.ModRevision })
		w.check(!well, "%s takes the role for silence although all is well", role.Host)
	default:
		w.check(slices.Index(ranks, role.Kind) > slices.Index(ranks, was.Kind), "%s takes the role as a %s from a %s", role.Host, role.Kind, was.Kind)
	}
}

// checkEnded checks that a pool stops being pending only if the dispatcher knows all claims that keep it so.
func (w *world) checkEnded(name string) {
	if w.sender == nil || w.part != ofDispatcher {
		return
	}
	w.seen["ended"]++
	for _, x := range w.waiting() {
		if slices.Contains(x.Pending, name) {
			w.check(x.created <= w.sender.seat.sent, "%s stops being pending although claim %s waits since revision %d, and %d was shown", name, x.Claim, x.created, w.sender.seat.sent)
		}
	}
}

// checkClaim checks that a claim has all of its slots, and might take them.
func (w *world) checkClaim(ref wire.Ref, ev *mvccpb.Event, events []*mvccpb.Event) {
	kv := ev.Kv
	_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
	if err != nil {
		w.check(false, "%v", err)
		return
	}
	if s.Record == nil || s.Claim == fragment {
		return
	}
	r, err := s.Decode(string(kv.Key))
	w.check(err == nil && kv.Lease != 0, "claim %s, on lease %d: %v", s.Claim, kv.Lease, err)
	if err != nil {
		return
	}
	refs, err := r.Refs(ref)
	w.check(err == nil, "%v", err)
	got, held, over := map[string]int{}, map[string]slots.Held{}, true
	for _, of := range refs {
		key := of.Key(w.keys)
		i := slices.IndexFunc(events, func(o *mvccpb.Event) bool { return string(o.Kv.Key) == key && o.Type == mvccpb.PUT })
		if i < 0 || events[i].Kv.Lease != kv.Lease {
			continue
		}
		over = over && events[i].PrevKv != nil
		_, o, err := w.keys.DecodeSlot(key, events[i].Kv.Value, events[i].Kv.CreateRevision)
		if err != nil || o.Claim != s.Claim {
			continue
		}
		got[of.Pool] += max(1, o.Block.Count)
		h := held[of.Pool]
		if of.IsBlock() {
			h.Blocks = append(h.Blocks, o.Block)
		} else {
			h.Numbers = append(h.Numbers, of.Number)
		}
		held[of.Pool] = h
	}
	w.check(maps.Equal(got, r.Pools), "claim %s holds %v, and has %v in revision %d", s.Claim, got, r.Pools, kv.ModRevision)
	w.took[s.Claim] = kv.ModRevision
	for _, h := range held {
		if len(h.Blocks) > 0 {
			w.seen["blocks"]++
		}
		if h.Compares() > slots.MaxCompares {
			w.seen["of a whole pool"]++
		}
	}
	w.check(w.sender != nil && w.part == ofCommits && w.sender.name == r.Holder.Host, "claim %s is not put by its owner", s.Claim)
	if s.Demand.Created == 0 {
		w.checkDirect(s.Claim, r)
	} else {
		w.checkOffered(s, r, held, over, events)
	}
	if chosen := w.requests[s.Claim]; chosen != nil && chosen.Chosen {
		id := w.get(w.keys.ID(s.Claim))
		w.check(id != nil && id.Lease == kv.Lease, "claim %s has not its id", s.Claim)
	}
}

// checkDirect checks that a claim that has not waited passes none that waits. One that does not wait may, if it has its turn.
func (w *world) checkDirect(id string, r *wire.Record) {
	w.seen["direct"]++
	pending := ""
	for p := range r.Pools {
		if w.get(w.keys.Pending(p)) != nil {
			pending = p
		}
	}
	if pending == "" {
		return
	}
	if req := w.requests[id]; req != nil && req.Wait == 0 {
		w.seen["passing"]++
		return
	}
	w.check(false, "claim %s takes slots of %s while others wait for it", id, pending)
}

// checkOffered checks that a claim that has waited takes what it was offered: by an offers key that is there, or goes in this
// revision, or in memory under the present role, or keys of another claim under an advance offer.
func (w *world) checkOffered(s wire.Slot, r *wire.Record, held map[string]slots.Held, over bool, events []*mvccpb.Event) {
	own := func(key string) bool { return strings.HasPrefix(key, w.keys.Offers(r.Holder.Host, "i")) }
	var open []*mvccpb.KeyValue
	for kv := range w.etcd.All(w.keys.Offers(r.Holder.Host, "i")) {
		open = append(open, kv)
	}
	for _, ev := range events {
		if ev.Type == mvccpb.DELETE && ev.PrevKv != nil && own(string(ev.Kv.Key)) {
			open = append(open, ev.PrevKv)
		}
	}
	advance := map[string]bool{}
	for _, kv := range open {
		name, err := w.keys.OfferKey(string(kv.Key))
		if err != nil || name.Name < 0 {
			advance[name.Advance] = err == nil
			continue
		}
		all, _ := wire.DecodeOffers(string(kv.Key), kv.Value)
		for _, o := range all {
			if o.Demand == s.Demand && takes(o, held) {
				w.seen["by an offer"]++
				return
			}
		}
	}
	has := w.roleOf(w.sender)
	if has {
		for _, o := range w.held().open[s.Demand] {
			if takes(o, held) {
				w.seen["by an offer in memory"]++
				return
			}
		}
	}
	if w.serves && w.turned(r, events) {
		w.seen["by itself"]++
		return
	}
	for p := range r.Pools {
		if over = over && (advance[p] || has); !over {
			w.check(false, "claim %s takes %v, which was not offered to %+v", s.Claim, held, s.Demand)
			return
		}
	}
	w.seen["by an advance offer"]++
}

// turned reports whether a claim is taken in its turn: then a pool of it that is pending is put as pending again.
func (w *world) turned(r *wire.Record, events []*mvccpb.Event) bool {
	for p := range r.Pools {
		key := w.keys.Pending(p)
		if w.get(key) != nil && !slices.ContainsFunc(events, func(ev *mvccpb.Event) bool { return string(ev.Kv.Key) == key }) {
			return false
		}
	}
	return true
}

// takes reports whether an offer has just these slots.
func takes(o wire.Offer, held map[string]slots.Held) bool {
	if len(o.Take) != len(held) {
		return false
	}
	for p, h := range held {
		of, err := o.Take[p].Held()
		if err != nil || of.Slots() != h.Slots() || !slices.Equal(numbers(of), numbers(h)) {
			return false
		}
	}
	return true
}

// numbers returns the numbers of slots, ascending.
func numbers(h slots.Held) []int {
	all := slices.Clone(h.Numbers)
	for _, b := range h.Blocks {
		for _, r := range b.Runs {
			for n := r.From; n < r.To; n++ {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return all
}

// checkPool checks a pool in which slots were taken.
func (w *world) checkPool(name string, rev int64) {
	used, has, since := 0, map[int]bool{}, map[string]int64{}
	for kv := range w.etcd.All(w.keys.Slots(name)) {
		ref, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		w.check(err == nil, "%v", err)
		h := slots.Held{Numbers: []int{ref.Number}}
		if ref.IsBlock() {
			h = slots.Held{Blocks: []slots.Block{s.Block}}
		}
		for _, n := range numbers(h) {
			w.check(!has[n], "number %d of %s is held twice", n, name)
			has[n] = true
		}
		used += max(1, s.Block.Count)
		at, ok := since[s.Claim]
		w.check(!ok || at == kv.ModRevision, "claim %s has slots of %s since revisions %d and %d", s.Claim, name, at, kv.ModRevision)
		since[s.Claim] = kv.ModRevision
	}
	s, ok := w.spec(name)
	w.check(ok && !s.Paused && s.Limit != pool.Closed, "slots of %s were taken in revision %d: %+v", name, rev, s)
	w.check(s.Limit == pool.Unlimited || used <= s.Limit, "%d of %d slots of %s are used in revision %d", used, s.Limit, name, rev)
}

// spec returns the spec of a pool, false if there is none.
func (w *world) spec(name string) (pool.Spec, bool) {
	kv := w.get(w.keys.Spec(name))
	if kv == nil {
		return pool.Spec{}, false
	}
	s, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	return s, err == nil
}

// demandAt is a demand as etcd has it.
type demandAt struct {
	wire.Demand
	stamp   wire.Stamp
	created int64
}

// dispatched reports whether an instance that lives has the role.
func (w *world) dispatched() bool { return slices.ContainsFunc(w.nodes, w.roleOf) }

// waiting returns the demands that count and have not ended, in their order.
func (w *world) waiting() (all []demandAt) {
	over := map[string]bool{}
	created := map[wire.DemandKey]int64{}
	for _, p := range w.pools {
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			if _, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision); err == nil && s.Demand.Created > 0 {
				over[s.Claim] = true
			}
		}
		for kv := range w.etcd.All(w.keys.DemandsAll(p)) {
			k, err := w.keys.DemandKey(string(kv.Key))
			w.check(err == nil, "%v", err)
			created[k] = kv.CreateRevision
		}
	}
	for _, p := range w.pools {
		for kv := range w.etcd.All(w.keys.DemandsAll(p)) {
			k, list, err := w.keys.DecodeDemands(string(kv.Key), kv.Value)
			w.check(err == nil, "%v", err)
			for _, d := range list.List {
				counts := !over[d.Claim]
				for name := range d.Pools {
					other := k
					other.Pool = name
					counts = counts && created[other] == kv.CreateRevision
				}
				if counts {
					all = append(all, demandAt{d, d.Stamped(kv.CreateRevision), kv.CreateRevision})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b demandAt) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.stamp.Compare(b.stamp), strings.Compare(a.Claim, b.Claim))
	})
	return all
}

// admitted returns those that a walk grants.
func (w *world) admitted(all []demandAt) (granted []demandAt) {
	var capacities []admit.Capacity
	for _, p := range w.pools {
		used := 0
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			_, s, _ := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
			used += max(1, s.Block.Count)
		}
		s, ok := w.spec(p)
		capacities = append(capacities, admit.Capacity{Limit: s.Limit, Used: used, Open: ok && !s.Paused && s.Limit != pool.Closed})
	}
	k := admit.NewWalk(capacities)
	for _, x := range all {
		a := &admit.Waiter{Reserve: x.Reserve}
		for i, p := range w.pools {
			if n := x.Pools[p]; n > 0 {
				a.Needs = append(a.Needs, admit.Need{Pool: i, N: n})
			}
		}
		if k.Next(a) == admit.Fit {
			granted = append(granted, x)
		}
	}
	return granted
}

const (
	// quietFor is for how long nothing may change before all is at rest, restFor how long a rest takes at least: each lease of an
	// instance that has ended goes meanwhile, and each instance compares its claims with its leases. If nothing rests after
	// mostRest, it never will.
	quietFor = 3 * time.Second
	restFor  = 13 * time.Second
	mostRest = 150 * time.Second
	// wellAfter is after what time of a rest all that was put before it is seen.
	wellAfter = 5 * time.Second
)

// rest has all be well until nothing changes any longer, and checks what is left.
func (w *world) rest() {
	w.calm, w.calmAt = true, w.now
	for _, n := range slices.Clone(w.nodes) {
		for _, s := range n.streams {
			s.silent, s.lag = s.silent && s != n.seat.bell, 0
			s.arrived()
		}
		n.recover()
	}
	for from := w.now; len(w.errs) == 0; {
		w.run(time.Second)
		if w.now-from < restFor {
			continue
		}
		busy := w.busy()
		if len(busy) == 0 && w.now-w.changed > quietFor {
			break
		}
		w.check(w.now-from < mostRest, "it does not come to rest: %v, last change %v ago", busy, w.now-w.changed)
	}
	if len(w.errs) == 0 {
		w.checkRest()
	}
	w.calm = false
}

// busy returns the claims with which something is to be done.
func (w *world) busy() (all []string) {
	for _, n := range w.nodes {
		if n.adopting != adopted {
			all = append(all, n.name+" starts")
		}
		for _, a := range n.sorted() {
			if _, waits := a.Waits(); !a.granted && !waits || a.gone {
				all = append(all, a.Request().ID)
			}
		}
	}
	return all
}

// dump returns what etcd has.
func (w *world) dump() string {
	var b strings.Builder
	for kv := range w.etcd.All(w.keys.Prefix()) {
		if !strings.Contains(string(kv.Key), "/guards/") {
			fmt.Fprintf(&b, "\n%s %d %d lease %d %.300s", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Lease, kv.Value)
		}
	}
	return b.String()
}

// checkRest checks that instances and etcd agree, and that nobody waits for what is free.
func (w *world) checkRest() {
	type put struct {
		id  string
		rev int64
	}
	held, waits := map[put]*wanted{}, map[string]int{}
	for _, n := range w.nodes {
		for _, a := range n.sorted() {
			if a.granted {
				held[put{a.Request().ID, a.Fence().Revision()}] = a
			} else {
				waits[a.Request().ID] = 0
			}
		}
	}
	has := map[put]map[string]int{}
	for _, p := range w.pools {
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
			w.check(err == nil, "%v", err)
			if s.Claim == fragment {
				continue
			}
			is := put{s.Claim, kv.ModRevision}
			if has[is] == nil {
				has[is] = map[string]int{}
			}
			has[is][p] += max(1, s.Block.Count)
			w.check(held[is] != nil, "rest: %s is held since revision %d by claim %s, which no instance knows", kv.Key, is.rev, is.id)
		}
	}
	for is, a := range held {
		w.check(maps.Equal(has[is], a.Request().Slots), "rest: claim %s of revision %d has %v of %v", is.id, is.rev, has[is], a.Request().Slots)
	}
	all := w.waiting()
	inPool := map[string]bool{}
	for _, x := range all {
		_, ok := waits[x.Claim]
		w.check(ok, "rest: etcd has a demand of claim %s, which does not wait", x.Claim)
		waits[x.Claim]++
		for p := range x.Pools {
			inPool[p] = true
		}
	}
	for id, n := range waits {
		w.check(n == 1, "rest: claim %s waits, and has %d demands in etcd", id, n)
	}
	for _, x := range w.admitted(all) {
		w.check(false, "rest: claim %s waits although it fits", x.Claim)
	}
	for kv := range w.etcd.All(w.keys.Pending("")) {
		if !w.dispatched() { // who dispatches next ends it
			break
		}
		name := strings.TrimPrefix(string(kv.Key), w.keys.Pending(""))
		w.check(inPool[name], "rest: %s is pending, and nobody waits", name)
	}
	for kv := range w.etcd.All(w.keys.OffersAll()) {
		name, err := w.keys.OfferKey(string(kv.Key))
		w.check(err == nil && name.Advance != "" && inPool[name.Advance] || !w.dispatched(), "rest: %s is left", kv.Key)
	}
	if state, err := list.Read(context.Background(), reader{w: w}, w.keys.Keys); err != nil {
		w.check(false, "rest: %v", err)
	} else {
		for _, v := range state.Verify() {
			w.check(false, "rest: %+v", v)
		}
	}
}

// drain has all claims end. Then there is nothing left.
func (w *world) drain() {
	w.endAll()
	if w.visit(); len(w.errs) > 0 {
		return
	}
	prefixes := []string{w.keys.Pending(""), w.keys.ID(""), w.keys.Pools()}
	if w.dispatched() { // who takes the role next deletes what is left of offers
		prefixes = append(prefixes, w.keys.OffersAll())
	}
	for _, prefix := range prefixes {
		for kv := range w.etcd.All(prefix) {
			w.check(strings.HasSuffix(string(kv.Key), "/spec"), "drain: %s is left: %s", kv.Key, kv.Value)
		}
	}
}

// endAll has all claims end.
func (w *world) endAll() {
	for round := 0; len(w.errs) == 0; round++ {
		some := false
		for _, n := range w.nodes {
			for _, a := range n.sorted() {
				if some = true; a.granted && !a.gone {
					n.giveUp(a)
				} else if !a.granted {
					n.drop(a, false)
				}
			}
			n.step()
		}
		if !some {
			break
		}
		w.rest()
		w.check(round < 5, "drain: it does not end")
	}
}

// visit has a claim of each pool that is pending come and go, if nobody dispatches: then it does, or if that is denied, the claim
// has its turn.
func (w *world) visit() {
	if len(w.errs) > 0 || w.dispatched() {
		return
	}
	w.calm = true
	some := false
	for kv := range w.etcd.All(w.keys.Pending("")) {
		name := strings.TrimPrefix(string(kv.Key), w.keys.Pending(""))
		if w.denied {
			w.after(0, func() { w.putSpec(name, pool.Spec{Limit: 5, ReserveAfter: pool.NeverReserve}) })
		}
		w.after(0, func() { w.nodes[0].ask(map[string]int{name: 1}) })
		some = true
	}
	if some && !w.denied {
		w.run(firstPoll / 2)
		w.check(w.get(w.keys.Role()) != nil, "claims wait, and nobody takes the role")
	}
	w.rest()
	w.endAll()
}

// schedule has anything happen on some instances, with a rest from time to time.
func schedule(seed uint64, f fault) *world {
	w := newScheduleWorld(seed, f)
	for range 2 {
		for i := 0; i < 250 && len(w.errs) == 0; i++ {
			w.run(time.Duration(w.IntN(8_000)) * time.Microsecond)
			if len(w.nodes) > 0 {
				w.act()
			}
		}
		if len(w.errs) == 0 {
			w.lastOffer()
			if r := w.held(); r != nil && r.by.seat.keys != nil && w.IntN(4) == 0 {
				r.by.seat.keys.silent = true
			}
			w.rest()
		}
	}
	if len(w.errs) == 0 {
		w.drain()
	}
	if len(w.errs) == 0 && seed%4 == 0 {
		w.quiet()
	}
	return w
}

// quiet has nobody wait for more than a minute: then only a coordinator dispatches on. The next claim that waits has a dispatcher
// soon.
func (w *world) quiet() {
	w.calm = true
	for _, n := range w.nodes {
		for _, s := range n.streams {
			s.silent = false
		}
	}
	w.run(75 * time.Second)
	if r := w.held(); r != nil {
		w.check(r.by.kind == wire.Coordinator, "%s dispatches without demands", r.by.name)
	}
	name := w.pools[0]
	w.putSpec(name, pool.Spec{Limit: 1, ReserveAfter: pool.NeverReserve})
	for _, n := range w.nodes[:2] {
		n.ask(map[string]int{name: 1})
		w.run(firstPoll / 2)
	}
	if !w.denied {
		w.check(w.get(w.keys.Role()) != nil, "a claim waits, and nobody takes the role")
		w.nodes[0].release()
		w.run(firstPoll / 2)
		granted := slices.ContainsFunc(w.nodes[1].sorted(), func(a *wanted) bool { return a.granted })
		w.check(granted, "a claim waits for free slots")
	}
	w.endAll()
}
