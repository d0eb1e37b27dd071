package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// state of an entry. The way is queued → claiming → held → releasing, and back
// from claiming to queued when a batch failed.
type state int

const (
	queued    state = iota // wants its slots: a newcomer, or in the wait queue
	claiming               // its slots are in the batch in flight
	held                   // it has its slots
	releasing              // its slots are to be deleted
	over                   // it has none any more
)

// entry is a claim of this instance, from its request to the end of its keys.
type entry struct {
	req     *Request
	needs   []Need
	waiting *Waiting // for Admit, while queued
	record  *record  // for its main key
	spelled spelled

	state     state
	arrived   time.Time
	listeners []listener // requests that wait for the grant
	// unreceived are the replies that may not have been received yet: their requests can
	// still be canceled. received: the reply to some other request was.
	unreceived []chan<- outcome
	received   bool
	// unjudged entries have a verdict to come: they are new, or were requested again.
	unjudged bool

	// In the wait queue, while order.Since is not 0.
	order   Order
	waited  time.Time // when it was found not to fit first
	reserve bool      // ageing has made it reserve
	// written and writtenReserve are what its waiter keys have, as far as responses
	// say; inQueue is whether it can have any. An unwritable entry has no waiter in
	// etcd, which refuses its keys.
	written, writtenReserve, writtenExclusive bool
	inQueue, unwritable                       bool
	// waiterLease is the lease on which its waiter's keys are reserved, 0 if there is none.
	waiterLease store.LeaseID
	// writtenAt is the revision of the last write that was answered.
	writtenAt int64
	// due: it fits, and this instance has to take its slots.
	due bool
	// conflicts is how often others were faster; exclusive has others wait until
	// it has gone.
	conflicts int
	exclusive bool
	// deferred is set if another claim has waited in the queue for the same thing: see
	// [Request.Sole].
	deferred bool
	// placeFrom is the entry whose place it has taken in the batch in flight.
	placeFrom *entry

	// takesFence is the fence of the claim that the entry takes over; 0 if it takes over none.
	takesFence int64

	// retryAt is the revision that the view must reach before the next try:
	// the one at which the last failed.
	retryAt int64

	// From claiming on.
	lease   store.LeaseID
	slots   []placed
	claim   *Claim
	revoked time.Time // when an operator revoked it
	renewed bool      // the renewal of its lease was published: see [ClaimRenewed]
	dropped bool      // it has no request any more: release it once its outcome is known
	// unwanted: what it is for has ended, so it is revoked once its outcome is known.
	unwanted bool
	waiters  []chan<- error
	// successors are requests with the id of an entry that is being released: they are
	// taken when it is over.
	successors []successor
	// combined is the combined release of its slots, while it is under way.
	combined *combinedRelease
}

// newEntry makes an entry of a request to an instance. It is called by the requesting
// goroutine, so that there is less to do for the one goroutine that plans.
func newEntry(req *Request, host, instance string) *entry {
	req.Holder.Host, req.Holder.Instance = host, instance
	return &entry{
		req: req, needs: needsOf(req.Slots), unjudged: true,
		order:   Order{Priority: req.Priority, Claim: req.ID, By: hash(host + "/" + instance)},
		record:  &record{Pools: req.Slots, Priority: req.Priority, Holder: req.Holder},
		spelled: spell(req),
	}
}

// outcome of a request: a claim or the reason why there is none.
type outcome struct {
	claim *Claim
	err   error
}

// listener is a request that waits for a grant, and for how long.
type listener struct {
	reply chan<- outcome // buffered
	wait  time.Duration
}

// successor is a request whose id is still an earlier entry's.
type successor struct {
	e     *entry
	reply chan<- outcome // buffered
	asked time.Time
}

// answer answers all requests that wait for the grant.
func (e *entry) answer(o outcome) {
	for _, l := range e.listeners {
		if o.claim != nil {
			e.grantTo(l.reply)
		} else {
			l.reply <- o
		}
	}
	e.listeners = nil
}

// grantTo answers one request with the claim.
func (e *entry) grantTo(reply chan<- outcome) {
	e.unreceived = slices.DeleteFunc(e.unreceived, func(earlier chan<- outcome) bool {
		received := len(earlier) == 0
		e.received = e.received || received
		return received
	})
	reply <- outcome{claim: e.claim}
	e.unreceived = append(e.unreceived, reply)
}

// released answers all callers that wait for the release.
func (e *entry) released() {
	for _, w := range e.waiters {
		w <- nil
	}
	e.waiters = nil
}

// since is the entry's place in the wait queue if it comes to wait there at a revision.
func (e *entry) since(rev int64) int64 {
	return cmp.Or(e.req.Since, rev)
}

// returnPlace returns the place of an entry that was not granted: to the claim that had it
// before, if that is still held.
func (e *entry) returnPlace() {
	from := e.placeFrom
	e.placeFrom = nil
	if from != nil && from.combined != nil && e.req.Place.Return(from.combined.place) {
		return
	}
	e.req.Place.Give()
}

// leased is how many keys of an entry with those slots are attached to its lease.
func (e *entry) leased(slots []placed) int { return len(slots) + len(e.req.Extra.Leased) }

// key names the claim that an entry with slots has.
func (e *entry) key() claimKey { return claimKey{e.req.ID, e.slots[0].ref} }

// fence is the revision at which the entry got its slots.
func (e *entry) fence() int64 { return e.claim.Fence }

// drop is a waiter whose keys are to be deleted.
type drop struct {
	pools []string
	order Order
	// lease is the one on which the keys are reserved, 0 if no reservation is to be released.
	lease store.LeaseID
}
