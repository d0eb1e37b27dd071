package coordinator

import (
	"iter"
	"slices"
	"sort"
	"unique"

	"github.com/berthhq/berth/coordinator/run"
)

// partSize bounds the parts of a queue. Inserting moves half a part, and searching visits
// the parts.
const partSize = 512

// Queue holds the queued runs in order, and with each run what plans need, so that a plan
// reads few of the runs themselves. It is not safe for concurrent use.
type Queue struct {
	// parts are in order, and so are the places of each. A part has 1 to partSize places.
	parts   [][]place
	len     int
	classes *classes
	// needs are the slots that runs need, and gated is how many runs need any.
	needs numbers[string]
	gated int
}

// place is a run in the queue.
type place struct {
	run   *run.Run
	noted noted
	class int32
	needs int32 // number of its slots in needs, from 1; 0 is none
	held  bool  // its record states that pools block it
}

// NewQueue returns an empty queue, prepared for no tag limits.
func NewQueue() *Queue { return &Queue{classes: newClasses(run.Limits{}), needs: newNumbers[string]()} }

// Prepare makes plans under these limits fast. Without it, plans are correct, but read all
// runs. It does nothing if limits differ only in their numbers.
func (q *Queue) Prepare(l run.Limits) {
	if q.classes.are(l) {
		return
	}
	q.classes = newClasses(l)
	for _, part := range q.parts {
		for i := range part {
			part[i].class = q.classes.add(part[i].run.Tags)
		}
	}
}

// under returns the queue prepared for limits, without changing this one.
func (q *Queue) under(l run.Limits) *Queue {
	if q.classes.are(l) {
		return q
	}
	other := &Queue{parts: make([][]place, len(q.parts)), len: q.len, classes: q.classes, needs: q.needs, gated: q.gated}
	for i, part := range q.parts {
		other.parts[i] = slices.Clone(part)
	}
	other.Prepare(l)
	return other
}

// Len returns the number of runs.
func (q *Queue) Len() int { return q.len }

// All returns the runs in order; none of a nil queue.
func (q *Queue) All() iter.Seq[*run.Run] {
	return func(yield func(*run.Run) bool) {
		if q == nil {
			return
		}
		for _, part := range q.parts {
			for i := range part {
				if !yield(part[i].run) {
					return
				}
			}
		}
	}
}

// find returns where a run is, or where it belongs: in the last part if it is the last.
func (q *Queue) find(r *run.Run) (part, at int, found bool) {
	part = sort.Search(len(q.parts), func(i int) bool {
		p := q.parts[i]
		return p[len(p)-1].run.Compare(r) >= 0
	})
	if part == len(q.parts) {
		if part == 0 {
			return 0, 0, false
		}
		return part - 1, len(q.parts[part-1]), false
	}
	at, found = slices.BinarySearchFunc(q.parts[part], r, func(p place, r *run.Run) int { return p.run.Compare(r) })
	return part, at, found
}

// Insert inserts a run, or replaces its record. If its place has changed, which only a
// manual change in etcd can cause, the old one must be removed before.
func (q *Queue) Insert(r *run.Run) {
	p := place{run: r, class: q.classes.add(r.Tags), held: !r.HeldSince.IsZero()}
	if r.Block != nil {
		p.noted = unique.Make(*r.Block)
	}
	if len(r.Pools) > 0 {
		id, _ := q.needs.use(run.PoolList(r.Pools))
		p.needs = id + 1
		q.gated++
	}
	part, at, found := q.find(r)
	switch {
	case found:
		q.leave(&q.parts[part][at])
		q.parts[part][at] = p
		return
	case len(q.parts) == 0:
		q.parts = [][]place{{p}}
	default:
		q.parts[part] = slices.Insert(q.parts[part], at, p)
		if len(q.parts[part]) > partSize {
			q.split(part)
		}
	}
	q.len++
}

// Remove removes a run, by the record with which it was inserted, and reports whether it
// was in the queue.
func (q *Queue) Remove(r *run.Run) bool {
	part, at, found := q.find(r)
	if !found {
		return false
	}
	q.leave(&q.parts[part][at])
	q.parts[part] = slices.Delete(q.parts[part], at, at+1)
	q.len--
	if len(q.parts[part]) == 0 {
		q.parts = slices.Delete(q.parts, part, part+1)
	} else if next := part + 1; next < len(q.parts) && len(q.parts[part])+len(q.parts[next]) <= partSize/2 {
		q.parts[part] = append(q.parts[part], q.parts[next]...)
		q.parts = slices.Delete(q.parts, next, next+1)
	}
	return true
}

// leave releases the numbers of a place.
func (q *Queue) leave(p *place) {
	q.classes.remove(p.class)
	if p.needs > 0 {
		q.needs.leave(p.needs - 1)
		q.gated--
	}
}

// split divides a part.
func (q *Queue) split(part int) {
	p := q.parts[part]
	second := make([]place, 0, partSize+1)
	second = append(second, p[len(p)/2:]...)
	clear(p[len(p)/2:])
	q.parts[part] = p[:len(p)/2]
	q.parts = slices.Insert(q.parts, part+1, second)
}
