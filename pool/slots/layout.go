package slots

import (
	"hash/fnv"
	"slices"
)

// Unlimited is the limit of a pool without one.
const Unlimited = -1

const (
	// MaxAreas bounds the areas of a pool. A read of all blocks is one range; a put compares the blocks of one area,
	// so claims of many slots make others in 49 of 50 areas lose no race.
	MaxAreas = 50
	// MinArea is the fewest numbers of an area, but for the last one: smaller ones would need a block each.
	MinArea = 256
	// MaxGroups bounds the slot groups of a pool, which spread instances over its numbers.
	MaxGroups = 50
)

// Run is a range of numbers: From to To-1.
type Run struct{ From, To int }

// Len returns how many numbers a run has.
func (r Run) Len() int { return r.To - r.From }

// layout divides the numbers of a pool.
type layout struct{ limit, area, group int }

// layoutOf returns the layout under a limit. A pool without a limit, or without slots, has one area without
// numbers.
func layoutOf(limit int) layout {
	if limit <= 0 {
		return layout{limit: limit}
	}
	return layout{limit: limit, area: max(MinArea, ceil(limit, MaxAreas)), group: ceil(limit, MaxGroups)}
}

func ceil(n, d int) int { return (n + d - 1) / d }

// areas returns how many areas there are.
func (l layout) areas() int {
	if l.area == 0 {
		return 1
	}
	return ceil(l.limit, l.area)
}

// areaOf returns the area of a number.
func (l layout) areaOf(number int) int { return number / l.area }

// areasOf returns the areas of what is held, with the revisions at which their blocks are known; none in a pool without a limit.
func (l layout) areasOf(h Held, known func(area int) int64) (areas []Area) {
	if l.area == 0 {
		return nil
	}
	add := func(area int) {
		if !slices.ContainsFunc(areas, func(a Area) bool { return a.Area == area }) {
			areas = append(areas, Area{area, known(area)})
		}
	}
	for _, n := range h.Numbers {
		add(l.areaOf(n))
	}
	for _, b := range h.Blocks {
		add(b.Area)
	}
	return areas
}

// numbers returns the numbers of an area.
func (l layout) numbers(area int) Run {
	return Run{area * l.area, min(l.limit, (area+1)*l.area)}
}

// first returns the number at which an instance with a hash begins to search: the first of a slot group.
func (l layout) first(hash uint32) int {
	if l.group == 0 {
		return 0
	}
	return int(hash%uint32(ceil(l.limit, l.group))) * l.group
}

// Hash returns the hash of an instance, by which instances are spread over what all of them use.
func Hash(host, instance string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(host + "/" + instance)) // it never fails
	return h.Sum32()
}
