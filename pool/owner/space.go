package owner

import (
	"time"

	"github.com/berthhq/berth/internal/problem"
)

const (
	// firstTry and mostTry are how long after a refusal for want of space something is put again: doubled each time.
	firstTry = 250 * time.Millisecond
	mostTry  = 5 * time.Second
)

// ErrFull tells that etcd is full, and takes deletions only.
var ErrFull = problem.New(problem.EtcdFull, "etcd is full and takes no new claims: compact and defragment it, or raise its quota, then disarm the alarm")

// Space says whether etcd takes puts, as far as is known to an instance. While it is full, what the halves of the
// instance send has no put in it, but for one transaction from time to time, to find out whether it still is.
type Space struct {
	full  bool
	pause time.Duration
	next  time.Duration // when something is put again
}

// Refused records that a transaction had [store.ErrNoSpace] for an answer: to be called before the half takes that.
func (s *Space) Refused(now time.Duration) {
	s.full = true
	s.pause = min(max(2*s.pause, firstTry), mostTry)
	s.next = now + s.pause
}

// Full reports whether etcd was full when something was put last.
func (s *Space) Full() bool { return s.full }

// Wakes returns when something may be put again; 0 while etcd has space.
func (s *Space) Wakes() time.Duration {
	if !s.full {
		return 0
	}
	return s.next
}

// tries records that something is put: one transaction at a time finds out whether etcd has space again.
func (s *Space) tries(now time.Duration) {
	if s.full {
		s.next = now + s.pause
	}
}

// found records that etcd has carried out a put.
func (s *Space) found() { *s = Space{} }

// putAllOff has all that was to be sent again done later: what only deletes is then done in a full etcd, too.
func (o *commits) putAllOff() {
	for _, it := range o.again.take() {
		o.putOff(it)
	}
	o.isolate(0)
}

// putOff has what an item was to do done later, with others.
func (o *commits) putOff(it *item) {
	switch it.kind {
	case frees:
		o.release(it.claim)
	case moves:
		o.queue.stay(it.key)
	case drops:
		o.drops.add(it.offer)
	case takes:
		if it.from != nil {
			o.release(it.from)
		}
		o.memory.giveUp(it)
		o.retry(it)
	}
}

// deletions adds what can be done in a full etcd: claims are released, without other writes, and offers keys deleted.
func (p *plan) deletions() {
	for _, c := range p.want.take() {
		switch {
		case c.withdrawn:
			p.commits.refuse(c, nil)
		case c.request.Wait == 0:
			p.refuse(c, ErrFull)
		default:
			p.want.add(c)
		}
	}
	for _, c := range p.releases.take() {
		switch {
		case c.combined != nil:
			p.stay(c, ErrFull)
		case p.b.full || p.b.names(c.keys) || !p.freeOne(c):
			p.commits.release(c)
		}
	}
	p.dropOffers()
	p.moveDemands()
}
