package pool

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

var (
	schedules = flag.Int("schedules", 400, "how many random schedules to run")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first schedule")
	silent    = hclog.NewNullLogger()
)

const stepsPerSchedule = 300

// step does one thing that can happen, drawn at random.
func (w *world) step() {
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	switch n := w.rnd.IntN(100); {
	case n < 14:
		w.ask(h)
	case n < 22:
		w.giveBack(h)
	case n < 25:
		w.cancel(h)
	case n < 43:
		h.deliver(1 + w.rnd.IntN(4))
	case n < 62:
		h.send()
	case n < 78:
		if len(w.network) > 0 {
			w.arrive(w.rnd.IntN(len(w.network)))
		}
	case n < 89:
		h.answer(false)
	case n < 91:
		h.answer(true) // the transaction may arrive later all the same
	case n < 92:
		if len(w.network) > 0 {
			i := w.rnd.IntN(len(w.network))
			w.network = slices.Delete(w.network, i, i+1)
		}
	case n < 95:
		w.pass(time.Duration(w.rnd.IntN(4000)) * time.Millisecond)
	case n < 96:
		h.resync()
	default:
		w.trouble(h)
	}
	w.collect()
	if w.rnd.IntN(20) == 0 {
		w.verify()
	}
}

// trouble is what happens seldom.
func (w *world) trouble(h *simHost) {
	p := w.pools[w.rnd.IntN(len(w.pools))]
	switch w.rnd.IntN(13) {
	case 0, 1, 2:
		limit := []int{9, 2, 9, 1, 4, 100, Unlimited, Closed}[w.rnd.IntN(8)]
		w.logf("pool %s gets limit %d", p, limit)
		w.setPool(p, limit, w.rnd.IntN(8) == 0)
	case 3:
		w.logf("pool %s is deleted", p)
		w.changed[p] = w.now
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(w.keys.Spec(p))}})
	case 4:
		w.forceRelease()
	case 5:
		h.cut = !h.cut
	case 6:
		w.restart(h, w.rnd.IntN(2) == 0)
	case 7:
		h.loseWaiterLeases()
	case 8:
		w.revokeOne(h)
	case 9:
		// A sweeper takes the guard of a host that it believes to be dead.
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(w.keys.Guard(h.name, "i"))}})
	case 10:
		w.space = storetest.Space(w.rnd.IntN(3))
		w.logf("space: %d", w.space)
		w.etcd.SetSpace(w.space)
	case 11:
		w.denying = w.rnd.IntN(3) == 0
		w.space = storetest.SpaceFree
		w.etcd.SetSpace(w.space)
	case 12:
		w.restore()
	}
}

func (w *world) ask(h *simHost) {
	w.nextID++
	req := &Request{
		ID:       h.name + "-" + string(rune('a'+w.rnd.IntN(26))) + time.Duration(w.nextID).String(),
		Slots:    map[string]int{},
		Priority: w.rnd.IntN(3) - 1,
		Wait:     time.Duration(w.rnd.IntN(4)) * time.Hour,
	}
	if n := len(h.ids); n > 0 && w.rnd.IntN(6) == 0 {
		req.ID = h.ids[n-1-w.rnd.IntN(min(n, 4))] // an id comes again
		if h.wanted[req.ID] != nil || h.has[req.ID] != nil || w.bridges[req.ID] {
			return
		}
	}
	if w.rnd.IntN(5) == 0 {
		req.ID = sharedID + string(rune('a'+w.rnd.IntN(3)))
		if h.wanted[req.ID] != nil || h.has[req.ID] != nil || w.left(h, req.ID) {
			return
		}
	}
	h.ids = append(h.ids, req.ID)
	if w.askCommon(h, req) {
		return
	}
	for _, p := range w.pools {
		again, known := h.idPools[req.ID]
		if w.rnd.IntN(2) == 0 && !known || again[p] {
			req.Slots[p] = 1 + w.rnd.IntN(4)
			if w.rnd.IntN(5) == 0 {
				req.Slots[p] = 1 + w.rnd.IntN(enough) // may need many keys
			}
		}
	}
	if len(req.Slots) == 0 {
		return
	}
	// A claim of another pool with one id is another claim, which the checks do not know.
	h.idPools[req.ID] = map[string]bool{}
	for p := range req.Slots {
		h.idPools[req.ID][p] = true
	}
	if w.rnd.IntN(12) == 0 {
		req.Extra.If = []*pb.Compare{store.ModEquals("/b/elsewhere", int64(w.rnd.IntN(2)))}
		req.Extra.Then = []*pb.RequestOp{store.Put("/b/other/"+req.ID, []byte("x"), 0)}
		if w.rnd.IntN(6) == 0 {
			req.Extra.Then[0].GetRequestPut().Lease = goneLease
		}
	}
	if w.rnd.IntN(4) == 0 && !shared(req.ID) {
		req.Bridge, w.bridges[req.ID] = true, true
	}
	if w.rnd.IntN(6) == 0 { // for one of a few things, as others
		req.Sole, req.Since = true, int64(1+w.rnd.IntN(3))
		req.Holder = Holder{Run: "r", Step: fmt.Sprint(w.rnd.IntN(2)), Bind: "step"}
	}
	if w.rnd.IntN(4) == 0 {
		req.Place = h.places.New()
		h.heldPlaces[req.ID] = append(h.heldPlaces[req.ID], req.Place)
		if w.rnd.IntN(2) == 0 {
			req.Place.Take()
		}
	}
	if delete(h.waits, req.ID); req.Wait > 0 {
		h.waits[req.ID] = &wish{slots: req.Slots}
	}
	reply := make(chan outcome, 1)
	h.wanted[req.ID] = reply
	h.core.request(newEntry(req, h.core.host, h.core.instance), reply, w.now)
	w.logf("%s asks for %s: %v", h.name, req.ID, req.Slots)
}

func (w *world) giveBack(h *simHost) {
	ids := slices.Sorted(maps.Keys(h.has))
	if len(ids) == 0 {
		return
	}
	w.giveBackOne(h, ids[w.rnd.IntN(len(ids))])
}

// takeOver has another host take a claim over, unless one does already.
func (w *world) takeOver(h *simHost, id string) bool {
	to := w.hosts[w.rnd.IntN(len(w.hosts))]
	if to == h || w.taken[id] != (takeOverTo{}) || to.core.entries[id] != nil {
		return false
	}
	w.taken[id] = takeOverTo{to.name, h.has[id].Fence.Revision()}
	taking := newEntry(&Request{ID: id, Slots: h.has[id].Slots}, to.core.host, to.core.instance)
	taking.takes = h.has[id].Fence.Revision()
	if w.rnd.IntN(6) == 0 {
		taking.req.Extra.If = []*pb.Compare{store.ModEquals("/b/elsewhere", int64(w.rnd.IntN(2)))}
		taking.req.Extra.Leased = []*pb.RequestOp{store.Put("/b/other/"+id, []byte("x"), 0)}
	}
	reply := make(chan outcome, 1)
	to.wanted[id] = reply
	to.core.take(taking, reply, w.now)
	w.logf("%s is to take %s over", to.name, id)
	return true
}

func (w *world) release(h *simHost, id string) {
	w.free[named(id, h.name)] = true
	cl := h.has[id]
	delete(h.has, id)
	h.returnPlaces(id)
	h.core.release(cl, make(chan error, 1), w.now)
	w.logf("%s releases %s", h.name, id)
}

func (w *world) cancel(h *simHost) {
	ids := slices.Sorted(maps.Keys(h.wanted))
	if len(ids) == 0 {
		return
	}
	id := ids[w.rnd.IntN(len(ids))]
	reply := h.wanted[id]
	if len(reply) > 0 {
		return // answered already
	}
	w.free[named(id, h.name)] = true
	h.core.cancel(id, reply, errStopped, w.now)
	delete(h.wanted, id)
	h.returnPlaces(id)
	w.logf("%s cancels %s", h.name, id)
}

// pass lets time go by. Hosts that are not cut off renew their leases.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.etcd.Advance(d)
	for _, h := range w.hosts {
		h.renew()
		if !h.hung {
			h.core.tick(w.now)
		}
	}
}

func (h *simHost) renew() {
	if h.cut {
		return
	}
	for _, l := range []*simLeases{h.leases, h.waiters} {
		for d, id := range l.by {
			if _, err := h.w.etcd.Renew(id); err != nil {
				delete(l.by, d)
				h.core.leaseLost(id, store.ErrLeaseNotFound, h.w.now)
			}
		}
		l.former = slices.DeleteFunc(l.former, func(id store.LeaseID) bool {
			_, err := h.w.etcd.Renew(id)
			if err != nil {
				h.core.leaseLost(id, store.ErrLeaseNotFound, h.w.now)
			}
			return err != nil
		})
	}
}

// forceRelease frees some claim, as an operator does.
func (w *world) forceRelease() {
	keys := slices.Sorted(maps.Keys(w.model))
	if len(keys) == 0 {
		return
	}
	key := keys[w.rnd.IntN(len(keys))]
	m := w.model[key]
	t := &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(key, m.rev)}}
	for _, k := range keys {
		if w.model[k].claim == m.claim {
			t.Success = append(t.Success, store.Delete(k))
		}
	}
	w.logf("claim %s is released by force", m.claim)
	w.must(t)
	w.free[m.claim] = true // its host gives back what a restore brings back of it
	w.forced[m.claim] = store.FenceAt(m.rev)
	id, _, _ := strings.Cut(m.claim, "@")
	for _, h := range w.hosts {
		if h.name == m.host && !w.quiet {
			h.core.revoke(id, revocationValue{Fence: store.FenceAt(m.rev), Forced: true}, w.etcd.Revision(), w.now)
		}
	}
}

func (w *world) revokeOne(h *simHost) {
	ids := slices.Sorted(maps.Keys(h.has))
	if len(ids) > 0 {
		id := ids[w.rnd.IntN(len(ids))]
		w.free[named(id, h.name)] = true
		h.core.revoke(id, revocationValue{Fence: h.has[id].Fence}, 0, w.now)
	}
}

// restart ends a life of a host, with whatever it has under way, and begins the
// next, which resumes its claims or leaves them to their leases.
func (w *world) restart(h *simHost, resume bool) {
	var adopt []store.LeaseID
	if resume {
		for _, id := range h.leases.by {
			adopt = append(adopt, id)
		}
		slices.Sort(adopt)
	}
	old := h.leases.by
	w.logf("%s restarts, adopting %v", h.name, adopt)
	h.start(adopt)
	if adopt != nil {
		h.leases.by = old
	}
}

func (w *world) collect() {
	w.collectParted()
	for _, h := range w.hosts {
		h.collect()
		for _, c := range h.core.adopted[h.counted:] {
			h.counted++
			h.leases.keys[c.Lease] += c.Keys
		}
		for id, n := range h.leases.keys {
			if n < 0 {
				w.failf("%s gives back more keys of lease %d than it has taken", h.name, id)
			}
		}
		for _, c := range h.core.adopted {
			if h.core.entries[c.ID] != nil && c.Context().Err() == nil {
				h.has[c.ID] = c
			}
		}
		h.checkJobs()
	}
	w.checkHolders()
}

// enough slots of a pool for the widest claim, which waits until there are so many.
const enough = 90

// rest ends all trouble, has everything released, and then checks that nothing
// is left behind: every waiter was served, every view equals the store, and all
// slots can be claimed.
func (w *world) rest() {
	w.space, w.denying = storetest.SpaceFree, false
	for _, p := range w.pools {
		w.setPool(p, enough, false)
	}
	for _, h := range w.hosts {
		h.cut = false
	}
	if id := ""; !w.until(func() bool { id = w.unaware(); return id == "" }) {
		w.failf("%s was released by force, and its host does not know that", id)
	}
	if !w.until(func() bool {
		for _, h := range w.hosts {
			for _, id := range slices.Sorted(maps.Keys(h.has)) {
				w.release(h, id)
			}
		}
		return w.idle()
	}) {
		w.failf("stuck: %s", w.busy())
		return
	}
	for _, h := range w.hosts {
		for h.deliver(100) {
		}
		if n := h.places.Free(); n != 2 {
			w.failf("%s has %d places free of 2, and nothing", h.name, n)
		}
	}
	if w.hide == nil {
		w.checkViews()
	}
	h := w.hosts[0]
	reply := make(chan outcome, 1)
	all := &Request{ID: h.name + "-all", Slots: map[string]int{"a": enough, "b": enough}, Wait: time.Hour}
	w.until(func() bool { return h.core.show(w.etcd.Revision()) }) // as after a refusal by old limits: see [Engine.outdated]
	h.core.request(newEntry(all, h.core.host, h.core.instance), reply, w.now)
	if !w.until(func() bool { return len(reply) > 0 }) {
		w.failf("not all slots can be claimed, though none is held: %s", w.busy())
		return
	}
	if len(w.errs) > 0 {
		return
	}
	o := <-reply
	if o.claim == nil {
		w.failf("all slots, though none is held: %v", o.err)
		return
	}
	w.free[h.name+"-all"] = true
	w.used = true
	h.core.release(o.claim, make(chan error, 1), w.now)
	if !w.until(w.idle) {
		w.failf("stuck at the end: %s", w.busy())
	}
	for _, h := range w.hosts {
		for _, l := range []*simLeases{h.leases, h.waiters} {
			for id, n := range l.keys {
				if n != 0 {
					w.failf("%s counts %d keys on lease %d, and there is none", h.name, n, id)
				}
			}
		}
	}
}

// until lets everything take its course until done, within 400 s: longer than any
// lease lives.
func (w *world) until(done func() bool) bool {
	for range 4000 {
		w.pass(100 * time.Millisecond)
		for _, h := range w.hosts {
			for h.deliver(100) {
			}
			h.send()
		}
		for len(w.network) > 0 {
			w.arrive(0)
		}
		for _, h := range w.hosts {
			h.answer(!h.answered) // what the network has swallowed times out
		}
		w.collect()
		if done() || len(w.errs) > 0 {
			return true
		}
	}
	return false
}

func (w *world) idle() bool { return w.busy() == "" }

func (w *world) busy() string {
	for _, h := range w.hosts {
		for _, e := range h.core.sorted() {
			return fmt.Sprintf("%s still has %s in state %d (phase %d, pending %v, retry at %d, view at %d, wants %v, pools %+v)",
				h.name, e.req.ID, e.state, h.core.phase, h.pending != nil, e.retryAt, h.core.shown(e), e.req.Slots, h.core.view.statuses())
		}
		if len(h.core.idle)+len(h.core.successors)+len(h.core.drops)+len(h.core.releases)+len(h.core.shelf.drops)+len(h.core.shelf.releases) > 0 || h.pending != nil || h.core.phase != normal {
			return h.name + " is still at work"
		}
	}
	for _, key := range sortedKeys(w.model) {
		return fmt.Sprintf("%s is still held: %+v", key, *w.model[key])
	}
	for _, kv := range w.under(w.keys.Pools()) {
		if queued := strings.HasSuffix(string(kv.Key), "/queued"); queued && !w.used {
			continue // of a host that has died: the next claim of the pool deletes it
		}
		if !strings.HasSuffix(string(kv.Key), "/spec") {
			return string(kv.Key) + " is still there"
		}
	}
	return ""
}

// run runs one schedule and returns what went wrong.
func run(seed uint64, mutate func(*pb.TxnRequest)) *world {
	w := newWorld(seed, 3)
	w.mutate = mutate
	w.run()
	return w
}

// run runs a schedule, until something goes wrong.
func (w *world) run() {
	for range stepsPerSchedule {
		w.step()
		if len(w.errs) > 0 {
			return
		}
	}
	switch w.rnd.IntN(6) {
	case 0, 1:
		w.hang()
	case 2:
		w.hog()
	case 3:
		w.crash()
	}
	if len(w.errs) == 0 {
		w.rest()
	}
}

func TestNoScheduleBreaksAnInvariant(t *testing.T) {
	n := *schedules
	if testing.Short() { // It has one goroutine, so the race detector sees nothing in it.
		n /= 10
	}
	for i := range n {
		seed := *firstSeed + uint64(i)
		if w := run(seed, nil); len(w.errs) > 0 {
			tail := w.trace[max(0, len(w.trace)-4000):]
			t.Fatalf("seed %d: %s\nlast steps:\n%s", seed, strings.Join(w.errs, "\n"), strings.Join(tail, "\n"))
		}
	}
}
