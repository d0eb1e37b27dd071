package pool

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// queueCheck judges what one revision does to wait queues and by dispatchers, from the keys
// alone:
//
//   - While claims wait for a pool, its key `queued` is there, and only its dispatcher adds
//     claims of it.
//   - A claim of another instance is granted once: its waiter goes, and a notice of it comes
//     that was not there.
//   - A waiter is touched by its own host only, unless it is granted.
//   - Only the dispatcher takes a grant back, and only one that is still to be confirmed, and
//     so was not learned by its holder.
//   - A dispatcher leaves no more than [maxUnacknowledged] of its grants to a host unacknowledged in a pool.
type queueCheck struct {
	w       *world
	added   map[string]map[string]bool // pools by the claim that is granted
	owners  map[string]string          // host by claim
	gone    []*mvccpb.KeyValue         // waiters that are deleted, as they were
	queued  map[string]bool            // pools, before
	by      map[string]string          // hosts of dispatchers by pool, before
	puts    map[string]*notice         // notices that are put
	removed map[string]*notice         // notices that are deleted
	pools   map[string]bool            // touched
}

func (w *world) newQueueCheck(events []*mvccpb.Event) *queueCheck {
	q := &queueCheck{
		w: w, added: map[string]map[string]bool{}, owners: map[string]string{}, queued: maps.Clone(w.queued), by: maps.Clone(w.dispatchers),
		puts: map[string]*notice{}, removed: map[string]*notice{}, pools: map[string]bool{},
	}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		k, err := w.keys.ParsePoolKey(key)
		if err != nil {
			continue
		}
		q.pools[k.Pool] = true
		put := ev.Type == mvccpb.Event_PUT
		switch k.Kind {
		case store.QueuedKey:
			if w.queued[k.Pool] = put; !put {
				delete(w.queued, k.Pool)
			}
		case store.DispatcherKey:
			before, live := w.dispatchers[k.Pool], w.now.Sub(w.dispatched[k.Pool]) < silentAfter
			delete(w.dispatchers, k.Pool)
			if put {
				by, err := decodeDispatcher(key, ev.Kv.Value)
				if err != nil || ev.Kv.Lease == 0 {
					w.failf("dispatcher: %v, on lease %d", err, ev.Kv.Lease)
				}
				if live && before != "" && before != by.host {
					w.failf("%s replaces %s as dispatcher of pool %s, which has put its key %s ago", by.host, before, k.Pool, w.now.Sub(w.dispatched[k.Pool]))
				}
				w.dispatchers[k.Pool], w.dispatched[k.Pool] = by.host, w.now
			}
		case store.NoticeKey:
			if put {
				n, err := decodeNotice(key, ev.Kv.Value)
				if err != nil || w.notices[key] != nil {
					w.failf("notice %s: %v; there was one: %v", key, err, w.notices[key] != nil)
					continue
				}
				n.rev = ev.Kv.ModRevision
				q.puts[named(k.Claim, k.Host)], w.notices[key] = n, n
				w.noticed[named(k.Claim, k.Host)] = n.rev
				q.bounded(key, k.Host)
			} else {
				delete(w.granters, key)
				q.removed[named(k.Claim, k.Host)] = w.notices[key]
				delete(w.notices, key)
			}
		}
	}
	return q
}

// bounded takes a notice to a host, and counts those that its dispatcher has put.
func (q *queueCheck) bounded(key, host string) {
	w := q.w
	if w.sending == nil {
		return
	}
	w.granters[key] = w.sending.name
	in, _ := w.keys.ParsePoolKey(key)
	n := 0
	for other, by := range w.granters {
		if k, err := w.keys.ParsePoolKey(other); err == nil && k.Host == host && k.Pool == in.Pool && by == w.sending.name {
			n++
		}
	}
	if n > maxUnacknowledged {
		w.failf("%s has granted %d claims of %s that are not acknowledged in pool %s", w.sending.name, n, host, in.Pool)
	}
}

// waiter takes the event of a waiter.
func (q *queueCheck) waiter(k store.PoolKey, ev *mvccpb.Event) {
	w := q.w
	o, err := ParseOrder(k.Order)
	if err != nil {
		w.failf("waiter: %v", err)
		return
	}
	key := string(ev.Kv.Key)
	old := w.waiters[key]
	delete(w.waiters, key)
	if ev.Type == mvccpb.Event_PUT {
		w.waiters[key] = ev.Kv
		if h := w.sending; h != nil {
			if wish := h.waits[o.Claim]; wish != nil {
				wish.since = cmp.Or(wish.since, ev.Kv.ModRevision)
			}
		}
	} else if old != nil {
		q.gone = append(q.gone, old)
	}
	if w.sending != nil && !shared(o.Claim) && !strings.HasPrefix(o.Claim, w.sending.name+"-") && (ev.Type == mvccpb.Event_PUT || q.puts[o.Claim] == nil) {
		w.failf("foreign key: waiter %s was touched by %s", o.Claim, w.sending.name)
	}
}

// grants takes a slot that is added for a claim.
func (q *queueCheck) grants(h *held1, pool string) {
	if q.added[h.claim] == nil {
		q.added[h.claim] = map[string]bool{}
	}
	q.added[h.claim][pool] = true
	q.owners[h.claim] = h.host
}

// confirms reports whether an event puts a slot again that a dispatcher has granted under a
// condition, for its owner.
func (q *queueCheck) confirms(key string, old *held1, ev *mvccpb.Event) bool {
	w := q.w
	if w.sending == nil || ev.Type == mvccpb.Event_DELETE || w.sending.name != old.host || w.noticed[old.claim] != old.rev {
		return false
	}
	h, _, err := w.owner(key, ev.Kv)
	id, _, _ := strings.Cut(old.claim, "@")
	return err == nil && h.claim == old.claim && h.n == old.n && w.sending.has[id] == nil
}

// withdraws reports whether an event deletes a slot of a claim that is not confirmed, along
// with its notice.
func (q *queueCheck) withdraws(old *held1, ev *mvccpb.Event) bool {
	n := q.removed[old.claim]
	if q.w.sending == nil || q.w.sending.name == old.host || ev.Type == mvccpb.Event_PUT || n == nil || !n.conditional || n.rev != old.rev ||
		!slices.Contains(slices.Collect(maps.Values(q.by)), q.w.sending.name) {
		return false
	}
	id, _, _ := strings.Cut(old.claim, "@")
	for _, h := range q.w.hosts {
		if has := h.has[id]; h.name == old.host && has != nil && has.Fence.Revision() == old.rev && has.Context().Err() == nil {
			q.w.failf("%s withdraws the grant of %s, which %s holds", q.w.sending.name, old.claim, h.name)
		}
	}
	return true
}

// check judges the revision as a whole.
func (q *queueCheck) check(rev int64) {
	w := q.w
	for claim, pools := range q.added {
		if w.sending == nil {
			break // a restore, or an operator
		}
		first := slices.Sorted(maps.Keys(pools))[0]
		for p := range pools {
			if q.queued[p] && q.by[first] != w.sending.name {
				w.failf("at revision %d %s grants claim %s of pool %s while others wait, and is not its dispatcher: %q is", rev, w.sending.name, claim, p, q.by[first])
			}
		}
		if q.owners[claim] != w.sending.name {
			if q.puts[claim] == nil {
				w.failf("at revision %d %s grants claim %s of %s without a notice", rev, w.sending.name, claim, q.owners[claim])
			}
			if !q.waited(claim) {
				w.failf("at revision %d %s grants claim %s of %s, which does not wait", rev, w.sending.name, claim, q.owners[claim])
			}
		}
	}
	for p := range q.pools {
		if w.sending == nil {
			break
		}
		for key := range w.waiters {
			if strings.HasPrefix(key, w.keys.Waiters(p)) && !w.queued[p] && w.only(key) {
				w.failf("at revision %d %s waits for pool %s, which is not queued", rev, key, p)
			}
		}
	}
}

// only reports whether a waiter is of a claim of one pool.
func (w *world) only(key string) bool {
	k, _ := w.keys.ParsePoolKey(key)
	o, _ := ParseOrder(k.Order)
	v, err := decodeWaiter(key, w.waiters[key].Value, o)
	return err == nil && len(v.Pools) == 1
}

// waited reports whether the waiter of a claim went in this revision.
func (q *queueCheck) waited(claim string) bool {
	id, host, _ := strings.Cut(claim, "@")
	return slices.ContainsFunc(q.gone, func(kv *mvccpb.KeyValue) bool {
		k, _ := q.w.keys.ParsePoolKey(string(kv.Key))
		o, _ := ParseOrder(k.Order)
		return o.Claim == id && (host == "" || o.By == hash(host+"/i"))
	})
}
