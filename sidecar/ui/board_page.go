package ui

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

// rowsPerPage is how many runs a page shows.
const rowsPerPage = 50

// place is a run's place in a list, for whoever wants to go on from there: it stays
// good while runs come and go, the one that it is made of included.
type listPlace struct {
	priority int
	created  int64
	// joined and due are of runs that had to wait for a time, or do: it is in milliseconds.
	joined, due int64
	id          string
}

func placeOf(r *run.Run) listPlace {
	p := listPlace{priority: r.Priority, created: r.Created, joined: r.Joined, id: r.ID}
	if !r.NotBefore.IsZero() {
		p.due = r.NotBefore.UnixMilli()
	}
	return p
}

// run is one that stands at the place.
func (p listPlace) run() *run.Run {
	r := &run.Run{ID: p.id, Created: p.created}
	r.Status, r.Priority, r.Joined = run.Queued, p.priority, p.joined
	if p.due != 0 {
		r.NotBefore = run.InstantOf(time.UnixMilli(p.due))
	}
	return r
}

// String spells a place as [parsePlace] reads it.
func (p listPlace) String() string {
	return fmt.Sprintf("%d~%d~%d~%d~%s", p.priority, p.created, p.joined, p.due, p.id)
}

func parsePlace(text string) (p listPlace, ok bool) {
	parts := strings.SplitN(text, "~", 5)
	if len(parts) < 5 || run.ValidateID(parts[4]) != nil {
		return listPlace{}, false
	}
	var numbers [4]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(parts[i], 10, 64); err != nil {
			return listPlace{}, false
		}
	}
	return listPlace{int(numbers[0]), numbers[1], numbers[2], numbers[3], parts[4]}, true
}

// stretch is the part of a list that a page shows.
type stretch struct {
	rows []*listed
	// first is the number of the first row in the list, from 1 on, and of how many runs
	// the list is.
	first, of int
	// previous and next are behind which run the pages before and after begin, if there
	// are such pages; the zero place is the beginning of the list.
	previous, next       listPlace
	hasPrevious, hasNext bool
}

// stretchBehind returns the page of a list that begins behind a place; the zero place
// is before all. It stays as it is while the list changes.
func (o *ordered) stretchBehind(after listPlace, size int) stretch {
	start := 0
	if after != (listPlace{}) {
		at, found := o.find(after.run())
		if start = at; found {
			start++
		}
	}
	end := min(start+size, len(o.all))
	s := stretch{rows: slices.Clone(o.all[start:end]), first: start + 1, of: len(o.all)}
	if s.hasPrevious = start > 0; s.hasPrevious && start > size {
		s.previous = placeOf(o.all[start-size-1].Run)
	}
	if s.hasNext = end < len(o.all); s.hasNext {
		s.next = placeOf(o.all[max(end-1, 0)].Run)
	}
	return s
}

// only returns what of a list a filter lets through, in its order.
func (o *ordered) only(f *runFilter) *ordered {
	if f.all() {
		return o
	}
	return o.where(f.matches)
}

// where returns what of a list is so, in its order.
func (o *ordered) where(is func(*listed) bool) *ordered {
	some := &ordered{compare: o.compare}
	for _, l := range o.all {
		if is(l) {
			some.all = append(some.all, l)
		}
	}
	return some
}
