package pool

import "github.com/berthhq/berth/pool/admit"

import "math/bits"

// placed is one slot key that a claim takes, with its number of slots.
type placed struct {
	ref slotRef
	n   int
}

// groupRef names one slot group.
type groupRef struct {
	pool  *poolView
	group int
}

// placer picks the slot keys of the claims of one batch: on top of the view, of
// what it picked before, and of what the batch gives back.
type placer struct {
	view  *view
	pools map[*poolView]*poolOverlay
	// othersWait is set if other hosts have waiters, and so pick slots at the same
	// time as this one.
	othersWait bool
}

// poolOverlay is what a batch does to a pool.
type poolOverlay struct {
	used   int // more than the view says
	groups map[int]*groupOverlay
	// freed are groups that the batch gives slots back in: they go first,
	// since their keys can be overwritten in place.
	freed []int
	// current is the group that serves this batch, -1 before the first.
	current int
}

// groupOverlay is what a batch does to a group.
type groupOverlay struct {
	used  int   // more than the view says
	next  int   // indexes below are taken by this batch
	freed []int // indexes that the batch gives back
}

func newPlacer(v *view) *placer {
	return &placer{view: v, pools: map[*poolView]*poolOverlay{}}
}

func (pl *placer) overlay(p *poolView) *poolOverlay {
	o := pl.pools[p]
	if o == nil {
		o = &poolOverlay{groups: map[int]*groupOverlay{}, current: -1}
		pl.pools[p] = o
	}
	return o
}

func (o *poolOverlay) group(g int) *groupOverlay {
	og := o.groups[g]
	if og == nil {
		og = &groupOverlay{}
		o.groups[g] = og
	}
	return og
}

// free counts a slot as given back by this very batch.
func (pl *placer) free(s placed) {
	p := pl.view.pool(s.ref.pool)
	o := pl.overlay(p)
	og := o.group(s.ref.group)
	o.used -= s.n
	og.used -= s.n
	og.freed = append(og.freed, s.ref.index)
	o.freed = append(o.freed, s.ref.group)
}

// place picks slot keys for n slots of each pool, starting from a group that
// differs by host. It returns nil if they do not fit, and then nothing is taken.
func (pl *placer) place(needs []Need, start uint32) []placed {
	for _, need := range needs {
		p := pl.view.pool(need.Pool)
		if p.spec.Limit != Unlimited && p.used+pl.overlay(p).used+need.N > p.spec.Limit {
			return nil
		}
	}
	var all []placed
	for _, need := range needs {
		p := pl.view.pool(need.Pool)
		o := pl.overlay(p)
		for missing := need.N; missing > 0; {
			g := pl.pick(p, o, missing, start)
			if g < 0 {
				// Only an over-full group hides free slots of the pool, and the
				// other groups then have that much more: see [poolView.overfull].
				pl.undo(all)
				return nil
			}
			s := pl.takeFrom(p, o, g, missing)
			all = append(all, s)
			missing -= s.n
		}
	}
	return all
}

// takeFrom takes up to n slots as one key of a group that has free slots.
func (pl *placer) takeFrom(p *poolView, o *poolOverlay, g, n int) placed {
	og, gv := o.group(g), p.group(g)
	capacity := p.layout.capacity(g)
	n = min(n, capacity-gv.used-og.used)
	var index int
	if last := len(og.freed) - 1; last >= 0 && og.freed[last] < capacity {
		index = og.freed[last]
		og.freed = og.freed[:last]
	} else {
		index = gv.taken.free(og.next)
		og.next = index + 1
	}
	og.used += n
	o.used += n
	return placed{ref: slotRef{p.name, g, index}, n: n}
}

// undo gives back the slots that were picked. Their indexes stay unused in this
// batch.
func (pl *placer) undo(slots []placed) {
	for _, s := range slots {
		o := pl.overlay(pl.view.pool(s.ref.pool))
		o.used -= s.n
		o.group(s.ref.group).used -= s.n
	}
}

// keysPerLevel is by how many keys groups may differ before a claim goes to the
// emptier one: enough to serve a whole batch from one group, and so with one
// compare; few enough to keep the range that is compared short.
const keysPerLevel = 64

// pick returns a group with free slots, -1 if there is none: one that the batch gives
// slots back in, else the group that served the last claim of this batch, else
// the best one; one in which all fit is preferred.
func (pl *placer) pick(p *poolView, o *poolOverlay, n int, start uint32) int {
	if !pl.othersWait {
		if g := pl.favourite(p, o, n); g >= 0 {
			return g
		}
	}
	best, bestRank := -1, int64(0)
	for i := range p.layout.groups {
		g := (int(start%uint32(p.layout.groups)) + i) % p.layout.groups
		free := pl.freeIn(p, o, g)
		if free <= 0 {
			continue
		}
		rank := pl.rank(p.group(g), o.groups[g])
		if free < n {
			rank += 1 << 61
		}
		if best < 0 || rank < bestRank {
			best, bestRank = g, rank
		}
	}
	o.current = best
	return best
}

// favourite returns a group that costs the batch least, -1 if there is none.
func (pl *placer) favourite(p *poolView, o *poolOverlay, n int) int {
	for len(o.freed) > 0 {
		g := o.freed[len(o.freed)-1]
		if pl.freeIn(p, o, g) > 0 && len(o.group(g).freed) > 0 {
			return g
		}
		o.freed = o.freed[:len(o.freed)-1]
	}
	if o.current >= 0 && pl.freeIn(p, o, o.current) >= n {
		return o.current
	}
	return -1
}

// rank returns how good a group is; less is better. Among equals the first from the
// host's start on is taken, which keeps hosts apart.
//
// With waiters of others, it is the group whose slots were freed first: so the n-th
// waiter takes the n-th slot to become free, and all hosts know which that is,
// though some have seen less than others. What this very batch gives back comes
// last: no other host knows of it. Without others, it is the group with the fewest
// keys, in steps of keysPerLevel.
func (pl *placer) rank(g *groupView, o *groupOverlay) int64 {
	switch {
	case !pl.othersWait:
		return int64(len(g.slots) / keysPerLevel)
	case o != nil && len(o.freed) > 0:
		return 1 << 60
	}
	return g.freedRev
}

func (pl *placer) freeIn(p *poolView, o *poolOverlay, g int) int {
	free := p.layout.capacity(g)
	if g < len(p.groups) {
		free -= p.groups[g].used
	}
	if og := o.groups[g]; og != nil {
		free -= og.used
	}
	return free
}

// MaxGroups is how many slot groups a pool has at most. A claim compares only
// the groups that it touches, so claims in different groups do not conflict.
const MaxGroups = 50

// layout is how a limit is divided into slot groups.
type layout struct {
	groups   int
	perGroup int // 0: without a capacity
	limit    int
	// spread: the limit is spread evenly. The first groups have one slot more than
	// perGroup, as many as it takes. Else the last group has the rest.
	spread bool
}

// layoutOf returns the layout of a new pool with a limit. A closed pool has no groups.
func layoutOf(limit int) layout {
	switch {
	case limit == Unlimited:
		return layout{groups: MaxGroups, limit: limit}
	case limit <= 0:
		return layout{}
	}
	per := (limit + MaxGroups - 1) / MaxGroups
	return layout{groups: (limit + per - 1) / per, perGroup: per, limit: limit}
}

// spreadOver returns the layout that spreads a limit over so many groups, of which each
// gets at least one slot.
func spreadOver(limit, groups int) layout {
	return layout{groups: groups, perGroup: limit / groups, limit: limit, spread: true}
}

// change returns the layout of a pool with this layout whose limit changes. It takes as
// little as possible from the groups that there are: a group that holds more than its
// capacity has every claim compare the whole pool until it has drained. So a limit that is
// raised closes no group. Where several layouts take as little, it is that of a new pool.
func (l layout) change(limit int) layout {
	best := layoutOf(limit)
	if l.perGroup == 0 || best.perGroup == 0 {
		return best // one of them has no capacities
	}
	least := l.taken(best)
	for n := min(MaxGroups, limit); n > 0 && least > max(0, l.limit-limit); n-- {
		if next := spreadOver(limit, n); l.taken(next) < least {
			best, least = next, l.taken(next)
		}
	}
	return best
}

// taken is how many slots the groups lose in all if another layout comes after this one.
func (l layout) taken(next layout) (slots int) {
	for g := range l.groups {
		slots += max(0, l.capacity(g)-next.capacity(g))
	}
	return slots
}

// capacity of a group: 0 for one that the layout does not have.
func (l layout) capacity(group int) int {
	switch {
	case group < 0 || group >= l.groups:
		return 0
	case l.perGroup == 0:
		return admit.UnlimitedCapacity
	case l.spread && group < l.limit%l.groups:
		return l.perGroup + 1
	case !l.spread && group == l.groups-1:
		return l.limit - l.perGroup*(l.groups-1)
	}
	return l.perGroup
}

// bitset is a set of small numbers, made to find the lowest one that is free.
type bitset []uint64

func (b *bitset) set(i int) {
	for i/64 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) clear(i int) {
	if i/64 < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

// free returns the lowest number from from on that is not in the set.
func (b bitset) free(from int) int {
	for w := from / 64; w < len(b); w++ {
		open := ^b[w]
		if w == from/64 {
			open &= ^uint64(0) << (from % 64)
		}
		if open != 0 {
			return w*64 + bits.TrailingZeros64(open)
		}
	}
	return max(from, len(b)*64)
}
