package worker

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/berthhq/berth/coordinator/step"
)

// choice is what [pick] is asked.
type choice struct {
	queues []*queue
	// free is how many instances the worker can take now.
	free int
	// lines is how many of a class stand in line for slots already, by its name.
	lines map[string]int
	// spread is how far down the order the worker looks, in multiples of free: workers
	// that take the same ones take each other's time.
	spread int
	// by is the worker's name, by which workers look at different ones first.
	by string
	// skip tells which are not to be taken: they are the worker's own already, were
	// taken by somebody else, or their runs were canceled.
	skip func(*step.Published) bool
	// slots tells what slots the instances of a class need, and rests which are not to
	// be tried now.
	slots func(*class) map[string]int
	rests func(*class) bool
}

// wanted is an instance with the slots that it needs.
type wanted struct {
	*step.Published
	class string
	slots map[string]int
}

// pick decides which instances a worker takes: of those that need no slots the first, as
// many as it has room for, and of each class that needs some as many as may stand in
// line, if they come before those. It is pure. A worker that is alone keeps the order;
// where several take from one queue each takes a share of those in front.
func pick(c choice) (plain []*step.Published, slotted []wanted) {
	if c.free <= 0 {
		return nil, nil
	}
	spread := max(1, c.spread)
	var lists [][]*step.Published
	var classes []wanted // with all that is the same in a class
	var slottedOf []*class
	for _, q := range c.queues {
		for _, name := range slices.Sorted(maps.Keys(q.classes)) {
			cl := q.classes[name]
			if slots := c.slots(cl); len(slots) == 0 {
				lists = append(lists, cl.all)
			} else if !c.rests(cl) {
				classes, slottedOf = append(classes, wanted{class: name, slots: slots}), append(slottedOf, cl)
			}
		}
	}
	for p := range merged(lists) {
		if len(plain) == c.free*spread {
			break
		}
		if !c.skip(p) {
			plain = append(plain, p)
		}
	}
	// What comes behind those that fill the worker has no room left.
	last := ""
	if len(plain) >= c.free {
		last = plain[c.free-1].Order
	}
	for i, cl := range slottedOf {
		most := c.free - c.lines[cl.name]
		var some []*step.Published
		for _, p := range cl.all {
			if len(some) >= most*spread || last != "" && p.Order > last {
				break
			}
			if !c.skip(p) {
				some = append(some, p)
			}
		}
		for _, p := range c.share(some, most) {
			w := classes[i]
			w.Published = p
			slotted = append(slotted, w)
		}
	}
	return c.share(plain, c.free), slotted
}

// share is what a worker takes of those that it may.
func (c *choice) share(of []*step.Published, most int) []*step.Published {
	if len(of) > max(0, most) {
		slices.SortStableFunc(of, func(a, b *step.Published) int { return cmp.Compare(c.rank(a), c.rank(b)) })
		of = of[:max(0, most)]
	}
	return of
}

// rank is where a worker has an instance among those that it may take.
func (c *choice) rank(p *step.Published) uint32 {
	h := fnv.New32a()
	for _, part := range []string{c.by, p.Order} {
		_, _ = h.Write([]byte(part)) // it never fails
	}
	return h.Sum32()
}

// merged goes through lists that are in order in one order.
func merged(lists [][]*step.Published) func(func(*step.Published) bool) {
	return func(yield func(*step.Published) bool) {
		at := make([]int, len(lists))
		for {
			first := -1
			for i, l := range lists {
				if at[i] < len(l) && (first < 0 || strings.Compare(l[at[i]].Order, lists[first][at[first]].Order) < 0) {
					first = i
				}
			}
			if first < 0 || !yield(lists[first][at[first]]) {
				return
			}
			at[first]++
		}
	}
}
