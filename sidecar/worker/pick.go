package worker

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// lookAhead is how far down the order a worker looks for instances that it comes first
// for, in multiples of what the workers of the queue have together if each has as much
// room: so that it finds its own behind those of workers that are slower.
const lookAhead = 4

// choice is what [pick] is asked.
type choice struct {
	now    time.Time
	queues []*queue
	peers  *peers
	// turn is how long an instance is left to the worker that comes first for it.
	turn time.Duration
	// help tells in which lists the worker takes of others.
	help *help
	// room is how many instances the worker can have, and free how many it can take now.
	room, free int
	// lines are those of a class that stand in line for slots already, by its name; the
	// least urgent first.
	lines map[string][]standing
	// skip tells which are not to be taken: they are the worker's own already, were
	// taken by somebody else, or their runs were canceled.
	skip func(*offer) bool
	// slots tells what slots the instances of a class need, and rests which are not to
	// be tried now.
	slots func(*class) map[string]int
	rests func(*class) bool
}

// standing is an instance that stands in line.
type standing struct {
	id       store.StepID
	priority int
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
	// yields are those that are to leave the line: more urgent ones come in their place.
	yields []store.StepID
	// again tells that there are others, which another worker comes first for until
	// their turn has passed.
	again bool
	// short are the lists that had too little of the worker's own.
	short map[string]bool
}

// pick decides which instances a worker takes: of those that need no slots the first, as
// many as it has room for, and of each class that needs some as many as may stand in
// line, if they come before those, or if they are more urgent than some that stand there.
// It is pure. A worker that is alone keeps the order; where several take from one queue
// each takes first what it comes first for, among those of one priority.
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
	p.short = map[string]bool{}
	plain := c.share("", merged(lists), c.free)
	p.plain, p.again, p.short[""] = plain.taken, plain.again, plain.short
	for i, cl := range slottedOf {
		stand := c.lines[cl.name]
		if len(stand) >= c.free && stand[0].priority >= cl.all[0].Priority {
			continue // nobody comes before those that stand there
		}
		// What comes behind those that fill the worker has no room left.
		some := c.share(cl.name, before(cl.all, plain.last), c.free)
		free := c.free - len(stand)
		for _, o := range some.taken {
			if free <= 0 {
				if len(stand) == 0 || stand[0].priority >= o.Priority {
					break
				}
				p.yields, stand = append(p.yields, stand[0].id), stand[1:]
			}
			free--
			w := classes[i]
			w.offer = o
			p.slotted = append(p.slotted, w)
		}
		p.again, p.short[cl.name] = p.again || some.again, p.short[cl.name] || some.short
	}
	maps.DeleteFunc(p.short, func(_ string, short bool) bool { return !short })
	return p
}

// shared is a worker's share of a list.
type shared struct {
	taken []*offer
	// again tells that there are others', and short that there is too little of its own.
	again, short bool
	// last is the place of the one that would fill the worker if it were alone; empty if
	// none would.
	last string
}

// share decides what a worker takes of a list in order, at most so many.
func (c *choice) share(list string, in iter.Seq[*offer], most int) (s shared) {
	if most <= 0 {
		return s
	}
	g := c.grounds(list, in, most)
	var some, tardy []*offer // that it may take; the late ones are asked for when they count
	due, looked, first := 0, 0, 0
	room, others := most, 0 // what is left to those of one priority, and to others above
	settle := func() {
		some = append(some, slices.DeleteFunc(tardy, c.skip)...)
		tardy = nil
	}
	for o := range in {
		why := g.of(o)
		if why <= own && c.skip(o) {
			continue
		}
		if looked > 0 && o.Priority != first {
			// Those above that are others' may be had in a moment: room is kept for them.
			if settle(); len(some) >= most-others {
				break
			}
			room = most - others
		}
		if room < most && len(some) >= room || due == most || looked == g.reach {
			break
		}
		first = o.Priority
		if looked++; looked == most {
			s.last = o.Order
		}
		switch why {
		case theirs: // one that is gone counts for a moment
			others++
		case late:
			tardy = append(tardy, o)
		default:
			some = append(some, o)
			due++
		}
	}
	if due < most {
		settle()
	}
	slices.SortStableFunc(some, g.compare)
	s.taken = some[:min(len(some), room)]
	s.again, s.short = others > 0 && len(s.taken) < most, due < most
	return s
}

// ground is why a worker may take an instance, the strongest first.
type ground int

const (
	// overdue: another worker comes first for it, and has left it for so long that what
	// is the worker's own was published [longTurn] later.
	overdue ground = iota
	// own: the worker comes first for it.
	own
	// late: another worker comes first for it, and its turn has passed. The worker helps,
	// or has only what is less urgent.
	late
	// theirs: another worker comes first for it.
	theirs
)

// grounds are those on which a worker takes of a list.
type grounds struct {
	*choice
	helps bool
	reach int    // how many it looks at
	first *offer // of its own, nil if there is none
}

func (c *choice) grounds(list string, in iter.Seq[*offer], most int) *grounds {
	g := &grounds{choice: c, helps: c.help.gives(list, c.now, c.turn)}
	for _, q := range c.queues {
		g.reach = max(g.reach, max(most, c.room)*lookAhead*c.peers.count(q.name))
	}
	looked := 0
	for o := range in {
		if looked++; looked > g.reach {
			break
		}
		if c.peers.mine(o) && !c.skip(o) {
			g.first = o
			break
		}
	}
	return g
}

func (g *grounds) of(o *offer) ground {
	switch {
	case g.peers.mine(o):
		return own
	case g.first != nil && g.first.seen.Sub(o.seen) > longTurn:
		return overdue
	case g.now.Sub(o.seen) >= g.turn && (g.helps || g.first != nil && o.Priority > g.first.Priority):
		return late
	}
	return theirs
}

// compare puts what is due in order, and what is late in an order that each worker has
// for itself, so that it meets nobody there: among those of one priority.
func (g *grounds) compare(a, b *offer) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	why, other := g.of(a), g.of(b)
	switch {
	case why != other:
		return cmp.Compare(why, other)
	case why == late:
		return cmp.Compare(g.peers.rank(a), g.peers.rank(b))
	}
	return strings.Compare(a.Order, b.Order)
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
	if len(lists) == 1 {
		return slices.Values(lists[0])
	}
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
