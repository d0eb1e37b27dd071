package owner

import (
	"maps"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// lives is what schedules do with instances besides: later processes of them, restores of etcd, and audits.
type lives struct {
	often    int // one step in so many is of these; 0 for none
	mutant   string
	saved    *storetest.Saved
	restored int64 // the revision of the last restore
	livesStats
}

type livesStats struct{ restarts, adopted, restores, lost, orphans int }

// auditing is an audit of a host that has begun.
type auditing struct {
	unmatched []string
	held      []*Claim
}

// live has one of these happen.
func (w *world) live(h *host) {
	switch w.IntN(8) {
	case 0:
		w.restart(h)
	case 1:
		if w.lives.saved = w.etcd.Save(); w.lives.restored > 0 && w.IntN(2) == 0 {
			w.lives.saved = nil
		}
	case 2:
		if w.lives.saved != nil && w.IntN(2) == 0 {
			w.restore()
		}
	case 3:
		w.forceHalf()
	default:
		w.audit(h)
	}
}

// all returns all claims of a host that have slots or may get some.
func (h *host) all() []*Claim { return slices.Concat(h.held, h.sorted()) }

// granted returns those that had slots as their users know.
func (h *host) granted() []*Claim {
	all := slices.Clone(h.held)
	for _, c := range h.sorted() {
		if (c.state == releasing || c.state == freeing) && !c.withdrawn {
			all = append(all, c)
		}
	}
	return all
}

// audit begins or ends an audit of a host, and reports whether there is something to be found.
func (w *world) audit(h *host) bool {
	if a := h.audit; a != nil {
		h.audit = nil
		read := map[string]*mvccpb.KeyValue{}
		for _, key := range a.unmatched {
			read[key], _ = w.get(key)
		}
		mine := func(id store.LeaseID) bool { return h.ids[id] }
		all, held := h.all(), a.held
		switch w.lives.mutant {
		case "what is gone":
			held = nil
		case "what is left":
			mine = func(store.LeaseID) bool { return false }
		case "what is being taken":
			all = slices.DeleteFunc(all, func(c *Claim) bool { return c.state == taking })
		}
		h.Audit(read, all, held, mine, w.now())
		h.whole = false
		w.lives.orphans += h.Orphans()
		w.results(h)
		return true
	}
	var keys []string
	for _, id := range slices.Sorted(maps.Keys(h.ids)) {
		on, err := w.etcd.LeaseKeys(id)
		if keys = append(keys, on...); err != nil {
			delete(h.ids, id)
		}
	}
	held := h.granted()
	unmatched := h.Unmatched(keys, h.all(), held, h.whole)
	if len(unmatched) == 0 {
		h.whole = false
		return false
	}
	h.audit = &auditing{unmatched, held}
	return true
}

// restart has another process of the instance begin.
func (w *world) restart(h *host) {
	if w.space.is != storetest.SpaceFree {
		return
	}
	w.lives.restarts++
	w.lose(h)
	for c := range h.asked {
		delete(w.stamps, asked(c.request))
	}
	_ = w.etcd.Revoke(h.leases[true])
	delete(h.leases, true)
	if slices.Contains(h.dead, h.leases[false]) {
		delete(h.leases, false)
	}
	w.workers.leave(h)
	*h = host{name: h.name, asked: map[*Claim]bool{}, leases: h.leases, ids: h.ids}
	w.begin(h)
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(w.keys.Offers(h.name, "i"))}})
	h.events = nil
	var kvs []*mvccpb.KeyValue
	for id := range h.ids {
		on, _ := w.etcd.LeaseKeys(id)
		for _, key := range on {
			_, err := w.keys.Ref(key)
			if err == nil || strings.HasPrefix(key, w.keys.ID("")) && w.lives.mutant != "an id" {
				kv, _ := w.get(key)
				kvs = append(kvs, kv)
			}
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	if w.lives.mutant == "a key" && len(kvs) > 0 {
		kvs = kvs[1:]
	}
	whole := w.whole(h)
	for _, c := range h.Adopt(kvs, w.now()) {
		if w.lives.mutant == "the fence" {
			c.fence++
		}
		h.held = append(h.held, c)
		w.check(whole[c.fence][c.request.ID], "claim %s is held on, and is not complete in revision %d", c.request.ID, c.fence)
		delete(whole[c.fence], c.request.ID)
		w.lives.adopted++
	}
	for rev, ids := range whole {
		for id := range ids {
			w.check(false, "claim %s of revision %d is not held on", id, rev)
		}
	}
}

// whole returns the claims of a host on its leases of which all keys are there, by revision.
func (w *world) whole(h *host) map[int64]map[string]bool {
	all := map[int64]map[string]bool{}
	for rev, kvs := range w.held() {
		for _, kv := range kvs {
			ref, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
			if err != nil || s.Record == nil || !h.ids[store.LeaseID(kv.Lease)] {
				continue
			}
			r, _ := s.Decode(string(kv.Key))
			refs, _ := r.Refs(ref)
			whole := !slices.ContainsFunc(refs, func(of wire.Ref) bool {
				o, ok := w.get(of.Key(w.keys))
				return !ok || o.ModRevision != rev
			})
			if whole {
				if all[rev] == nil {
					all[rev] = map[string]bool{}
				}
				all[rev][s.Claim] = true
			}
		}
	}
	return all
}

// lose loses the messages of a host. What it has sent may come later.
func (w *world) lose(h *host) {
	lost := func(all []*message) {
		for _, m := range all {
			if !m.carried && len(m.t.Compare) > 0 && w.IntN(2) == 0 {
				w.late = append(w.late, m.t)
			}
			m.carried, m.resp, m.err = true, nil, errLost
		}
	}
	for _, x := range h.halves {
		lost(x.sent)
	}
	lost(h.reads)
	h.events, h.audit = nil, nil
}

// restore has etcd restored from a snapshot. All claims are judged by what is there of them.
func (w *world) restore() {
	w.lives.restores++
	was := w.held()
	w.etcd.Restore(w.lives.saved, 10)
	w.lives.restored = w.etcd.Revision()
	is := w.held()
	for rev, kvs := range was {
		if len(is[rev]) == len(kvs) {
			continue
		}
		w.forced[rev] = true
		for _, kv := range kvs {
			w.freed[string(kv.Key)] = w.etcd.Revision()
		}
	}
	for _, f := range flags {
		_, w.written.flag[f] = w.get(f)
		w.written.changed[f] = w.etcd.Revision()
	}
	for _, e := range w.written.ended {
		if e.written > w.lives.saved.Revision() {
			e.written = 0
		}
	}
	known := map[store.LeaseID]bool{}
	for _, h := range w.hosts {
		w.lose(h)
		for presence, id := range h.leases {
			known[id] = true
			if !presence {
				h.ids[id] = true // it may be back
			}
		}
		maps.Copy(known, h.ids)
		h.Restored()
		h.whole = w.lives.mutant != "an audit of all"
	}
	for _, id := range w.etcd.Leases() {
		if !known[id] { // nobody renews it
			_ = w.etcd.Revoke(id)
		}
	}
	for _, h := range w.hosts {
		for _, p := range poolNames {
			for _, kv := range slices.Collect(w.etcd.All(w.keys.Demands(p, h.name, "i"))) {
				_ = w.etcd.Revoke(store.LeaseID(kv.Lease))
			}
		}
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(w.keys.Offers(h.name, "i"))}})
		h.events = nil
		for _, presence := range []bool{false, true} {
			id := h.leases[presence]
			if id != 0 && !slices.Contains(w.etcd.Leases(), id) && !slices.Contains(h.dead, id) {
				h.dead = append(h.dead, id)
			}
		}
	}
	w.unknownStamps()
}

// forceHalf deletes some of the slot keys of a claim, as nobody should.
func (w *world) forceHalf() {
	all := w.held()
	if len(all) == 0 || w.space.is != storetest.SpaceFree {
		return
	}
	rev := slices.Sorted(maps.Keys(all))[w.IntN(len(all))]
	kv := all[rev][w.IntN(len(all[rev]))]
	w.forced[rev] = true
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(string(kv.Key))}})
	w.freed[string(kv.Key)] = w.etcd.Revision()
}

// leave forgets the places of a host.
func (k *workers) leave(h *host) {
	delete(k.places, h)
	delete(k.other, h)
	delete(k.held, h)
}

// newLivesWorld returns a world whose instances begin again, and whose etcd is restored, from time to time.
func newLivesWorld(seed uint64, mutant string) *world {
	w := newWorld(seed, nil)
	w.lives.often, w.lives.mutant = 40, mutant
	return w
}

// Later processes of an instance hold its claims on, and after a restore of etcd each claim is held or lost by what is there
// of it; nothing is held twice, and nothing is left.
func TestLaterLives(t *testing.T) {
	long(t)
	t.Parallel()
	var all livesStats
	for seed := range uint64(150) {
		w := newLivesWorld(seed, "").run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		s := w.lives.livesStats
		all.restarts, all.adopted, all.restores = all.restarts+s.restarts, all.adopted+s.adopted, all.restores+s.restores
		all.lost, all.orphans = all.lost+s.lost, all.orphans+s.orphans
	}
	if t.Logf("%+v", all); all.restarts < 200 || all.adopted < 200 || all.restores < 50 || all.lost < 50 || all.orphans < 100 {
		t.Errorf("too little has happened: %+v", all)
	}
	for _, name := range []string{"what is gone", "what is left", "what is being taken", "a key", "an id", "the fence", "an audit of all"} {
		t.Run(name, func(t *testing.T) {
			for seed := range schedules(name) {
				if w := newLivesWorld(seed, name).run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}
