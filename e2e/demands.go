package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// waiter is a demand that exists.
type waiter struct {
	value demandValue
	ref   demandRef
	stamp stamp
	wait  *Wait
	rev   int64 // that has put it, or changed whether it reserves
	// whole: its key is in each of its pools. If not, it does not count.
	whole bool
	// served: slots were taken for it.
	served bool
	// offers are those to it that are open, and offered is when the last one came or went.
	offers  int
	offered time.Time
}

func (w *waiter) owner() instanceID { return w.value.Holder.id() }

func (w *waiter) described() string {
	return "claim " + w.value.Claim + " of " + w.value.Holder.Host + "/" + w.value.Holder.Instance
}

// fits reports whether all that it needs is free.
func (w *waiter) fits(free map[string]int) bool {
	for name, n := range w.value.Pools {
		if free[name] < n {
			return false
		}
	}
	return true
}

// byRank is the order of the wait queue.
func byRank(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.value.Priority, a.value.Priority), cmp.Compare(a.stamp.Revision, b.stamp.Revision),
		cmp.Compare(a.stamp.Index, b.stamp.Index), cmp.Compare(a.value.Claim, b.value.Claim), cmp.Compare(a.name(), b.name()))
}

// name is that of a demand: the same for two only if they are the same.
func (w *waiter) name() string {
	return fmt.Sprintf("%s/%s %v", w.value.Holder.Host, w.value.Holder.Instance, w.ref)
}

// demandsOf is a demands key that exists.
type demandsOf struct {
	created int64
	first   string // in a key that refers to that of the first pool
	list    []*waiter
}

// demandsSeen is the demands that exist.
type demandsSeen struct {
	// keys are those of each name that an instance gave its demands, by pool.
	keys    map[demandsName]map[string]*demandsOf
	touched map[demandsName]bool
	waits   []*Wait
	waiting map[waitOf]*Wait
	stands  map[*Wait]int // how many demands a wait has
	line    []*waiter     // in order
	left    []*waiter     // waiters that the revision at hand took out
}

type demandsName struct {
	of   instanceID
	name int
}

type waitOf struct {
	of    instanceID
	claim string
}

func newDemandsSeen() demandsSeen {
	return demandsSeen{
		keys: map[demandsName]map[string]*demandsOf{}, touched: map[demandsName]bool{},
		waiting: map[waitOf]*Wait{}, stands: map[*Wait]int{},
	}
}

// beginRevision forgets what the one before has touched.
func (s *demandsSeen) beginRevision() {
	clear(s.touched)
	s.left = nil
}

// forget drops the waits that have ended.
func (s *demandsSeen) forget() {
	s.waits = slices.DeleteFunc(s.waits, func(w *Wait) bool { return w.To != 0 })
}

// event takes an event of a demands key.
func (s *demandsSeen) event(k berthKey, put bool, kv *mvccpb.KeyValue) error {
	name := demandsName{k.owner(), k.Number}
	s.touched[name] = true
	all := s.keys[name]
	if all == nil {
		all = map[string]*demandsOf{}
		s.keys[name] = all
	}
	old := all[k.Pool]
	if old == nil {
		old = &demandsOf{}
	}
	var v demandsValue
	var err error
	now := &demandsOf{created: kv.CreateRevision}
	if put {
		v, err = readDemands(k, kv.Value)
	}
	if all[k.Pool] = now; !put || err != nil {
		delete(all, k.Pool)
	}
	now.first = v.First
	for _, d := range v.Demands {
		now.list = append(now.list, s.stand(k, d, kv, old))
	}
	for _, w := range old.list {
		if !slices.Contains(now.list, w) {
			s.leave(w)
		}
	}
	return err
}

// stand returns the waiter of a demand: that of the key before, if it is the same.
func (s *demandsSeen) stand(k berthKey, d demandValue, kv *mvccpb.KeyValue, old *demandsOf) *waiter {
	w := &waiter{value: d, ref: demandRef{k.Pool, k.Number, kv.CreateRevision, d.Index}, rev: kv.ModRevision}
	w.value.Holder.Host, w.value.Holder.Instance = k.Host, k.Instance
	if w.stamp = (stamp{kv.CreateRevision, d.Index}); d.Stamp != nil {
		w.stamp = *d.Stamp
	}
	for _, x := range old.list {
		if byRank(x, w) == 0 {
			if x.value.Reserve != d.Reserve {
				x.rev = w.rev
			}
			x.value = w.value
			x.reserves(w.rev)
			return x
		}
	}
	of := waitOf{k.owner(), d.Claim}
	if w.wait = s.waiting[of]; w.wait == nil {
		w.wait = &Wait{Claim: d.Claim, Host: k.Host, From: kv.ModRevision}
		s.waiting[of] = w.wait
		s.waits = append(s.waits, w.wait)
	}
	s.stands[w.wait]++
	w.reserves(w.rev)
	i, _ := slices.BinarySearchFunc(s.line, w, byRank)
	s.line = slices.Insert(s.line, i, w)
	return w
}

// reserves records from when on slots are kept for a waiter.
func (w *waiter) reserves(rev int64) {
	if w.value.Reserve && w.wait.Reserved == 0 {
		w.wait.Reserved = rev
	}
}

// leave takes a demand out.
func (s *demandsSeen) leave(w *waiter) {
	if i, ok := slices.BinarySearchFunc(s.line, w, byRank); ok {
		s.line = slices.Delete(s.line, i, i+1)
	}
	s.left = append(s.left, w)
	s.stands[w.wait]--
}

// endWaits ends the waits of those that left in a revision.
func (s *demandsSeen) endWaits(rev int64) {
	for _, w := range s.left {
		if s.stands[w.wait] == 0 {
			w.wait.To = rev
			delete(s.stands, w.wait)
			delete(s.waiting, waitOf{w.owner(), w.wait.Claim})
		}
	}
}

// waiterOf returns the waiter of a demand, nil if it is not there.
func (s *demandsSeen) waiterOf(of instanceID, ref demandRef) *waiter {
	d := s.keys[demandsName{of, ref.Name}][ref.Pool]
	if d == nil {
		return nil
	}
	for _, w := range d.list {
		if w.ref == ref {
			return w
		}
	}
	return nil
}

// wait reports whether demands wait for a pool.
func (s *demandsSeen) wait(pool string) bool {
	return slices.ContainsFunc(s.line, func(w *waiter) bool { return w.value.Pools[pool] > 0 })
}

// checkDemands judges the demands that the revision has touched, and ends the waits of those that left.
func (h *History) checkDemands() {
	for name := range h.demands.touched {
		h.checkComplete(name)
	}
	h.demands.endWaits(h.rev)
}

// checkComplete checks that demands are in each of their pools. Those in a pool that was deleted went with it, and their owner
// deletes the others later.
func (h *History) checkComplete(name demandsName) {
	all := h.demands.keys[name]
	for pool, d := range all {
		if d.first != "" {
			main := all[d.first]
			if !d.pairs(main, h.pool(d.first)) || main != nil && !main.needs(pool) {
				h.violate(Queued, "demands %d of %v in pool %s refer to pool %s, and are not there", name.name, name.of, pool, d.first)
			}
			continue
		}
		for _, w := range d.list {
			w.whole = true
			for other := range w.value.Pools {
				ref := all[other]
				w.whole = w.whole && ref != nil && ref.created == d.created
				if !d.pairs(ref, h.pool(other)) || other != pool && ref != nil && ref.first != pool {
					h.violate(Queued, "claim %s of %v waits in pool %s, and not in %s", w.value.Claim, name.of, pool, other)
					return
				}
			}
		}
	}
	h.demands.dropEmpty(name)
}

// dropEmpty forgets a name that has no keys.
func (s *demandsSeen) dropEmpty(name demandsName) {
	if len(s.keys[name]) == 0 {
		delete(s.keys, name)
	}
}

// needs reports whether the demands of a key, which all have the same pools, are in a pool.
func (d *demandsOf) needs(pool string) bool {
	return len(d.list) > 0 && d.list[0].value.Pools[pool] > 0
}

// pairs reports whether a demands key goes with another one in a pool, or need not.
func (d *demandsOf) pairs(other *demandsOf, pool *poolState) bool {
	return other != nil && other.created == d.created || pool.deleted >= d.created
}
