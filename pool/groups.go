package pool

// MaxGroups is how many slot groups a pool has at most. A claim compares only
// the groups that it touches, so claims in different groups do not conflict.
const MaxGroups = 50

// layout says how a limit is shared out over slot groups.
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

// unlimitedCapacity stands for no capacity: more than can ever be held.
const unlimitedCapacity = 1 << 40

// capacity of a group: 0 for one that the layout does not have.
func (l layout) capacity(group int) int {
	switch {
	case group < 0 || group >= l.groups:
		return 0
	case l.perGroup == 0:
		return unlimitedCapacity
	case l.spread && group < l.limit%l.groups:
		return l.perGroup + 1
	case !l.spread && group == l.groups-1:
		return l.limit - l.perGroup*(l.groups-1)
	}
	return l.perGroup
}
