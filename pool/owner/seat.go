package owner

import "github.com/berthhq/berth/internal/problem"

// errNoPlace refuses a claim that does not wait, of a worker whose places are all in use.
var errNoPlace = problem.New(problem.NoCapacity, "its worker has no free place")

// sit takes the place of its worker that the claim needs, if it needs one: a free one or, if it takes over the slots of a
// claim that is released with other writes, the place of that claim. It is false if there is none.
func (it *item) sit() bool {
	p, from := it.claim.request.Place, it.from
	return p.Take() || from != nil && from.combined != nil && from.combined.place.Pass(p)
}

// giveBack returns a place to the claim that has passed it on. It is false if there is none.
func (it *item) giveBack() bool {
	from := it.from
	return from != nil && from.combined != nil && it.claim.request.Place.Return(from.combined.place)
}

// rise gives the place of its claim back, as that does not get slots now.
func (it *item) rise() {
	if !it.giveBack() {
		it.claim.request.Place.Give()
	}
}

// seated reports whether there may be a place for a claim that is to be taken.
func (p *plan) seated(c *Claim) bool {
	from := p.reuse.first(c.kind)
	return c.request.Place.Available() || from != nil && from.combined != nil
}

// unseated refuses a claim that does not wait and has no place. It is false for others: they are tried again.
func (p *plan) unseated(c *Claim) bool {
	if c.request.Wait > 0 {
		return false
	}
	p.refuse(c, errNoPlace)
	return true
}

// seats are the demands of claims that need places.
type seats struct{ list []*demand }

// add adds a demand, if its claim needs a place.
func (s *seats) add(d *demand) {
	if d.claim.request.Place != nil {
		s.list = append(s.list, d)
	}
}

// takeUnseated returns those for which there is no place now, and forgets them.
func (s *seats) takeUnseated() (all []*demand) {
	kept := s.list[:0]
	for _, d := range s.list {
		switch {
		case d.over:
		case d.claim.state == waiting && !d.claim.request.Place.Available():
			all = append(all, d)
		default:
			kept = append(kept, d)
		}
	}
	clear(s.list[len(kept):])
	s.list = kept
	return all
}

// unqueueUnseated takes the claims of a worker without free places out of the wait queue: no slots are kept for them, and no pool
// is pending for them. They go back to their places in the queue when there is a place for them.
func (p *plan) unqueueUnseated() {
	for _, d := range p.queue.seats.takeUnseated() {
		p.unqueue(d)
	}
}

// unqueue takes a claim out of the wait queue, and has it asked for again. If it has to wait, it has the place that it had.
func (p *plan) unqueue(d *demand) {
	c := d.claim
	c.keepPlace()
	c.passing.see(false)
	p.queue.end(d, false)
	c.unwait()
	p.want.add(c)
}
