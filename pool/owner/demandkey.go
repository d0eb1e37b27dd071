package owner

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// keyState says what is known of a demands key.
type keyState int

const (
	absent  keyState = iota // it is not in etcd
	placed                  // it is, since the revision that created it
	moving                  // a transaction that puts or deletes it is under way
	removed                 // it is not in use any longer
)

// demandKey is demands that share a key in each of their pools.
type demandKey struct {
	pools   []string
	name    int
	created int64 // 0 if it is not known
	partly  bool  // it may be left in some of its pools, and is to be deleted there
	state   keyState
	changed bool          // it is to be put again, or deleted
	lease   store.LeaseID // 0 if its keys are on none
	list    []*demand
}

// live returns its demands that have not ended.
func (k *demandKey) live() (all []*demand) {
	return slices.DeleteFunc(slices.Clone(k.list), func(d *demand) bool { return d.over })
}

// lists reports whether the key may list a demand still.
func (k *demandKey) lists(d *demand) bool { return slices.Contains(k.list, d) }

// add adds a demand.
func (k *demandKey) add(d *demand) {
	index := 0
	if n := len(k.list); n > 0 {
		index = k.list[n-1].index + 1
	}
	k.list = append(k.list, d)
	d.placeIn(k, index)
}

// leased reports whether it is in etcd, and on a lease that is not known to have ended.
func (k *demandKey) leased() bool { return k.state == placed && k.lease != 0 }

// worthPutting reports whether at least half of the demands that it lists have ended, or end.
func (k *demandKey) worthPutting(ending map[*demand]bool) bool {
	left := 0
	for _, d := range k.list {
		if !d.over && !ending[d] {
			left++
		}
	}
	return left*2 <= len(k.list)
}

// demandKeys are the demands keys of an instance.
type demandKeys struct {
	keys           wire.Keys
	host, instance string
	leases         Leases

	byName  map[int]*demandKey
	names   int              // from which on keys are given free ones
	changed todo[*demandKey] // to be put or deleted
	gone    map[string]bool  // pools that keys have left: they may be pending for nobody, which is found out while nobody dispatches
}

// open returns a new key.
func (q *demandKeys) open(pools []string) *demandKey {
	k := &demandKey{pools: pools, name: q.freeName()}
	q.byName[k.name] = k
	q.change(k)
	return k
}

// freeName returns the lowest free name of a key.
func (q *demandKeys) freeName() int {
	name := q.names
	for q.byName[name] != nil {
		name++
	}
	return name
}

// all returns the keys by their names.
func (q *demandKeys) all() []*demandKey {
	return slices.SortedFunc(maps.Values(q.byName), func(a, b *demandKey) int { return cmp.Compare(a.name, b.name) })
}

// demands iterates over the demands that have not ended, by their keys.
func (q *demandKeys) demands() iter.Seq[*demand] {
	return func(yield func(*demand) bool) {
		for _, k := range q.all() {
			for _, d := range k.live() {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// placed returns how many keys are in etcd.
func (q *demandKeys) placed() (n int) {
	for _, k := range q.byName {
		if k.created != 0 {
			n++
		}
	}
	return n
}

// keyOf returns a key as it is in one of its pools.
func (q *demandKeys) keyOf(k *demandKey, pool string) string {
	return q.keys.Demand(wire.DemandKey{Pool: pool, Host: q.host, Instance: q.instance, Name: k.name})
}

// find returns the demand that an offer names, nil if its key does not list it. It is unknown while its key is put for the first
// time.
func (q *demandKeys) find(ref wire.DemandRef) (d *demand, unknown bool) {
	k := q.byName[ref.Name]
	switch {
	case k == nil || k.pools[0] != ref.Pool:
		return nil, false
	case k.created == 0:
		return nil, k.state == moving
	case k.created != ref.Created:
		return nil, false
	}
	i, ok := slices.BinarySearchFunc(k.list, ref.Index, func(d *demand, index int) int { return cmp.Compare(d.index, index) })
	if !ok {
		return nil, false
	}
	return k.list[i], false
}

// change has a key put again, or deleted. It is among those that are changed, or is put aside.
func (q *demandKeys) change(k *demandKey) {
	if !k.changed {
		k.changed = true
		q.changed.add(k)
	}
}

// takeOut takes a demand out of its key, to be put elsewhere with its stamp.
func (q *demandKeys) takeOut(d *demand) {
	k := d.key
	d.unplace()
	k.list = slices.DeleteFunc(k.list, func(o *demand) bool { return o == d })
	q.change(k)
}

// lease puts a key on a lease, if it is on none. It is false while one is being granted.
func (q *demandKeys) lease(k *demandKey) bool {
	if k.lease == 0 {
		id, ok := q.leases.Acquire(pool.WaiterTTL, len(k.pools))
		if !ok {
			return false
		}
		k.lease = id
	}
	return true
}

// spell makes the part of a transaction that puts a key without some demands, or deletes it if none is left.
func (q *demandKeys) spell(it *item, ending map[*demand]bool) {
	k := it.key
	for d := range ending {
		if d.key == k {
			d.keep() // if the outcome is unknown, it may have to be put elsewhere
		}
	}
	it.list = slices.DeleteFunc(k.live(), func(d *demand) bool { return ending[d] })
	list := make([]wire.Demand, len(it.list))
	for i, d := range it.list {
		list[i] = d.wire()
	}
	var values map[string][]byte
	if len(list) > 0 {
		values = wire.EncodeDemands(list)
	}
	for _, p := range k.pools {
		if key := q.keyOf(k, p); k.partly {
			it.remove(key, k.created)
		} else {
			it.move(key, k.created, values[p], k.lease)
		}
	}
	k.state, k.changed = moving, false
}

// moved records that a key was put or deleted in a revision, or is not as it was known.
func (q *demandKeys) moved(it *item, ok bool, revision int64) {
	k := it.key
	switch {
	case ok && len(it.list) == 0:
		q.remove(k)
		return
	case ok:
		k.put(it.list, cmp.Or(k.created, revision))
	case k.created == 0:
		q.rename(k, revision)
	default:
		q.vanished(k)
	}
	q.check(k)
}

// put records that a key was put with some demands, and was created at a revision. Those that were put elsewhere meanwhile are no
// longer its own.
func (k *demandKey) put(list []*demand, created int64) {
	k.state, k.created = placed, created
	k.list = slices.DeleteFunc(slices.Clone(list), func(d *demand) bool { return d.key != k })
}

// stay records that a transaction with a key was not carried out.
func (q *demandKeys) stay(k *demandKey) {
	if k.state = absent; k.created != 0 {
		k.state = placed
	}
	q.change(k)
	q.check(k)
}

// check has a key put again if it has to be, after a transaction with it.
func (q *demandKeys) check(k *demandKey) {
	if k.lease == 0 && k.created != 0 || k.worthPutting(nil) { // its lease has ended meanwhile
		q.change(k)
	}
}

// reads returns the operations that read a key in each of its pools.
func (q *demandKeys) reads(k *demandKey) (all []*pb.RequestOp) {
	for _, p := range k.pools {
		all = append(all, store.Get(q.keyOf(k, p)))
	}
	return all
}

// resolve records what is known of a key after a transaction whose outcome was unknown, by the responses to its reads. It is put
// again.
func (q *demandKeys) resolve(it *item, responses []*pb.ResponseOp) {
	k := it.key
	whole, created, other := true, int64(0), int64(0)
	for _, r := range responses {
		kvs := r.GetResponseRange().Kvs
		switch {
		case len(kvs) == 0:
			whole = false
		case k.created != 0 && kvs[0].CreateRevision == k.created, k.created == 0 && it.puts(kvs[0]):
			created = kvs[0].CreateRevision
		default:
			whole, other = false, kvs[0].ModRevision
		}
	}
	switch {
	case k.partly:
		q.stay(k)
	case whole:
		k.put(k.list, created)
	case k.created == 0 && created == 0 && other != 0:
		q.rename(k, other)
	case created == 0:
		q.vanish(k)
	default:
		k.created = created
		q.vanished(k)
	}
	q.change(k)
}

// spread is among how many names the first one is chosen if one is in use: half of those that there are.
const spread = 500_000

// rename has a key put under another name: another one has its own, as a revision has shown. It is of an earlier process, of before a
// restore of etcd, or of someone who may have put many: so the next name is one that could not be known before.
func (q *demandKeys) rename(k *demandKey, revision int64) {
	q.names = int(slots.Hash(strconv.Itoa(k.name), strconv.FormatInt(revision, 10)) % spread)
	delete(q.byName, k.name)
	k.name = q.freeName()
	q.byName[k.name] = k
	q.stay(k)
}

// vanish records that a key is not in etcd: it is put again. Its demands keep their stamps.
func (q *demandKeys) vanish(k *demandKey) {
	for _, d := range k.list {
		d.keep()
	}
	k.state, k.created, k.partly, k.list = absent, 0, false, k.live()
	q.change(k)
}

// vanished records that a key is not in etcd as it was known. One of several pools was deleted in some of them only, as is done
// with a pool: what may be left of it is deleted, and its demands are put in another one.
func (q *demandKeys) vanished(k *demandKey) {
	was := k.created
	if q.vanish(k); len(k.pools) == 1 || was == 0 {
		return
	}
	if len(k.list) > 0 {
		other := q.open(k.pools)
		for _, d := range k.list {
			other.add(d)
		}
	}
	k.state, k.created, k.partly, k.list = placed, was, true, nil
}

// remove forgets a key that is not in etcd.
func (q *demandKeys) remove(k *demandKey) {
	delete(q.byName, k.name)
	if k.state, k.list = removed, nil; k.lease != 0 {
		q.leases.Release(k.lease, len(k.pools))
	}
	q.leave(k.pools)
}

// leave records pools that may be pending for nobody.
func (q *demandKeys) leave(pools []string) {
	for _, p := range pools {
		q.gone[p] = true
	}
}

// forgetGone forgets some of these pools.
func (q *demandKeys) forgetGone(pools []string) {
	for _, p := range pools {
		delete(q.gone, p)
	}
}

// forgetAllGone forgets all of them.
func (q *demandKeys) forgetAllGone() { clear(q.gone) }

// leaseLost records that a lease has ended. The keys on it may be in etcd still, if only this instance believes that: they are put
// on another one where they are, so that what is offered to their demands holds.
func (q *demandKeys) leaseLost(id store.LeaseID) {
	for _, k := range q.all() {
		if k.lease == id {
			if k.lease = 0; k.state != moving {
				q.check(k)
			}
		}
	}
}

// restored has all keys put again.
func (q *demandKeys) restored() {
	for _, k := range q.all() {
		if k.state != moving {
			q.vanish(k)
		}
	}
}

// polled records which keys some pools had at a revision. What is gone was deleted by others, and is put again.
func (q *demandKeys) polled(pools []string, created map[string]int64, revision int64) {
	for _, k := range q.all() {
		gone := 0
		for _, p := range k.pools {
			if slices.Contains(pools, p) && created[q.keyOf(k, p)] != k.created {
				gone++
			}
		}
		switch {
		case gone == 0, k.state != placed, k.partly, k.created > revision:
		case gone == len(k.pools):
			q.vanish(k)
		default:
			q.vanished(k)
		}
	}
}
