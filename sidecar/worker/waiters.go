package worker

import (
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// waiter is a claim for an instance, which waits or is about to be granted.
type waiter struct {
	claim, requirement string
	slots              map[string]int
	// queue and order are where it is published.
	queue, order string
	priority     int
	// left states that it was withdrawn, and unpublished that it was so because its instance
	// is not published any more.
	left, unpublished bool
	// seat is taken while its claim has a place.
	seat *pool.Place
	// freeSince is since when its slots are free without being granted: see [Worker.keeps].
	freeSince time.Time
}

// unpublished counts the waiters whose instances are not published any more and whose claims
// are not answered: most likely they have just been granted here.
func (w *Worker) unpublished() (n int) {
	for _, l := range w.waiting {
		if l.unpublished {
			n++
		}
	}
	return n
}

// waiters returns those that are not withdrawn, by slot requirement.
func (w *Worker) waiters() map[string][]waiting {
	all := map[string][]waiting{}
	for id, l := range w.waiting {
		if !l.left {
			all[l.requirement] = append(all[l.requirement], waiting{id, l.priority, l.order})
		}
	}
	return all
}

// yield withdraws the waiter of an instance. It may wait again later.
func (w *Worker) yield(id store.StepID) {
	l := w.waiting[id]
	l.left = true
	w.waiting[id] = l
	w.withdraw(l.claim)
}

// withdrawAll withdraws all waiters. They keep their places in the wait queue for a moment.
func (w *Worker) withdrawAll() {
	for id := range w.waiting {
		w.yield(id)
	}
}

// withdrawGone withdraws the waiters of instances that are not published any more: they
// were canceled, or another worker has them.
func (w *Worker) withdrawGone(q *queue) {
	for id, l := range w.waiting {
		if !l.left && l.queue == q.name && !q.has(l.order, w.taking[id]) {
			l.unpublished = true
			w.waiting[id] = l
			w.yield(id)
		}
	}
}

// withdrawAgain withdraws waiters once more: some may not have waited yet at the first
// time.
func (w *Worker) withdrawAgain() {
	for _, l := range w.waiting {
		if l.left || w.idle() {
			w.withdraw(l.claim)
		}
	}
}

// withdraw withdraws one. The goroutine that claims gets the result: the claim may just
// have been granted.
func (w *Worker) withdraw(claim string) {
	w.cfg.Client.Withdraw(claim)
}

// keeps reports whether a place is kept for an instance that waits and whose slots are free:
// for [longTurn], since its slots may be kept from it for another reason. While there is no place
// that could be kept, that time does not begin.
func (w *Worker) keeps(id store.StepID, free, supplied bool, now time.Time) bool {
	l := w.waiting[id]
	switch {
	case !free || !supplied:
		l.freeSince = time.Time{}
	case l.freeSince.IsZero():
		l.freeSince = now
	}
	w.waiting[id] = l
	return free && (!supplied || now.Sub(l.freeSince) < longTurn)
}
