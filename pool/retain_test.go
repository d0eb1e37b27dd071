package pool

import (
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// simJournal is a journal that survives the lives of a host.
type simJournal struct {
	values map[string][]byte
	// deaf says that it keeps nothing, and says that it does.
	deaf bool
}

func (j *simJournal) Get(name string) []byte { return j.values[name] }
func (j *simJournal) Put(name string, value []byte) error {
	if j.values == nil {
		j.values = map[string][]byte{}
	}
	if !j.deaf {
		j.values[name] = slices.Clone(value)
	}
	return nil
}
func (j *simJournal) Forget(name string) { delete(j.values, name) }

// spoiled are rules of retained slots that a world breaks.
type spoiled struct {
	deaf      bool // journals keep nothing
	forgetful bool // the next life has no journal
	fresh     bool // what hosts know of etcd counts as news
	reused    bool // fencing tokens do not count grants without a write
	near      bool // remote holders are not known to be
}

// lastFence is the fencing token that the holder of a slot has, or had last.
type lastFence struct {
	fence store.Fence
	id    string
}

// askCommon asks for slots as most other claims do, so that they are granted again. It does so for
// most claims of a world that retains slots.
func (w *world) askCommon(h *simHost, req *Request) bool {
	if _, known := h.idPools[req.ID]; known || w.retain["a"] == 0 || w.rnd.IntN(3) == 0 {
		return false
	}
	req.Slots["a"], h.idPools[req.ID] = 1, map[string]bool{"a": true}
	req.Remote = remote(req.ID) && !w.near
	if w.rnd.IntN(2) == 0 {
		w.asStep(h, req)
	}
	reply := make(chan outcome, 1)
	h.wanted[req.ID] = reply
	h.core.request(newEntry(req, h.core.host, h.core.instance), reply, w.now)
	w.logf("%s asks for %s", h.name, req.ID)
	return true
}

// remote reports whether the holder of a claim that is made as most are is on another machine.
func remote(id string) bool { return hash(id)%3 == 0 }

// asStep has a claim come together with other writes, as that of a step.
func (w *world) asStep(h *simHost, req *Request) {
	req.Extra.Then = []*pb.RequestOp{store.Put("/b/other/"+req.ID, []byte("x"), 0)}
	req.Extra.Leased = []*pb.RequestOp{store.Put("/b/active/"+req.ID, []byte("x"), 0)}
	req.Place = h.places.New()
	h.heldPlaces[req.ID] = append(h.heldPlaces[req.ID], req.Place)
}

// holdings returns what the jobs of a host hold, by the ids of their claims.
func (h *simHost) holdings() map[string]holding {
	all := map[string]holding{}
	for id, c := range h.has {
		if e := h.core.entries[id]; e != nil && e.claim == c && e.state == held && c.Context().Err() == nil && !e.req.Bridge {
			all[id] = e.holding
		}
	}
	return all
}

// holder returns the job that holds a slot key, which may show another claim.
func (w *world) holder(ref slotRef, rev int64) (h *simHost, id string) {
	for _, h := range w.hosts {
		for id, has := range h.holdings() {
			if has.rev == rev && slices.ContainsFunc(has.slots, func(s placed) bool { return s.ref == ref }) {
				return h, id
			}
		}
		for id, has := range h.jobs {
			if has.rev == rev && slices.ContainsFunc(has.slots, func(s placed) bool { return s.ref == ref }) {
				return h, id
			}
		}
	}
	return nil, ""
}

// rewrites reports whether an event shows whom its host has granted a slot without a write.
func (w *world) rewrites(ref slotRef, old *held1, ev *mvccpb.Event) bool {
	if ev.Type == mvccpb.Event_DELETE || w.batch == nil {
		return false
	}
	v, err := decodeSlot(string(ev.Kv.Key), ev.Kv.Value)
	return err == nil && v.N == old.n && slices.ContainsFunc(w.batch.rewrites, func(o releaseOp) bool {
		return o.e.req.ID == v.Claim && slices.ContainsFunc(o.e.slots, func(s placed) bool { return s.ref == ref })
	})
}

// checkHolder fails if a slot is touched that a job holds, and that shows another claim.
func (w *world) checkHolder(ref slotRef, old *held1, ev *mvccpb.Event) {
	h, id := w.holder(ref, old.rev)
	if h == nil || w.free[named(id, h.name)] || w.sending == nil || named(id, h.name) == old.claim || w.rewrites(ref, old, ev) {
		return
	}
	w.failf("%s, which shows %s, is touched by %s while %s holds it", ref, old.claim, w.sending.name, id)
}

// checkHolders: no two jobs hold a slot, its fencing tokens grow, and slots are granted without a
// write under the spec only that they were taken under.
func (w *world) checkHolders() {
	by := map[slotRef]string{}
	for _, h := range w.hosts {
		for id, has := range h.holdings() {
			for _, s := range has.slots {
				if m := w.model[w.keys.Slot(s.ref.pool, s.ref.group, s.ref.index)]; m == nil || m.rev != has.rev {
					continue // it is lost, and its host does not know that yet
				}
				if other := by[s.ref]; other != "" {
					w.failf("%s and %s hold %s", id, other, s.ref)
				}
				by[s.ref] = id
				if w.reused {
					has.fence = store.FenceAt(has.fence.Revision())
				}
				if last := w.fences[s.ref]; has.fence < last.fence || has.fence == last.fence && id != last.id {
					w.failf("I4: %s holds %s with fence %d after %s with %d", id, s.ref, has.fence, last.id, last.fence)
				}
				w.fences[s.ref] = lastFence{has.fence, id}
			}
			if has.regranted.Equal(w.now) && has.fence != store.FenceAt(has.fence.Revision()) { // without a write
				h.checkSpec(id, has)
			}
		}
	}
}

// checkSpec checks a grant that was made without a write now.
func (h *simHost) checkSpec(id string, has holding) {
	for _, s := range has.slots {
		kvs := h.w.under(h.w.keys.Spec(s.ref.pool))
		if (len(kvs) == 0 || kvs[0].ModRevision > has.admitted) && h.w.now.Sub(h.w.changed[s.ref.pool]) > newsWithin {
			h.w.failf("%s is granted %s %s after the spec has changed", id, s.ref, h.w.now.Sub(h.w.changed[s.ref.pool]))
		}
	}
}

// checkJobs checks that the next life of a host has found the jobs of the one before, once it has
// read what there is. It releases those that had ended.
func (h *simHost) checkJobs() {
	if h.jobs == nil || h.core.adopt != nil || h.core.phase != normal {
		return
	}
	jobs := h.jobs
	h.jobs = nil
	for id, job := range jobs {
		ref := job.slots[0].ref
		m := h.w.model[h.w.keys.Slot(ref.pool, ref.group, ref.index)]
		if e := h.core.entries[id]; m != nil && m.rev == job.rev && m.claim == named(job.shownAs(id).id, h.name) && !h.w.free[named(id, h.name)] && (e == nil || e.state != held) {
			h.w.failf("%s has not found the job of %s, which holds %s", h.name, id, ref)
		}
	}
	for _, c := range h.core.adopted {
		if _, lives := jobs[c.ID]; !lives && h.has[c.ID] != nil && !h.w.bridges[c.ID] && !strings.HasPrefix(c.ID, sharedID) {
			h.w.release(h, c.ID)
		}
	}
}

// empties calms the world and has it release all that is held. It returns false if a pool retains
// nothing, or if a hung host still has slots of it.
func (w *world) empties(pool string) bool {
	if w.retain[pool] == 0 {
		return false
	}
	w.calm()
	for range 60 { // longer than any lease lives
		for _, h := range w.hosts {
			for _, id := range slices.Sorted(maps.Keys(h.has)) {
				w.release(h, id)
			}
			for len(h.wanted) > 0 && len(w.errs) == 0 {
				before := len(h.wanted)
				if w.cancel(h); len(h.wanted) == before {
					break // it is answered
				}
			}
		}
		w.live(time.Second)
	}
	for key := range w.model {
		if strings.HasPrefix(key, w.keys.Slots(pool)) {
			return false
		}
	}
	return true
}

// askOne has a host ask for one slot of a pool.
func (w *world) askOne(h *simHost, pool string, change ...func(*Request)) (id string) {
	w.nextID++
	id = h.name + "-one" + time.Duration(w.nextID).String()
	req := &Request{ID: id, Slots: map[string]int{pool: 1}, Wait: time.Hour}
	for _, f := range change {
		f(req)
	}
	req.Remote = remote(id) && !w.near
	reply := make(chan outcome, 1)
	h.wanted[id], h.idPools[id] = reply, map[string]bool{pool: true}
	h.core.request(newEntry(req, h.core.host, h.core.instance), reply, w.now)
	return id
}

// hog has one host pass the slots of a pool on among its own claims, while another waits for one.
// That may take as long as slots may be retained, and a moment.
func (w *world) hog() {
	pool := w.pools[w.rnd.IntN(len(w.pools))]
	if !w.empties(pool) {
		return
	}
	const step, slack = 100 * time.Millisecond, 5 * time.Second
	within := w.retain[pool]
	hog, other := w.hosts[0], w.hosts[1]
	turn := func() {
		for _, id := range slices.Sorted(maps.Keys(hog.has)) {
			w.release(hog, id)
		}
		for len(hog.wanted) < 6 {
			w.askOne(hog, pool)
		}
		w.live(step)
	}
	for range 20 {
		turn()
	}
	id := w.askOne(other, pool)
	for begun := w.now; other.has[id] == nil && len(w.errs) == 0; turn() {
		if w.now.Sub(begun) > within+slack {
			w.failf("%s has waited for %s while %s passes on its slots, which may be retained for %s", id, w.now.Sub(begun), hog.name, within)
		}
	}
}

// reboot ends a life of a host with its machine: its journal is void, and its jobs end with it but
// for those on other machines.
func (w *world) reboot(h *simHost) {
	w.restart(h, true)
	h.journal = &simJournal{deaf: w.deaf}
	h.core.journal = h.journal
	maps.DeleteFunc(h.jobs, func(id string, _ holding) bool { return !remote(id) })
}

// crash has a host crash while its claims hold slots whose keys show others. Some came with other
// writes, as steps do. The next life must find them all.
func (w *world) crash() {
	pool := w.pools[w.rnd.IntN(len(w.pools))]
	if !w.empties(pool) {
		return
	}
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	for range 20 {
		ids := slices.Sorted(maps.Keys(h.has))
		if len(ids) > 0 {
			w.giveBackOne(h, ids[w.rnd.IntN(len(ids))])
		}
		for len(h.wanted) < 2 {
			w.askOne(h, pool, func(req *Request) {
				if w.rnd.IntN(2) == 0 {
					w.asStep(h, req)
				}
			})
		}
		w.live(10 * time.Millisecond)
		if len(w.errs) > 0 {
			return
		}
	}
	if w.rnd.IntN(2) == 0 {
		w.reboot(h)
	} else {
		w.restart(h, true)
	}
	w.live(time.Second)
}
