package owner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// held returns the keys of slots by the revision that has put them: a transaction grants several claims.
func (w *world) held() map[int64][]*mvccpb.KeyValue {
	all := map[int64][]*mvccpb.KeyValue{}
	for _, p := range poolNames {
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			all[kv.ModRevision] = append(all[kv.ModRevision], kv)
		}
	}
	return all
}

// committed checks what etcd has after a revision.
func (w *world) committed(rev int64, events []*mvccpb.Event, req *pb.TxnRequest) {
	for _, ev := range events {
		if req != nil && ev.Type == mvccpb.DELETE && w.space.was { // what a full etcd was sent to delete may come late
			w.freed[string(ev.Kv.Key)] = rev
		}
		if req == nil { // a lease took its keys with it
			w.freed[string(ev.Kv.Key)], w.forced[ev.PrevKv.ModRevision] = rev, true
		}
		for _, h := range w.hosts {
			if strings.HasPrefix(string(ev.Kv.Key), w.keys.Offers(h.name, "i")) {
				h.events = append(h.events, ev)
			}
		}
		if strings.Contains(string(ev.Kv.Key), "/demands/") {
			w.checkDemands(ev, events)
			if req != nil {
				w.checkLeft(ev, events)
			}
		}
	}
	w.checkWritten(events)
	w.passes(events)
	took := map[string]bool{}
	w.turns = nil
	for _, ev := range events {
		ref, err := w.keys.Ref(string(ev.Kv.Key))
		if err != nil || ev.Type != mvccpb.PUT || w.outside {
			continue
		}
		if !w.transfers.move(ev) {
			took[ref.Pool] = true
			if ev.PrevKv != nil {
				w.over++
			}
		}
		w.checkClaim(ref, ev, events)
	}
	for p := range took {
		w.checkPool(p, rev)
	}
	w.checkTurns(w.turns, events)
}

// checkLeft checks that a claim that waits leaves the wait queue only in the revision in which it gets its slots: another one
// could pass it meanwhile.
func (w *world) checkLeft(ev *mvccpb.Event, events []*mvccpb.Event) {
	if ev.PrevKv == nil || w.outside {
		return
	}
	key := string(ev.Kv.Key)
	name, was, err := w.keys.DecodeDemands(key, ev.PrevKv.Value)
	w.check(err == nil, "%v", err)
	there := map[int]bool{}
	if ev.Type == mvccpb.PUT {
		_, list, _ := w.keys.DecodeDemands(key, ev.Kv.Value)
		for _, d := range list.List {
			there[d.Index] = true
		}
	}
	for _, gone := range was.List {
		ref := wire.DemandRef{Pool: name.Pool, Name: name.Name, Created: ev.PrevKv.CreateRevision, Index: gone.Index}
		for _, h := range w.hosts {
			if there[gone.Index] || h.name != name.Host {
				continue
			}
			d, _ := h.queue.find(ref)
			if d == nil || d.over || d.claim.withdrawn || d.claim.demand != d {
				continue
			}
			w.check(w.commits(ref, events) || w.listed(name, gone.Claim), "claim %s waits, and has left the queue", gone.Claim)
		}
	}
}

// listed reports whether a demands key of an instance lists a claim.
func (w *world) listed(of wire.DemandKey, claim string) bool {
	for kv := range w.etcd.All(w.keys.Demands(of.Pool, of.Host, of.Instance)) {
		_, list, err := w.keys.DecodeDemands(string(kv.Key), kv.Value)
		if err == nil && slices.ContainsFunc(list.List, func(d wire.Demand) bool { return d.Claim == claim }) {
			return true
		}
	}
	return false
}

// commits reports whether slots of a demand are put.
func (w *world) commits(ref wire.DemandRef, events []*mvccpb.Event) bool {
	return slices.ContainsFunc(events, func(ev *mvccpb.Event) bool {
		_, s, err := w.keys.DecodeSlot(string(ev.Kv.Key), ev.Kv.Value, 1)
		return ev.Type == mvccpb.PUT && err == nil && s.Demand == ref
	})
}

// checkDemands checks that demands keep their stamps, and that new ones keep their pools pending.
func (w *world) checkDemands(ev *mvccpb.Event, events []*mvccpb.Event) {
	if ev.Type != mvccpb.PUT {
		return
	}
	_, list, err := w.keys.DecodeDemands(string(ev.Kv.Key), ev.Kv.Value)
	w.check(err == nil, "%v", err)
	w.check(ev.Kv.Lease != 0 || w.outside, "%s is on no lease", ev.Kv.Key)
	for _, d := range list.List {
		stamp := d.Stamped(ev.Kv.CreateRevision)
		name := d.Claim + "@" + d.Holder.Host
		if was, ok := w.stamps[name]; ok {
			w.check(was == stamp, "claim %s has waited since %v, and now since %v", d.Claim, was, stamp)
		}
		w.stamps[name] = stamp
		w.checkSince(name, stamp.Revision)
		if w.outside || ev.Kv.CreateRevision < ev.Kv.ModRevision || w.apart() {
			continue
		}
		for _, p := range d.Pending {
			pending := slices.ContainsFunc(events, func(o *mvccpb.Event) bool { return string(o.Kv.Key) == w.keys.Pending(p) && o.Type == mvccpb.PUT })
			w.check(pending, "claim %s waits, and has not put that %s is pending", d.Claim, p)
		}
	}
}

// apart reports whether etcd has refused demands, so that an instance puts them and the keys of pending pools by themselves.
func (w *world) apart() bool {
	return slices.ContainsFunc(w.hosts, func(h *host) bool { return h.queue.flight != nil && h.queue.flight.single })
}

// checkClaim checks that the keys of a claim are complete.
func (w *world) checkClaim(ref wire.Ref, ev *mvccpb.Event, events []*mvccpb.Event) {
	kv := ev.Kv
	_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
	if err != nil {
		w.check(false, "%v", err)
		return
	}
	if s.Record == nil {
		return
	}
	w.checkSeat(s.Claim)
	w.check(kv.Lease != 0, "claim %s has its slots on no lease", s.Claim)
	r, err := s.Decode(string(kv.Key))
	w.check(err == nil, "%v", err)
	if err != nil {
		return
	}
	turn := w.turnOf(s.Claim, r.Holder.Host)
	switch {
	case turn != nil:
		w.turns = append(w.turns, turn)
	case s.Demand.Created != 0:
		w.checkOffered(s, ev, events)
	}
	w.checkID(s.Claim, r.Holder.Host, kv)
	refs, err := r.Refs(ref)
	w.check(err == nil, "%v", err)
	got := map[string]int{}
	for _, of := range refs {
		n := 0
		for other := range w.etcd.All(of.Key(w.keys)) {
			if _, o, err := w.keys.DecodeSlot(string(other.Key), other.Value, 1); err == nil && string(other.Key) == of.Key(w.keys) && o.Claim == s.Claim && other.ModRevision == kv.ModRevision && other.Lease == kv.Lease {
				n = max(1, o.Block.Count)
			}
		}
		got[of.Pool] += n
		if s.Demand.Created == 0 && r.Admitted == 0 && turn == nil {
			for range w.etcd.All(w.keys.Pending(of.Pool)) {
				w.check(false, "claim %s takes slots of %s while others wait for it", s.Claim, of.Pool)
			}
		}
	}
	w.check(maps.Equal(got, r.Pools), "claim %s holds %v, and has %v in revision %d", s.Claim, got, r.Pools, kv.ModRevision)
}

// checkPool checks a pool in which slots were taken.
func (w *world) checkPool(name string, rev int64) {
	used, has := 0, map[int]bool{}
	add := func(n int) {
		w.check(!has[n], "number %d of %s is held twice", n, name)
		has[n] = true
	}
	for kv := range w.etcd.All(w.keys.Slots(name)) {
		ref, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		w.check(err == nil, "%v", err)
		if !ref.IsBlock() {
			used++
			add(ref.Number)
			continue
		}
		used += s.Block.Count
		for _, r := range s.Block.Runs {
			for n := r.From; n < r.To; n++ {
				add(n)
			}
		}
	}
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		s, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
		w.check(err == nil && !s.Paused && s.Limit != pool.Closed, "slots of %s were taken: %+v, %v", name, s, err)
		w.check(s.Limit == pool.Unlimited || used <= s.Limit, "%d of %d slots of %s are used in revision %d", used, s.Limit, name, rev)
	}
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

// rest has everything arrive, and checks that instances and etcd agree.
func (w *world) rest() {
	w.setSpace(storetest.SpaceFree)
	w.clock += mostTry
	for len(w.late) > 0 {
		w.deliverLate()
	}
	w.written.refusing = false
	defer func() { w.calm = false }()
	for round, quiet := 0, 0; quiet < 3; round++ {
		busy := false
		w.calm = quiet > 0
		was := w.etcd.Revision()
		w.clock += localWait
		for _, h := range w.hosts {
			for len(h.dead) > 0 {
				w.tell(h)
			}
			w.poll(h)
			for n := 0; n == 0 || h.surveys.wanted() && n < 20; n++ {
				w.send(h)
				for h.busy() {
					w.deliver(h)
				}
			}
			busy = w.audit(h) || h.Orphans() > 0 || busy
			w.audit(h)
			busy = busy || h.busy()
			busy = busy || h.surveys.wanted() || len(h.queue.fresh)+h.queue.changed.len()+h.commits.again.len() > 0
			busy = busy || h.Space().Full() // an answer was late
			if len(h.queue.shelf.list)+len(h.commits.shelf.list) > 0 {
				busy, w.clock = true, w.clock+shelfTime
			}
			for c := range h.asked {
				busy = busy || c.state != waiting && !w.full(c)
			}
		}
		before := w.offered
		w.d.act()
		if quiet++; busy || w.offered != before || w.open() || w.nobody && w.etcd.Revision() != was {
			quiet = 0
		}
		if len(w.errs) > 0 {
			return
		}
		if round > 500 {
			w.check(false, "claims are neither granted nor refused")
			return
		}
	}
	if len(w.errs) == 0 {
		w.checkRest()
	}
	if len(w.errs) == 0 {
		w.checkWaiting()
	}
	if len(w.errs) == 0 && w.nobody {
		w.checkEmpty()
	}
	if len(w.errs) == 0 {
		w.findFree()
	}
}

// busy reports whether anything of a host is on its way.
func (h *host) busy() bool {
	n := len(h.reads) + len(h.events)
	for i, x := range h.halves {
		if n += len(x.sent); x.unknown && (i > 0 || !h.whole) {
			n++
		}
	}
	return n > 0
}

// open reports whether an offer is open.
func (w *world) open() bool {
	for kv := range w.etcd.All(w.keys.OffersAll()) {
		if name, _ := w.keys.OfferKey(string(kv.Key)); name.Name >= 0 || name.Passed() {
			return true
		}
	}
	return false
}

// checkWaiting checks that the claims that wait are those that etcd has.
func (w *world) checkWaiting() {
	in := map[string]int{}
	for _, x := range w.waiters() {
		in[x.Claim+"@"+x.Holder.Host]++
	}
	for _, h := range w.hosts {
		for c := range h.asked {
			name := asked(c.request)
			if !w.full(c) {
				w.check(in[name] == 1, "claim %s waits, and has %d demands in etcd", name, in[name])
			} else {
				w.check(in[name] == 0, "claim %s waits for a place, and has %d demands in etcd", name, in[name])
			}
			delete(in, name)
		}
	}
	for id := range in {
		w.check(false, "etcd has a demand of claim %s, which does not wait", id)
	}
	for _, x := range w.admitted(w.waiters()) {
		lent := map[string]*state{}
		for _, p := range poolNames {
			lent[p] = w.state(p)
		}
		_, ok := w.d.offer(x, lent)
		w.check(!ok, "claim %s waits although it fits", x.Claim)
	}
}

func (w *world) checkRest() {
	type put struct {
		key string
		rev int64
	}
	known := map[put]bool{}
	for _, h := range w.hosts {
		for _, c := range h.held {
			for _, r := range wire.Refs(c.keys) {
				known[put{r.Key(w.keys), c.fence}] = true
			}
		}
	}
	for rev, all := range w.held() {
		for _, kv := range all {
			is := put{string(kv.Key), rev}
			w.check(known[is], "nobody knows that %s is held since revision %d", is.key, rev)
			delete(known, is)
		}
	}
	w.checkIDs()
	for is := range known {
		w.check(false, "%s of revision %d is gone", is.key, is.rev)
	}
}

// findFree checks that a claim that fits is granted, and one that does not is refused.
func (w *world) findFree() {
	h := w.hosts[0]
	name := poolNames[w.IntN(len(poolNames))]
	s := w.state(name)
	behind := waiter{Demand: wire.Demand{Claim: "behind", Pools: map[string]int{name: 1}}}
	granted := w.admitted(append(w.waiters(), behind))
	fits := slices.ContainsFunc(granted, func(x waiter) bool { return x.Claim == behind.Claim })
	c := w.claim(h, map[string]int{name: 1})
	for round := 0; h.asked[c] && round < 500; round++ {
		w.clock += localWait
		w.send(h)
		for h.busy() {
			w.deliver(h)
		}
	}
	w.check(slices.Contains(h.held, c) == fits, "a claim of one slot of %s (%d of %d used): granted %v, fits %v", name, s.used, s.spec.Limit, slices.Contains(h.held, c), fits)
}
