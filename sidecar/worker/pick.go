package worker

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// lookAhead is how far down the order a worker looks for instances that it comes first
// for, in multiples of what the workers of the queue would take together if each had as
// much room: it misses all of them once in a hundred times or less.
const lookAhead = 4

// choice is what [pick] is asked.
type choice struct {
	now    time.Time
	queues []*queue
	peers  *peers
	// turn is how long an instance is left to the worker that comes first for it.
	turn time.Duration
	// free is how many instances the worker can take now.
	free int
	// lines is how many of a class stand in line for slots already, by its name.
	lines map[string]int
	// skip tells which are not to be taken: they are the worker's own already, were
	// taken by somebody else, or their runs were canceled.
	skip func(*offer) bool
	// slots tells what slots the instances of a class need, and rests which are not to
	// be tried now.
	slots func(*class) map[string]int
	rests func(*class) bool
}

// wanted is an instance with the slots that it needs.
type wanted struct {
	*offer
	class string
	slots map[string]int
}

// picked is what [pick] decides.
type picked struct {
	plain   []*offer
	slotted []wanted
	// again tells that there are others, which another worker comes first for until
	// their turn has passed.
	again bool
}

// pick decides which instances a worker takes: of those that need no slots the first, as
// many as it has room for, and of each class that needs some as many as may stand in
// line, if they come before those. It is pure. A worker that is alone keeps the order;
// where several take from one queue each takes first what it comes first for, among those
// of one priority.
func pick(c choice) (p picked) {
	if c.free <= 0 {
		return p
	}
	var lists [][]*offer
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
	plain := c.share(merged(lists), c.free)
	p.plain, p.again = plain.taken, plain.again
	for i, cl := range slottedOf {
		// What comes behind those that fill the worker has no room left.
		some := c.share(before(cl.all, plain.last), c.free-c.lines[cl.name])
		for _, o := range some.taken {
			w := classes[i]
			w.offer = o
			p.slotted = append(p.slotted, w)
		}
		p.again = p.again || some.again
	}
	return p
}

// shared is a worker's share of a list.
type shared struct {
	taken []*offer
	again bool
	// last is the place of the one that would fill the worker if it were alone; empty if
	// none would.
	last string
}

// share decides what a worker takes of a list in order, at most so many.
func (c *choice) share(in iter.Seq[*offer], most int) (s shared) {
	if most <= 0 {
		return s
	}
	var some []*offer // that it may take
	own, looked, first := 0, 0, 0
	room, others := most, 0 // what is left to those of one priority, and to others above
	for o := range in {
		mine := c.peers.mine(o)
		late := c.now.Sub(o.seen) >= c.turn
		if (mine || late) && c.skip(o) {
			continue
		}
		if looked > 0 && o.Priority != first {
			// Those above that are others' may be had in a moment: room is kept for them.
			if room = most - others; len(some) >= room {
				break
			}
		}
		if room < most && len(some) >= room || own == most || looked == most*lookAhead*c.peers.count(o.Queue) {
			break
		}
		first = o.Priority
		if looked++; looked == most {
			s.last = o.Order
		}
		switch {
		case mine:
			own++
			some = append(some, o)
		case late:
			some = append(some, o)
		case !c.skip(o):
			others++
			s.again = true
		}
	}
	if own < len(some) {
		slices.SortStableFunc(some, c.compare)
	}
	s.taken = some[:min(len(some), most)]
	s.again = s.again && len(s.taken) < most
	return s
}

// compare puts those first that the worker comes first for, in their order, among those
// of one priority; the others in an order of its own, so that it meets nobody there.
func (c *choice) compare(a, b *offer) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	switch mine, theirs := c.peers.mine(a), c.peers.mine(b); {
	case mine && theirs:
		return strings.Compare(a.Order, b.Order)
	case mine:
		return -1
	case theirs:
		return 1
	}
	return cmp.Compare(c.peers.rank(a), c.peers.rank(b))
}

// before goes through a list up to a place; through all of it if that is empty.
func before(list []*offer, last string) iter.Seq[*offer] {
	return func(yield func(*offer) bool) {
		for _, o := range list {
			if last != "" && o.Order > last || !yield(o) {
				return
			}
		}
	}
}

// merged goes through lists that are in order in one order.
func merged(lists [][]*offer) iter.Seq[*offer] {
	return func(yield func(*offer) bool) {
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
