package coordinator

import (
	"cmp"
	"encoding/binary"
	"slices"
	"unique"

	"github.com/berthhq/berth/coordinator/run"
)

// tally counts the use of the limits in a plan.
type tally struct {
	limits  run.Limits
	classes *classes
	runs    int     // in progress
	bounds  []usage // by number
	met     []bound
}

// usage is the use of a bound.
type usage struct{ used, limit int }

func (r usage) reached() bool { return r.limit != run.Unlimited && r.used >= r.limit }

func newTally(l run.Limits, c *classes) *tally {
	t := &tally{limits: l, classes: c, bounds: make([]usage, c.bounds.size())}
	for _, id := range c.bounds.ids {
		t.bounds[id].limit = t.limitOf(id).Limit
	}
	return t
}

// add counts a run in progress. Bounds that no queued run meets do not matter.
func (t *tally) add(r *run.Run) {
	t.runs++
	t.met = t.classes.meet(t.met[:0], r.Tags)
	for _, b := range t.met {
		if id, ok := t.classes.bounds.ids[b]; ok {
			t.bounds[id].used++
		}
	}
}

// full reports whether max_concurrent_runs is reached.
func (t *tally) full() bool { return usage{t.runs, t.limits.MaxConcurrentRuns}.reached() }

// blocking returns the first reached bound of a class.
func (t *tally) blocking(class int32) (bound int32, ok bool) {
	for _, b := range t.classes.met[class] {
		if t.bounds[b].reached() {
			return b, true
		}
	}
	return 0, false
}

func (t *tally) limitOf(bound int32) *run.TagLimit {
	return &t.limits.Tags[t.classes.bounds.keys[bound].limit]
}

// admit returns the admitted runs, and counts them. Counts only grow in a plan, so a class
// that is blocked once is blocked until its end.
func (t *tally) admit(q *Queue, g *gate) []*run.Run {
	var admitted []*run.Run
	held := make([]bool, t.classes.size())
	for _, part := range q.parts {
		for i := range part {
			if t.full() {
				return admitted
			}
			class := part[i].class
			if held[class] {
				continue
			}
			if _, held[class] = t.blocking(class); held[class] || !g.pass(&part[i]) {
				continue
			}
			t.runs++
			for _, b := range t.classes.met[class] {
				t.bounds[b].used++
			}
			admitted = append(admitted, part[i].run)
		}
	}
	return admitted
}

// noted is a block reason that is compared like a pointer; zero is none.
type noted = unique.Handle[run.Block]

// blocks returns the first most of the remaining runs with a recorded reason that is not
// true now, or with a wait for pools that is not recorded. The admitted runs are in the
// order of the queue.
func (t *tally) blocks(q *Queue, g *gate, admitted []*run.Run, most int) []Blocked {
	var blocked []Blocked
	fresh := g.fresh
	reason := t.reasons(g)
	for _, part := range q.parts {
		for i := range part {
			if len(blocked) >= most {
				return blocked
			}
			p := &part[i]
			if len(admitted) > 0 && admitted[0] == p.run {
				admitted = admitted[1:]
				continue
			}
			held := len(fresh) > 0 && fresh[0] == p.run
			if held {
				fresh = fresh[1:]
			}
			if why := reason(p); why != (noted{}) && (held || why != p.noted) {
				blocked = append(blocked, Blocked{p.run, why.Value(), held})
			}
		}
	}
	return blocked
}

// reasons returns a function that returns the block reason of a run; zero if it is not
// known. Each text is formatted once: classes share bounds, and runs share classes.
func (t *tally) reasons(g *gate) func(*place) noted {
	if t.full() {
		why := unique.Make(run.RunLimitBlock(t.runs, t.limits.MaxConcurrentRuns))
		return func(*place) noted { return why }
	}
	ofClass := make([]noted, t.classes.size())
	ofBound := make([]noted, len(t.bounds))
	return func(p *place) noted {
		class := p.class
		if ofClass[class] == (noted{}) {
			b, ok := t.blocking(class)
			if !ok {
				return g.note(p) // no limit blocks it
			}
			if ofBound[b] == (noted{}) {
				l := t.limitOf(b)
				value := l.Value
				if l.PerUniqueValue {
					value = t.classes.bounds.keys[b].value
				}
				ofBound[b] = unique.Make(run.TagLimitBlock(l.Key, value, t.bounds[b].used, l.Limit))
			}
			ofClass[class] = ofBound[b]
		}
		return ofClass[class]
	}
}

// bound is a limit of a tag, or of one of its values.
type bound struct {
	limit int    // index in the limits
	value string // of the tag, if each value has its own bound
}

// classes groups the queued runs by the bounds that apply to them. The runs of a class are
// admitted or blocked alike: a plan decides by class, and reads few runs. A class depends
// on what is limited, not on the numbers.
//
// Bounds and classes have numbers while a queued run uses them. Numbers are used again, so
// that there are at most as many as runs.
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

// what returns a limit without its number.
func what(t run.TagLimit) run.TagLimit {
	t.Limit = 0
	return t
}

// are reports whether the classes are those of limits.
func (c *classes) are(l run.Limits) bool {
	return slices.EqualFunc(c.limits, l.Tags, func(a, b run.TagLimit) bool { return what(a) == what(b) })
}

// size returns a number above that of each class.
func (c *classes) size() int { return c.ids.size() }

// meet appends the bounds that apply to tags, in the order of the limits.
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

// add adds a queued run, and returns its class.
func (c *classes) add(tags map[string]string) int32 {
	var buffer [4]bound
	met := c.meet(buffer[:0], tags)
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

// remove removes a run from its class.
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

// numbers assigns numbers to keys while they are used.
type numbers[K comparable] struct {
	ids  map[K]int32
	keys []K   // by number
	uses []int // by number
	free []int32
}

func newNumbers[K comparable]() numbers[K] { return numbers[K]{ids: map[K]int32{}} }

// size returns a number above all.
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

// leave ends a use of a number, and reports whether it was the last one.
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
