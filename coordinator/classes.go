package coordinator

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/berthhq/berth/coordinator/run"
)

// bound is what a limit allows: to its tag, or to one value of it.
type bound struct {
	limit int    // index in the limits
	value string // of the tag, if each has a bound of its own
}

// classes are the queued runs by what limits see of them. The runs of a class meet
// the same bounds, so they may go, or are held up, alike: a plan judges classes,
// and few runs. It is about what is limited, not about the numbers.
//
// Bounds and classes are numbered while a queued run has them. The numbers are
// given anew then, so that they stay as few as there are runs.
type classes struct {
	limits []run.TagLimit
	index  map[run.TagLimit]int // of limits, by what is limited
	bounds numbers[bound]
	ids    numbers[string] // of classes, by the numbers of their bounds
	met    [][]int32       // by class: the bounds, in the order of the limits
}

func newClasses(l run.Limits) *classes {
	c := &classes{
		limits: slices.Clone(l.Tags), index: map[run.TagLimit]int{},
		bounds: newNumbers[bound](), ids: newNumbers[string](),
	}
	for i, t := range l.Tags {
		c.index[what(t)] = i
	}
	return c
}

// what is limited, whatever the number.
func what(t run.TagLimit) run.TagLimit {
	t.Limit = 0
	return t
}

// are tells whether the classes are those of limits.
func (c *classes) are(l run.Limits) bool {
	return slices.EqualFunc(c.limits, l.Tags, func(a, b run.TagLimit) bool { return what(a) == what(b) })
}

// size is above the number of each class.
func (c *classes) size() int { return c.ids.size() }

// meet appends the bounds that a run with such tags meets, in the order of the
// limits.
func (c *classes) meet(to []bound, tags map[string]string) []bound {
	if len(c.index) == 0 {
		return to
	}
	for key, value := range tags {
		if i, ok := c.index[run.TagLimit{Key: key, Value: value}]; ok {
			to = append(to, bound{limit: i})
		}
		if i, ok := c.index[run.TagLimit{Key: key}]; ok {
			to = append(to, bound{limit: i})
		}
		if i, ok := c.index[run.TagLimit{Key: key, PerUniqueValue: true}]; ok {
			to = append(to, bound{limit: i, value: value})
		}
	}
	slices.SortFunc(to, func(a, b bound) int { return cmp.Compare(a.limit, b.limit) })
	return to
}

// add returns the class of a run that is queued now.
func (c *classes) add(tags map[string]string) int32 {
	var room [4]bound
	met := c.meet(room[:0], tags)
	ids := make([]int32, len(met))
	name := make([]byte, 0, 4*len(met))
	for i, b := range met {
		ids[i], _ = c.bounds.use(b)
		name = binary.LittleEndian.AppendUint32(name, uint32(ids[i]))
	}
	class, first := c.ids.use(string(name))
	switch {
	case !first:
		c.leave(ids) // a class uses its bounds once
	case int(class) == len(c.met):
		c.met = append(c.met, ids)
	default:
		c.met[class] = ids
	}
	return class
}

// remove takes a run out of its class.
func (c *classes) remove(class int32) {
	if last := c.ids.leave(class); last {
		c.leave(c.met[class])
		c.met[class] = nil
	}
}

func (c *classes) leave(bounds []int32) {
	for _, b := range bounds {
		c.bounds.leave(b)
	}
}

// numbers are given to keys for as long as somebody uses them.
type numbers[K comparable] struct {
	ids  map[K]int32
	keys []K   // by number
	uses []int // by number
	free []int32
}

func newNumbers[K comparable]() numbers[K] { return numbers[K]{ids: map[K]int32{}} }

// size is above every number.
func (n *numbers[K]) size() int { return len(n.keys) }

// use returns the number of a key, and whether this is its first use.
func (n *numbers[K]) use(key K) (id int32, first bool) {
	id, ok := n.ids[key]
	switch last := len(n.free) - 1; {
	case ok:
		n.uses[id]++
		return id, false
	case last >= 0:
		id, n.free = n.free[last], n.free[:last]
		n.keys[id], n.uses[id] = key, 1
	default:
		id = int32(len(n.keys))
		n.keys, n.uses = append(n.keys, key), append(n.uses, 1)
	}
	n.ids[key] = id
	return id, true
}

// leave ends a use of a number, and tells whether it was the last one.
func (n *numbers[K]) leave(id int32) (last bool) {
	n.uses[id]--
	if n.uses[id] > 0 {
		return false
	}
	delete(n.ids, n.keys[id])
	var none K
	n.keys[id] = none
	n.free = append(n.free, id)
	return true
}
