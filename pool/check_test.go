package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// check runs after every revision: the invariants of the claim, judged from the
// keys alone.
func (w *world) check(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
	touched := map[string]bool{} // claims
	grown := map[string]bool{}   // pools that got a holder
	queues := w.newQueueCheck(events)
	for _, ev := range events {
		key := string(ev.Kv.Key)
		k, err := w.keys.ParsePoolKey(key)
		if err != nil {
			continue
		}
		switch k.Kind {
		case store.WaiterKey:
			queues.waiter(k, ev)
			continue
		case store.SlotKey:
		default:
			continue
		}
		adds := ev.Type == mvccpb.Event_PUT
		if old := w.model[key]; old != nil {
			adds = !w.takesOver(key, old, ev) && !queues.confirms(key, old, ev) && !w.rewrites(slotRef{k.Pool, k.Group, k.Index}, old, ev) && adds
			w.checkHolder(slotRef{k.Pool, k.Group, k.Index}, old, ev)
			if (adds || ev.Type == mvccpb.Event_DELETE) && !queues.withdraws(old, ev) {
				w.checkTouch(key, old, ev.Type == mvccpb.Event_DELETE)
			}
			touched[old.claim] = true
			delete(w.model, key)
		}
		if ev.Type == mvccpb.Event_PUT {
			h, _, err := w.owner(key, ev.Kv)
			if err != nil {
				w.failf("I2: %v", err)
				continue
			}
			if ev.Kv.Lease == 0 {
				w.failf("I3: %s hangs on no lease", key)
			}
			w.model[key] = h
			touched[h.claim] = true
			if adds {
				grown[k.Pool] = true
				queues.grants(h, k.Pool)
			}
		}
	}
	queues.check(rev)
	w.checkParted(rev, events)
	for p := range grown {
		w.checkCapacity(p, rev)
	}
	for id := range touched {
		w.checkWhole(id, rev)
	}
}

// checkTouch: a transaction of a host deletes or overwrites only keys of claims
// of its own that have ended, or of which it has not notified anybody yet.
func (w *world) checkTouch(key string, old *held1, deleted bool) {
	if w.sending == nil {
		if !deleted {
			w.failf("an operator or a lease has put %s", key)
		}
		return // a lease has ended, or an operator has freed it by force
	}
	if old.host != w.sending.name {
		w.failf("foreign key: %s of %s was touched by %s", key, old.claim, w.sending.name)
	}
	id, _, _ := strings.Cut(old.claim, "@")
	if has := w.sending.has[id]; w.noticed[old.claim] == old.rev && (has == nil || has.Fence.Revision() != old.rev) {
		return
	}
	if !w.free[old.claim] {
		w.failf("foreign key: %s of claim %s, which is held, was touched by %s", key, old.claim, w.sending.name)
	}
}

// takesOver reports whether an event is of a claim that changes hands, as it was to.
func (w *world) takesOver(key string, old *held1, ev *mvccpb.Event) bool {
	to := w.taken[old.claim]
	if ev.Type == mvccpb.Event_DELETE || w.sending == nil || to.to != w.sending.name || to.fence != old.rev {
		return false
	}
	h, _, err := w.owner(key, ev.Kv)
	return err == nil && h.claim == old.claim && h.n == old.n
}

// checkCapacity is I1: after a revision that adds holders, a pool holds no more
// than its limit.
func (w *world) checkCapacity(pool string, rev int64) {
	resp, err := w.etcd.Range(&pb.RangeRequest{Key: []byte(w.keys.Spec(pool))})
	if err != nil || len(resp.Kvs) == 0 {
		w.failf("I1: revision %d adds a holder to pool %s, which does not exist", rev, pool)
		return
	}
	spec, _, _, err := decodeSpec(w.keys.Spec(pool), resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
	if err != nil {
		w.failf("I1: %v", err)
		return
	}
	if spec.Paused {
		w.failf("revision %d adds a holder to pool %s, which is paused", rev, pool)
	}
	used := 0
	for key, h := range w.model {
		if strings.HasPrefix(key, w.keys.Slots(pool)) {
			used += h.n
		}
	}
	if spec.Limit != Unlimited && used > spec.Limit {
		w.failf("I1: at revision %d pool %s holds %d slots of %d", rev, pool, used, spec.Limit)
	}
}

// checkWhole is I2: a claim has all its keys, at one revision, or none.
func (w *world) checkWhole(id string, rev int64) {
	sum := map[string]int{}
	revs := map[int64]bool{}
	var rec *record
	var main slotRef
	keys := map[slotRef]bool{}
	for key, h := range w.model {
		if h.claim != id {
			continue
		}
		k, _ := w.keys.ParsePoolKey(key)
		sum[k.Pool] += h.n
		revs[h.rev] = true
		ref := slotRef{k.Pool, k.Group, k.Index}
		keys[ref] = true
		if kvs := w.under(key); len(kvs) > 0 {
			if _, r, _ := w.owner(key, kvs[0]); r != nil {
				rec, main = r, ref
			}
		}
	}
	if len(sum) == 0 {
		return
	}
	if rec == nil || len(revs) != 1 || !maps.Equal(sum, rec.Pools) {
		w.failf("I2: at revision %d claim %s holds %v at %d revisions", rev, id, sum, len(revs))
		return
	}
	for _, ref := range rec.refs(main) {
		if !keys[ref] {
			w.failf("I2: at revision %d claim %s lists %s, and does not have it", rev, id, ref)
		}
		delete(keys, ref)
	}
	if len(keys) > 0 {
		w.failf("I2: at revision %d claim %s has keys that it does not list: %v", rev, id, keys)
	}
}

// checkFence is I4 and the holder's side of a grant: the fence that a holder was
// learned is the revision of its keys, for as long as they are there.
func (w *world) checkFence(h *simHost, c *Claim) {
	if e := h.core.entries[c.ID]; e != nil && e.claim == c && e.shown.id != "" || c.Fence != store.FenceAt(c.Fence.Revision()) {
		return // it was granted without a write: see [world.checkHolders]
	}
	for key, m := range w.model {
		if m.claim == named(c.ID, h.name) && m.rev != c.Fence.Revision() {
			w.failf("I4: %s got fence %d of claim %s, whose key %s has %d", h.name, c.Fence, c.ID, key, m.rev)
		}
	}
}

// verify has what an operator would see check the store.
func (w *world) verify() {
	s := store.Snapshot{KVs: w.under(w.keys.Pools()), Revision: w.etcd.Revision()}
	for _, v := range newReader(s, w.keys).Verify() {
		w.failf("verify: %s: %s", v.Key, v.Problem)
	}
}

// checkViews compares with the store what every host watches; all watches have delivered.
func (w *world) checkViews() {
	want := newView(w.keys)
	want.load(store.Snapshot{KVs: w.under(w.keys.Pools()), Revision: w.etcd.Revision()})
	for _, h := range w.hosts {
		if diff := viewDiff(h, want); diff != "" {
			w.failf("the view of %s differs from the store: %s", h.name, diff)
		}
	}
}

func viewDiff(h *simHost, want *view) string {
	got, all := h.core.view, true
	for _, name := range sortedKeys(want.pools) {
		g, p := got.pool(name), want.pool(name)
		if f := h.feeds.pools[name]; f == nil || f[1] == nil || !g.whole {
			all = false
			continue
		}
		if g.spec != p.spec || g.specRev != p.specRev || g.used != p.used || g.waiting != p.waiting || g.corrupt != p.corrupt {
			return fmt.Sprintf("pool %s: %+v used %d waiting %d, want %+v used %d waiting %d",
				name, g.spec, g.used, g.waiting, p.spec, p.used, p.waiting)
		}
		for i, wg := range p.groups {
			gg := g.group(i)
			if !maps.Equal(gg.slots, wg.slots) || gg.used != wg.used {
				return fmt.Sprintf("pool %s group %d: %v, want %v", name, i, gg.slots, wg.slots)
			}
			for index := range wg.slots {
				if gg.taken.free(index) == index {
					return fmt.Sprintf("pool %s group %d: index %d counts as free", name, i, index)
				}
			}
		}
	}
	if !all {
		return ""
	}
	if len(got.claims) != len(want.claims) {
		return fmt.Sprintf("%d claims, want %d", len(got.claims), len(want.claims))
	}
	orders := func(v *view) (all []string) {
		for _, wt := range v.waiters {
			all = append(all, wt.order.String())
		}
		return all
	}
	if !slices.Equal(orders(got), orders(want)) {
		return fmt.Sprintf("line %v, want %v", orders(got), orders(want))
	}
	return ""
}

// left reports whether an earlier life of a host has a claim of an id that this one has not
// taken over: it ends with its lease, and the checks do not tell it from another one.
func (w *world) left(h *simHost, id string) bool {
	for kv := range w.etcd.All(w.keys.Pools()) {
		if m := w.model[string(kv.Key)]; m != nil && m.claim == named(id, h.name) && !h.leases.Keeps(store.LeaseID(kv.Lease)) {
			return true
		}
	}
	return false
}

// unaware returns a claim that was released by force, and that its host holds still.
func (w *world) unaware() string {
	for _, h := range w.hosts {
		for id, c := range h.has {
			if c.Fence == w.forced[named(id, h.name)] && c.Context().Err() == nil {
				return id
			}
		}
	}
	return ""
}
