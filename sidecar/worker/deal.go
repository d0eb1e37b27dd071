package worker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// supply is the places that a worker can give to instances.
type supply struct {
	free int // that nothing has
	// plain and slotted are those of executions whose ends are being written: of those without
	// slots, and of those with some.
	plain, slotted int
}

// candidate is an instance that is to get a place.
type candidate struct {
	slotted bool // it needs slots
	free    bool // its slots are free, or it needs none
	waits   bool // it has asked for its slots already
	// kept: it is another worker's, whose turn has not passed. Its place is left free.
	kept bool
}

// verdict is how a candidate gets a place.
type verdict int

const (
	// noPlace: there is none left for it, or it gets one when it is granted its slots.
	noPlace verdict = iota
	// queued: its slots are not free. It waits for them without a place, and others pass it.
	queued
	// placed: it has a free place.
	placed
	// joins: it has the place of an execution of its kind, whose end is written in the same
	// transaction or before.
	joins
	// follows: it has the place of an execution, from when the end of that is written.
	follows
)

// deal gives places to candidates in their order. So a candidate is passed only if its slots
// are not free: otherwise, each has a place before a later one has. It is pure.
func deal(all []candidate, s supply) []verdict {
	// The engine passes a place on to any claim that waits and can be granted, also to a later
	// one: while there is such a claim, the worker passes the places on itself.
	contested := slices.ContainsFunc(all, func(c candidate) bool { return c.waits && c.free })
	verdicts := make([]verdict, len(all))
	for i, c := range all {
		same, other := &s.plain, &s.slotted
		if c.slotted {
			same, other = other, same
		}
		v := noPlace
		switch {
		case !c.free:
			v = queued
		case s.free > 0:
			s.free--
			v = placed
		case *same > 0:
			*same--
			v = joins
			if c.slotted && contested {
				v = follows
			}
		case *other > 0:
			*other--
			v = follows
		}
		if c.waits || c.kept { // the engine gives it the place; or another worker
			v = noPlace
		}
		verdicts[i] = v
	}
	return verdicts
}

// prospectTimeout bounds the question whether slots are free. Without an answer, an instance
// finds out when it asks for its slots.
const prospectTimeout = time.Second

// turnOf is an instance in the order in which places are dealt: one that was picked, with its
// slots if it needs some, one that waits for them, or another worker's.
type turnOf struct {
	candidate
	offer    *offer
	want     wanted
	id       store.StepID // if it waits
	priority int
	order    string
	ask      *pool.Request
}

// compareTurns orders by priority, and then by the order of the queues; those of other workers
// come behind all of their priority.
func compareTurns(a, b turnOf) int {
	behind := func(t turnOf) int {
		if t.kept {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(behind(a), behind(b)), strings.Compare(a.order, b.order))
}

// turns returns what was picked and what waits without a place, in order.
func (w *Worker) turns(p picked) []turnOf {
	var slotted []turnOf
	add := func(want wanted, kept bool) {
		t := turnOf{candidate: candidate{free: true, kept: kept}, offer: want.offer, want: want, priority: want.Priority, order: want.Order}
		if len(want.slots) > 0 {
			t.slotted, t.ask = true, askOf(claimID(want.Published), want.ID(), want.slots, want.Priority, want.Revision)
		}
		slotted = append(slotted, t)
	}
	for _, want := range p.slotted {
		add(want, false)
	}
	for _, want := range p.theirs {
		add(want, true)
	}
	for id, l := range w.waiting {
		if l.seat.Taken() {
			continue
		}
		t := turnOf{candidate: candidate{slotted: true, free: true, waits: true}, id: id, priority: l.priority, order: l.order}
		if !l.unpublished { // else it was most likely granted
			t.ask = askOf(l.claim, id, l.slots, l.priority, w.taking[id])
		}
		slotted = append(slotted, t)
	}
	slices.SortStableFunc(slotted, compareTurns)
	// Those without slots keep the order in which they were picked.
	all := make([]turnOf, 0, len(p.plain)+len(slotted))
	for _, o := range p.plain {
		t := turnOf{candidate: candidate{free: true}, offer: o, priority: o.Priority, order: o.Order}
		for len(slotted) > 0 && compareTurns(slotted[0], t) < 0 {
			all, slotted = append(all, slotted[0]), slotted[1:]
		}
		all = append(all, t)
	}
	return append(all, slotted...)
}

// askOf is the request for the slots of an instance, as far as its chances depend on it.
func askOf(claim string, id store.StepID, slots map[string]int, priority int, since int64) *pool.Request {
	return &pool.Request{
		ID: claim, Slots: slots, Priority: priority, Sole: true, Since: since,
		Holder: pool.Holder{Run: id.Run, Step: id.Text(), Bind: run.BindStep},
	}
}

// supply counts the places that it can give.
func (w *Worker) supply() supply {
	s := supply{free: w.places.Free()}
	for _, e := range w.early {
		switch {
		case !e.seat.Taken():
		case e.inGroup:
			s.plain++
		default:
			s.slotted++
		}
	}
	return s
}

// look finds out whose slots are free, unless there is a place for each anyway.
func (w *Worker) look(ctx context.Context, all []turnOf, s supply, now time.Time) {
	if len(all) <= s.free {
		return
	}
	var asked []*pool.Request
	var of []int
	for i := range all {
		if all[i].ask != nil {
			asked, of = append(asked, all[i].ask), append(of, i)
		}
	}
	if len(asked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, prospectTimeout)
	defer cancel()
	free, err := w.cfg.Client.Prospects(ctx, asked)
	if err != nil {
		return
	}
	for n, i := range of {
		all[i].free = free[n]
		if all[i].waits {
			all[i].free = w.keeps(all[i].id, free[n], s != supply{}, now)
		}
	}
}

// passPlace passes the place of an execution on whose end is being written, with or without
// slots. It returns nil if there is none.
func (w *Worker) passPlace(inGroup bool, seat *pool.Place) *execution {
	for n, e := range w.early {
		if e.inGroup == inGroup && e.seat.Pass(seat) {
			w.early = slices.Delete(w.early, n, n+1)
			return e
		}
	}
	return nil
}

// passLater passes the place of any execution on whose end is being written, preferably of a
// kind, and has next called when that is written.
func (w *Worker) passLater(inGroup bool, seat *pool.Place, next func()) bool {
	e := w.passPlace(inGroup, seat)
	if e == nil {
		e = w.passPlace(!inGroup, seat)
	}
	if e == nil {
		return false
	}
	e.next = next
	return true
}
