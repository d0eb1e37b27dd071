package pool

// MaxGroups is how many slot groups a pool has at most. A claim compares only
// the groups that it touches, so claims in different groups do not conflict.
const MaxGroups = 50

// layout says how a limit is shared out over slot groups.
type layout struct {
	groups   int
	perGroup int // 0: without a capacity
	limit    int
}

// layoutOf returns the layout of a limit. A closed pool has no groups.
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

// unlimitedCapacity stands for no capacity: more than can ever be held.
const unlimitedCapacity = 1 << 40

// capacity of a group: 0 for one that the layout does not have.
func (l layout) capacity(group int) int {
	switch {
	case group < 0 || group >= l.groups:
		return 0
	case l.perGroup == 0:
		return unlimitedCapacity
	case group == l.groups-1:
		return l.limit - l.perGroup*(l.groups-1)
	}
	return l.perGroup
}
