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

// searchAhead bounds how far down the order a worker searches for the instances that are
// its own, as a multiple of the capacity of all workers of the queue if each has that of
// this worker: so that it finds its own behind those of slower workers.
const searchAhead = 4

// choice is the input of [pick].
type choice struct {
	now    time.Time
	queues []*queue
	peers  *peers
	// turn is how long an instance is left to the worker whose own it is.
	turn time.Duration
	// help states from which lists the worker takes instances of others.
	help *help
	// capacity is how many instances the worker can have, and free how many it can take
	// now.
	capacity, free int
	// waiters are the instances that wait for slots already, by requirement.
	waiters map[string][]waiting
	// skip reports whether an instance is not to be taken: it is being taken, was taken,
	// or its run was canceled.
	skip func(*offer) bool
	// slots returns the slots of a requirement, and rests reports whether it is not to be
	// tried now.
	slots func(*requirement) map[string]int
	rests func(*requirement) bool
}

// waiting is an instance that waits for slots.
type waiting struct {
	id       store.StepID
	priority int
	order    string
}

// leastUrgent sorts waiters, the least urgent first.
func leastUrgent(all []waiting) {
	slices.SortFunc(all, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(b.order, a.order))
	})
}

// wanted is an instance with the slots that it needs.
type wanted struct {
	*offer
	requirement string
	slots       map[string]int
}

// picked is the decision of [pick].
type picked struct {
	plain   []*offer
	slotted []wanted
	// yields are waiters that are withdrawn in favor of more urgent instances.
	yields []store.StepID
	// theirs are the first instances of other workers whose turn has not passed: what is less
	// urgent leaves them their places. again states that there are such instances.
	theirs []wanted
	again  bool
	// short are the lists with too few of the worker's own.
	short map[string]bool
}

// pick decides which instances a worker takes: as many of those without slots as it has
// free capacity, and of each slot requirement as many as may wait, if they come before
// those, or are more urgent than some waiters. It is pure. A single worker keeps the
// order; of several workers of one queue, each takes its own first among instances of one
// priority.
func pick(c choice) (p picked) {
	if c.free <= 0 {
		return p
	}
	var lists [][]*offer
	var classes []wanted // with all that is the same in a class
	var slottedOf []*requirement
	for _, q := range c.queues {
		for _, name := range slices.Sorted(maps.Keys(q.requirements)) {
			cl := q.requirements[name]
			if slots := c.slots(cl); len(slots) == 0 {
				lists = append(lists, cl.all)
			} else if !c.rests(cl) {
				classes, slottedOf = append(classes, wanted{requirement: name, slots: slots}), append(slottedOf, cl)
			}
		}
	}
	p.short = map[string]bool{}
	plain := c.share("", merged(lists), c.free)
	p.plain, p.again, p.short[""] = plain.taken, plain.again, plain.short
	for _, o := range plain.theirs {
		p.theirs = append(p.theirs, wanted{offer: o})
	}
	for i, cl := range slottedOf {
		waiters := c.waiters[cl.name]
		if len(waiters)+len(cl.all) > c.free { // some may have to yield
			leastUrgent(waiters)
		}
		if len(waiters) >= c.free && waiters[0].priority >= cl.all[0].Priority {
			continue // none is more urgent than the waiters
		}
		// There is no capacity for instances after those that fill the worker.
		some := c.share(cl.name, before(cl.all, plain.last), c.free)
		free := c.free - len(waiters)
		for _, o := range some.taken {
			if free <= 0 {
				if len(waiters) == 0 || waiters[0].priority >= o.Priority {
					break
				}
				p.yields, waiters = append(p.yields, waiters[0].id), waiters[1:]
			}
			free--
			w := classes[i]
			w.offer = o
			p.slotted = append(p.slotted, w)
		}
		for _, o := range some.theirs {
			w := classes[i]
			w.offer = o
			p.theirs = append(p.theirs, w)
		}
		p.again, p.short[cl.name] = p.again || some.again, p.short[cl.name] || some.short
	}
	maps.DeleteFunc(p.short, func(_ string, short bool) bool { return !short })
	return p
}

// shared is a worker's share of a list.
type shared struct {
	taken []*offer
	// theirs are others' whose turn has not passed, the first of them.
	theirs []*offer
	// again states that there are others', and short that there are too few of its own.
	again, short bool
	// last is the order of the instance that would fill a single worker; empty if none
	// would.
	last string
}

// share decides what a worker takes of a list in order, at most most instances.
func (c *choice) share(list string, in iter.Seq[*offer], most int) (s shared) {
	if most <= 0 {
		return s
	}
	g := c.grounds(list, in, most)
	var some, tardy []*offer // that it may take; the late ones count if its own are too few
	due, checked, first := 0, 0, 0
	free, others := most, 0 // for instances of one priority; of others with a higher one
	addLate := func() {
		some = append(some, slices.DeleteFunc(tardy, c.skip)...)
		tardy = nil
	}
	for o := range in {
		why := g.of(o)
		if why <= own && c.skip(o) {
			continue
		}
		if checked > 0 && o.Priority != first {
			// More urgent instances of others may become available soon: capacity is kept for
			// them.
			if addLate(); len(some) >= most-others {
				break
			}
			free = most - others
		}
		if free < most && len(some) >= free || due == most || checked == g.reach {
			break
		}
		first = o.Priority
		if checked++; checked == most {
			s.last = o.Order
		}
		switch why {
		case theirs: // one that was just taken may count
			others++
			if len(s.theirs) < most {
				s.theirs = append(s.theirs, o)
			}
		case late:
			tardy = append(tardy, o)
		default:
			some = append(some, o)
			due++
		}
	}
	if due < most {
		addLate()
	}
	slices.SortStableFunc(some, g.compare)
	s.taken = some[:min(len(some), free)]
	s.again, s.short = others > 0 && len(s.taken) < most, due < most
	return s
}

// ground is why a worker may take an instance, the strongest first.
type ground int

const (
	// overdue: it is another worker's, which has left it for so long that the worker's
	// own were published [longTurn] later.
	overdue ground = iota
	// own: it is the worker's own.
	own
	// late: it is another worker's, and its turn has passed. The worker helps, or has only
	// less urgent ones.
	late
	// theirs: it is another worker's.
	theirs
)

// grounds judges the instances of a list.
type grounds struct {
	*choice
	helps bool
	reach int    // how many it checks
	first *offer // of its own; nil if there is none
}

func (c *choice) grounds(list string, in iter.Seq[*offer], most int) *grounds {
	g := &grounds{choice: c, helps: c.help.gives(list, c.now, c.turn)}
	for _, q := range c.queues {
		g.reach = max(g.reach, max(most, c.capacity)*searchAhead*c.peers.count(q.name))
	}
	checked := 0
	for o := range in {
		if checked++; checked > g.reach {
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

// compare orders instances of one priority: those that are late in an order that differs
// by worker, to avoid conflicts.
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

// before returns a list up to the order last; all of it if last is empty.
func before(list []*offer, last string) iter.Seq[*offer] {
	return func(yield func(*offer) bool) {
		for _, o := range list {
			if last != "" && o.Order > last || !yield(o) {
				return
			}
		}
	}
}

// merged merges ordered lists.
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

// help states from which lists a worker takes instances of others: after it has had too
// few of its own for a turn, and until it has had enough for [longTurn]. So workers of the
// same speed do not compete, and a faster one waits only once. A list is a slot
// requirement by name, or "" for all instances without slots.
type help struct {
	short map[string]time.Time // since when it has too few
	until map[string]time.Time
}

func newHelp() *help {
	return &help{short: map[string]time.Time{}, until: map[string]time.Time{}}
}

// gives reports whether the worker helps with a list.
func (h *help) gives(list string, now time.Time, turn time.Duration) bool {
	since, short := h.short[list]
	return now.Before(h.until[list]) || short && now.Sub(since) >= turn
}

// note records which lists had too few of the worker's own.
func (h *help) note(short map[string]bool, now time.Time, turn time.Duration) {
	for list := range h.short {
		if !short[list] {
			delete(h.short, list)
		}
	}
	for list := range short {
		if h.gives(list, now, turn) {
			h.until[list] = now.Add(longTurn)
		}
		if _, already := h.short[list]; !already {
			h.short[list] = now
		}
	}
	for list, until := range h.until {
		if !now.Before(until) {
			delete(h.until, list)
		}
	}
}
