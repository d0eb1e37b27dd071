package pool

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
	kind    string        // of what it needs: see [kindOf]
	waiting *admit.Waiter // for Admit, while queued
	record  *record       // for its main key
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
	waited  waitedSince
	reserve bool // ageing has made it reserve
	// written and writtenReserve are what its waiter keys have, as far as responses
	// say; inQueue is whether it can have any. An unwritable entry has no waiter in
	// etcd, which refuses its keys.
	written, writtenReserve bool
	inQueue, unwritable     bool
	// waiterLease is the lease on which its waiter's keys are reserved, 0 if there is none.
	waiterLease store.LeaseID
	// writtenAt is the revision of the last write that was answered.
	writtenAt int64
	// conflicts is how often others were faster.
	conflicts int
	// offer is the notice of a grant that is still to be confirmed, under the conditions
	// of the request.
	offer *notice
	// other is the waiter of another instance that the entry represents, in the batch of a
	// dispatcher; nil for a claim of this instance. Lent is how many keys are reserved for
	// it on a lease of this instance, if the owner is to confirm the grant.
	other *waiter
	lent  int
	// deferred is set if another claim has waited in the queue for the same thing: see
	// [Request.Sole].
	deferred bool
	// placeFrom is the entry whose place it has taken in the batch in flight.
	placeFrom *entry

	// succeeds: an earlier request of its id may still be granted by a dispatcher, and it is
	// not until that is ruled out.
	succeeds bool

	// takes is the revision of the claim that the entry takes over; 0 if it takes over none.
	takes int64

	// retryAt is the revision that the view must reach before the next try:
	// the one at which the last failed.
	retryAt int64

	// holding has the lease for its slots, and from claiming on the slots.
	holding
	claim   *Claim
	revoked time.Time // when an operator revoked it
	renewed bool      // the renewal of its lease was published: see [ClaimRenewed]
	dropped bool      // it has no request any more: release it once its outcome is known
	// unwanted: what it is for has ended, so it is revoked once its outcome is known.
	unwanted bool
	waiters  []chan<- error
	// orphan: its slots were found on a lease of this instance, and belong to no claim.
	orphan bool
	// rewriting: its keys are being put again, to show it.
	rewriting bool
	// successors are requests with the id of an entry that is being released: they are
	// taken when it is over.
	successors []successor
	// combined is the combined release of its slots, while it is under way.
	combined *combinedRelease
	// given is set once its slots are to be given back. A recall no longer counts them.
	given bool
}

// holding is the slots that a claim holds, and their keys.
type holding struct {
	slots []placed
	rev   int64 // of the keys
	// shown is the claim that the keys show, if it is not the holder, which was granted them
	// without a write at regranted.
	shown     claimKey
	regranted time.Time
	// fence is the fencing token of the last holder, shownFence that of the claim that the keys
	// show, and admitted the revision at which the slots were taken.
	fence, shownFence store.Fence
	admitted          int64
	// former is set while the keys are those that an earlier life of this instance has put, whose
	// fencing tokens may not be known, or that were to be deleted: they are not retained.
	former bool
	// lease is the one for the keys, and reserved how many keys are reserved on it: for a
	// waiter, as many as it can need.
	lease    store.LeaseID
	reserved int
}

// shownAs names the claim that the keys of a holding show, which the claim with that id has.
func (h *holding) shownAs(id string) claimKey {
	if h.shown.id != "" {
		return h.shown
	}
	return claimKey{id, h.slots[0].ref}
}

// shownHolding is the holding of an entry, with the claim that its keys show.
func (e *entry) shownHolding() holding {
	h := e.holding
	h.shown = e.key()
	return h
}

// newEntry makes an entry of a request to an instance. It is called by the requesting
// goroutine, so that there is less to do for the one goroutine that plans.
func newEntry(req *Request, host, instance string) *entry {
	req.Holder.Host, req.Holder.Instance = host, instance
	needs := needsOf(req.Slots)
	return &entry{
		req: req, needs: needs, kind: kindOf(needs), unjudged: true,
		order:   Order{Priority: req.Priority, Claim: req.ID, By: hash(host + "/" + instance)},
		record:  &record{Pools: req.Slots, Priority: req.Priority, Holder: req.Holder},
		spelled: spell(req, needs),
	}
}

// Need is how many slots of one pool a claim takes.
type Need struct {
	Pool string
	N    int
}

// needsOf returns what slots asks for, by the pools' names.
func needsOf(slots map[string]int) []Need {
	needs := make([]Need, 0, len(slots))
	for name, n := range slots {
		needs = append(needs, Need{Pool: name, N: n})
	}
	slices.SortFunc(needs, func(a, b Need) int {
		if a.Pool < b.Pool {
			return -1
		}
		return 1
	})
	return needs
}

// spelled holds the JSON of those fields of a claim that never change.
type spelled struct{ pools, holder []byte }

// spell spells a request that needs these slots. What is not plain text is left to encoding/json.
func spell(r *Request, needs []Need) spelled {
	h := &r.Holder
	b := append(make([]byte, 0, 64*len(needs)+128+len(h.Bind)), '{')
	for i, n := range needs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(appendText(b, n.Pool), ':'), int64(n.N), 10)
	}
	b = append(b, '}')
	pools := b[:len(b):len(b)]
	if len(h.Labels) > 0 {
		return spelled{pools, store.Encode(h)}
	}
	b = appendText(append(b, `{"host":`...), h.Host)
	b = appendText(append(b, `,"instance":`...), h.Instance)
	for _, f := range [...]struct{ name, value string }{{`,"claimed_by":`, h.ClaimedBy}, {`,"run":`, h.Run}, {`,"step":`, h.Step}} {
		if f.value != "" {
			b = appendText(append(b, f.name...), f.value)
		}
	}
	if h.PID != 0 {
		b = strconv.AppendInt(append(b, `,"pid":`...), int64(h.PID), 10)
	}
	if h.Bind != "" {
		b = appendText(append(b, `,"bind":`...), h.Bind)
	}
	return spelled{pools, append(b, '}')[len(pools):]}
}

// appendText appends a JSON string.
func appendText(b []byte, text string) []byte {
	start := len(b)
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~' || c == '<' || c == '>' || c == '&':
			return append(b[:start], store.Encode(text)...)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// outcome of a request: a claim or the reason why there is none.
type outcome struct {
	claim *Claim
	err   error
	// shown is the revision up to which the specs were known to who has refused it.
	shown int64
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

// waitedSince is since when a claim waits, or waited when its client left and its place was kept.
type waitedSince struct {
	at time.Time // when it was found not to fit first
	// rev is the revision at which its waiter was first written. It stays when the waiter is
	// deleted or written again. It is 0 before that: the view of the instance may be older than the
	// claim. Where no waiter is written, or that is not certain, it is the newest revision that the
	// instance knew.
	rev int64
}

// before reports whether the claim has waited since before a revision.
func (w waitedSince) before(rev int64) bool { return w.rev != 0 && w.rev < rev }

// restored is the same after a restore of etcd, in which no limit is older than the wait.
func (w waitedSince) restored() waitedSince {
	w.rev = min(w.rev, 1)
	return w
}

// waitsSince notes that the entry has waited since a time and a revision, unless an earlier
// revision is known; 0 is none.
func (e *entry) waitsSince(at time.Time, rev int64) {
	e.waited.at, e.waited.rev = at, cmp.Or(e.waited.rev, rev)
}

// waits notifies the observer of a request that has to wait.
func (e *entry) waits(now time.Time) {
	if e.req.Observer != nil {
		e.req.Observer.Waits(now)
	}
}

// mostKeys is how many keys a grant of the entry can attach to its lease: slots, what the
// request adds, and the notice.
func (e *entry) mostKeys() int {
	n := len(e.req.Extra.Leased) + 1
	for _, need := range e.needs {
		n += min(need.N, MaxGroups)
	}
	return n
}

// leased is how many keys of an entry with those slots are attached to its lease.
func (e *entry) leased(slots []placed) int { return len(slots) + len(e.req.Extra.Leased) }

// key names the claim that the keys of an entry with slots show.
func (e *entry) key() claimKey { return e.shownAs(e.req.ID) }

// drop is a waiter whose keys are to be deleted.
type drop struct {
	pools []string
	order Order
	// lease is the one on which the keys are reserved, 0 if no reservation is to be released.
	lease store.LeaseID
}

// grant makes a claim of an entry whose slots were put at rev. Another instance is notified
// of its own.
func (c *core) grant(g *grant, extra []*pb.ResponseOp, rev int64, now time.Time) {
	e := g.e
	if g.kept != nil {
		c.grantKept(g, extra, rev, now)
		return
	}
	for _, s := range g.slots {
		rec := e.record
		if s != g.slots[0] {
			rec = nil
		}
		c.view.committedSlot(s.ref, slot{n: s.n, claim: e.key(), rev: rev, lease: e.lease}, rec)
	}
	for _, gr := range g.groups {
		gv := gr.pool.group(gr.group)
		gv.knownRev = max(gv.knownRev, rev)
	}
	for _, p := range g.whole {
		p.wholeRev = max(p.wholeRev, rev)
	}
	if e.inQueue {
		c.view.committedWaiterDelete(poolNames(e.req.Slots), e.order, rev)
	}
	if e.other != nil {
		g.notice.rev, g.notice.seen = rev, now
		if e.lent > 0 {
			c.lend(g.notice.key, loan{e.needs[0].Pool, e.lease, e.lent, rev})
		}
		c.view.committedNotice(c.view.pool(e.needs[0].Pool), g.notice, e.other.by.name)
		return
	}
	if e.offer != nil {
		c.view.committedNoticeDelete(e.offer.pool, e.offer.key, rev)
	}
	c.metrics.granted(now.Sub(e.arrived))
	c.refuseSecond(e, rev)
	c.hold(e, extra, rev, now)
	// The watch may be ahead of this answer and have shown the end already: the keys are
	// gone, or another instance has put them again under the same id.
	if p := c.view.pool(e.slots[0].ref.pool); p.whole && !c.holdsSlots(e) {
		c.gone(e)
	}
}

// refuseSecond refuses an entry that was granted an id at rev which another instance
// was granted a moment before: its slots are given back. What was written with it has
// happened, so then both are held.
func (c *core) refuseSecond(e *entry, rev int64) {
	x := &e.req.Extra
	if e.takes != 0 || e.req.Bridge || len(x.Then)+len(x.Leased) > 0 {
		return
	}
	known, _ := c.holding(e.req.ID)
	for _, cv := range known {
		if cv.rev < rev && !cv.isOf(c.view.keys, c.host, c.instance) {
			e.answer(outcome{err: c.elsewhere(e.req.ID)})
			e.dropped = true
			return
		}
	}
}

// hold makes an entry the holder of its slots.
func (c *core) hold(e *entry, extra []*pb.ResponseOp, rev int64, now time.Time) {
	c.unqueue(e)
	c.releaseWaiterKeys(e) // they go with the grant
	e.offer = nil
	e.state, e.rev, c.ownRev = held, rev, c.seen
	e.fence, e.admitted = e.record.fence(rev), cmp.Or(e.record.Admitted, rev)
	if e.shown.id == "" {
		e.shownFence = e.fence
	}
	if e.regranted.IsZero() {
		c.noteHeld(e, 1)
	}
	e.inQueue, e.written, e.placeFrom = false, false, nil
	ctx, cancel := context.WithCancelCause(context.Background())
	e.claim = &Claim{
		ID: e.req.ID, Slots: e.req.Slots, Fence: e.fence, Lease: e.lease,
		Holder: e.req.Holder, Priority: e.req.Priority,
		ClaimedAt: e.record.Since, Keys: len(e.slots), Extra: extra,
		ctx: ctx, cancel: cancel,
	}
	if e.dropped {
		c.keepPlace(e, now)
		c.giveBack(e, nil)
		return
	}
	c.publish(ClaimGranted, e, "")
	c.reconsider(e) // before its holder is notified, who would run for a moment without a lease
	e.answer(outcome{claim: e.claim})
	if e.unwanted {
		c.wanted[e.req.ID] = wanted{fence: e.claim.Fence}
	}
	c.obey(e, now)
}

// reconsider ends the validity of a held claim if its lease was lost meanwhile.
func (c *core) reconsider(e *entry) {
	switch l, lost := c.lost[e.lease]; {
	case c.endCause != nil:
		c.endValidity(e, c.endCause)
	case lost:
		c.endValidity(e, lostError(e, l.cause))
	}
}

// ungrant undoes a grant that did not happen. It is tried again when the view
// has reached revision after.
func (c *core) ungrant(g *grant, after int64, now time.Time) {
	e := g.e
	if e.other != nil {
		c.unlend(e)
		e.other.retryAt, c.retryOthers, c.dirty = after, max(after, c.retryOthers), true
		return
	}
	if _, lost := c.lost[e.lease]; lost || !e.inQueue && e.offer == nil {
		c.releaseLease(e)
		e.written = false // its waiter names another lease
	}
	e.state, e.slots = queued, nil
	if g.idle {
		c.restoreIdle(g.kept, now)
	}
	e.returnPlace()
	e.retryAt, e.unjudged = after, true
	c.dirty = true
	switch {
	case e.dropped:
		c.leave(e, now)
	case e.offer != nil && after > 0:
		c.decline(e) // its slots were taken back, or freed by force
	}
}
