package e2e

import (
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// This file judges in which order claims get slots of pools for which others wait.
//
// A pool is pending while its pending key is there. A claim that takes slots of a pending pool must have a right to that, as it
// was before the revision of the grant:
//   - an offer to its demand that names what it takes;
//   - an advance offer to its owner, and slots that a claim of that owner gives back in the same revision;
//   - the role of the dispatcher, whose own demands are offered in memory: these alone are not judged further;
//   - its turn by what is in etcd, which it shows by putting the pending key again, or by deleting it if nobody else waits:
//     claims that do not wait, and demands that nobody serves.
//
// An offer, and such a turn, must not pass a claim of a higher rank that needs no more of the same pools, and does not fit in
// what is left. What may be passed, since the dispatcher can't know better or has a reason, is named by [History.excused]
// and [queueState.knew]. That an advance offer passes others for 20 ms is not judged.

const (
	// offeredBefore is for how long a demand to which an offer came to nothing may be left out: the pause ends after a
	// second.
	offeredBefore = 2 * time.Second
	// passedBefore is for how long a host may be passed after its sign was deleted, or before it is put.
	passedBefore = 5 * time.Second
	// fewOffers of an instance do not keep it from more.
	fewOffers = 4
	// fewSlots fit in slot keys, and fewPools in one transaction, whatever else there is.
	fewSlots, fewPools = 32, 8
	// fewKeys are the offers keys of a plan that was not cut off.
	fewKeys = 60
)

// offersKeySeen is a key below offers/ that exists.
type offersKeySeen struct {
	key   berthKey
	rev   int64
	value offersValue
}

// queueState is what the history keeps to judge wait queues.
type queueState struct {
	now     func() time.Time
	demands *demandsSeen
	pending map[string]int64 // when the key of a pool was put last
	offers  map[string]*offersKeySeen
	signs   map[string]time.Time // hosts that were passed: when a sign of that was last seen
	role    instanceID           // who dispatches; zero if nobody does
	// known is up to which revision the dispatcher certainly knows a pool.
	known map[string]int64
	// taken is when a claim took slots of a pool last.
	taken map[string]int64
	// closed are the offers keys that have gone a moment ago.
	closed []closedOffers
	// takeOvers are when the role was taken from one that was silent.
	takeOvers []time.Time
	// dispatched: there was a dispatcher, so that time is judged.
	dispatched bool

	// What the revision at hand has touched.
	was    map[string]int64 // when pending keys were put before it; 0 if they were not there
	before instanceID       // who dispatched before it
	begun  []*Hold
	ended  []*slot
	put    []*offersKeySeen
	gone   []*offersKeySeen
}

// closedOffers is an offers key that has gone.
type closedOffers struct {
	of  instanceID
	n   int // offers
	rev int64
	at  time.Time
}

func newQueueState(demands *demandsSeen) queueState {
	q := queueState{
		now: time.Now, demands: demands, pending: map[string]int64{}, offers: map[string]*offersKeySeen{}, signs: map[string]time.Time{},
		known: map[string]int64{}, taken: map[string]int64{},
	}
	q.beginRevision()
	return q
}

// beginRevision forgets what the one before has touched.
func (q *queueState) beginRevision() {
	q.was, q.before = map[string]int64{}, q.role
	q.begun, q.ended, q.put, q.gone = nil, nil, nil, nil
}

// forget drops what only who judges time needs.
func (q *queueState) forget() { q.takeOvers = nil }

// useClock has it take the time from a clock.
func (q *queueState) useClock(now func() time.Time) { q.now = now }

// begin records that a claim holds slots from the revision at hand on.
func (q *queueState) begin(x *Hold) { q.begun = append(q.begun, x) }

// end records that the revision at hand has ended a slot.
func (q *queueState) end(s *slot) { q.ended = append(q.ended, s) }

// event takes an event of a key about the wait queue that is no demand.
func (q *queueState) event(k berthKey, put bool, kv *mvccpb.KeyValue) error {
	switch k.Kind {
	case pendingKey:
		q.was[k.Pool] = q.pending[k.Pool]
		if delete(q.pending, k.Pool); put {
			q.pending[k.Pool] = kv.ModRevision
		}
	case roleKey:
		return q.dispatcher(put, kv)
	case offersKey, advanceKey, passedKey:
		return q.offer(k, put, kv)
	case idKey:
		return nil // only whether it is on a lease is judged
	}
	if put {
		return version(kv.Value)
	}
	return nil
}

// version refuses a value of another version.
func version(value []byte) error {
	_, err := read(value, func(v *struct{ V int }) int { return v.V })
	return err
}

func (q *queueState) dispatcher(put bool, kv *mvccpb.KeyValue) error {
	by := instanceID{}
	if put {
		v, err := ReadDispatcher(kv.Value)
		if err != nil {
			return err
		}
		by = instanceID{v.Host, v.Instance}
		q.dispatched = true
		for _, at := range v.TakeOvers {
			if !slices.ContainsFunc(q.takeOvers, at.Equal) {
				q.takeOvers = append(q.takeOvers, at)
			}
		}
	}
	if by != q.role || kv.CreateRevision == kv.ModRevision {
		clear(q.known)
	}
	q.role = by
	return nil
}

func (q *queueState) offer(k berthKey, put bool, kv *mvccpb.KeyValue) error {
	key := string(kv.Key)
	if old := q.offers[key]; old != nil {
		delete(q.offers, key)
		q.gone = append(q.gone, old)
		q.close(old, kv.ModRevision)
		q.eachOffered(old, -1)
	}
	if k.Kind == passedKey {
		q.signs[k.Host] = q.now()
	}
	if !put {
		return nil
	}
	now := &offersKeySeen{key: k, rev: kv.ModRevision}
	var err error
	if now.value, err = read(kv.Value, func(v *offersValue) int { return v.V }); err != nil {
		return err
	}
	q.offers[key] = now
	q.put = append(q.put, now)
	q.eachOffered(now, 1)
	return nil
}

// close records that an offers key has gone.
func (q *queueState) close(o *offersKeySeen, rev int64) {
	now := q.now()
	q.closed = slices.DeleteFunc(q.closed, func(x closedOffers) bool { return now.Sub(x.at) >= offeredBefore })
	q.closed = append(q.closed, closedOffers{o.key.owner(), len(o.value.Offers), rev, now})
}

// eachOffered counts the offers of a key, or takes them off, at the demands.
func (q *queueState) eachOffered(o *offersKeySeen, n int) {
	for _, x := range o.value.Offers {
		if w := q.demands.waiterOf(o.key.owner(), x.Demand); w != nil {
			w.offers, w.offered = w.offers+n, q.now()
		}
	}
}

// checkQueues judges the offers and the grants of a revision, and notes which pools have a waiter that fits.
func (h *History) checkQueues() {
	moved := map[string]bool{}
	for _, x := range h.queue.begun {
		w := h.waited(x)
		h.checkRight(x, w)
		for name := range x.Pools {
			moved[name] = moved[name] || len(w) > 0
		}
	}
	for _, x := range h.queue.begun {
		for name := range x.Pools {
			h.queue.taken[name] = h.rev
		}
	}
	h.checkOffers()
	h.idle.note(h.queue.now(), h.fitting(), moved)
}

// waited returns the demands that a claim had before this revision, those first that have left: it has several if a restore has
// brought one back.
func (h *History) waited(x *Hold) (all []*waiter) {
	for _, list := range [][]*waiter{h.demands.left, h.demands.line} {
		for _, w := range list {
			if w.value.Claim == x.Claim && w.owner() == (instanceID{x.Host, x.Instance}) && w.ref.Created < h.rev {
				all = append(all, w)
			}
		}
	}
	return all
}

// checkRight judges whether a claim may take slots of pools that are pending.
func (h *History) checkRight(x *Hold, had []*waiter) {
	q := &h.queue
	var pending []string
	turn := true // the keys of all of them are put again, or deleted where nobody is left who waits
	known := int64(math.MaxInt64)
	for name := range x.Pools {
		was, touched := q.was[name]
		if !touched {
			was = q.pending[name]
		}
		if was != 0 {
			pending = append(pending, name)
			ends := touched && q.pending[name] == 0 && !h.demands.wait(name)
			turn, known = turn && (ends || q.pending[name] == h.rev), min(known, was)
		}
	}
	switch {
	case len(pending) == 0 || q.before == instanceID{x.Host, x.Instance}:
	case slices.ContainsFunc(had, func(w *waiter) bool { return h.wasOffered(x, w) }):
	case h.wasAdvanced(x, pending):
	case turn:
		h.checkTurn(x, had, known)
	default:
		slices.Sort(pending)
		h.violate(Order, "claim %s of %s/%s was granted %v without an offer, and claims wait for %v",
			x.Claim, x.Host, x.Instance, x.Pools, pending)
	}
}

// wasOffered reports whether an offer to a waiter that was there before this revision names what its claim takes.
func (h *History) wasOffered(x *Hold, w *waiter) bool {
	for _, o := range h.queue.gone {
		if h.offers(o, x, w) {
			return true
		}
	}
	for _, o := range h.queue.offers {
		if o.rev < h.rev && h.offers(o, x, w) {
			return true
		}
	}
	return false
}

func (h *History) offers(o *offersKeySeen, x *Hold, w *waiter) bool {
	if o.key.owner() != w.owner() {
		return false
	}
	for _, one := range o.value.Offers {
		if one.Demand != w.ref {
			continue
		}
		for _, s := range h.byClaim[x.Claim] {
			if !one.Take[s.pool].names(s) {
				return false
			}
		}
		return true
	}
	return false
}

// names reports whether a slot has only what may be taken.
func (t takeValue) names(s *slot) bool {
	if s.value.Count > 0 {
		return slices.ContainsFunc(t.Blocks, func(b blockValue) bool { return b.Count >= s.n })
	}
	all := map[int]bool{}
	for _, n := range t.Numbers {
		all[n] = true
	}
	for _, b := range t.Blocks {
		for n := range b.each {
			all[n] = true
		}
	}
	for n := range s.value.each {
		if !all[n] {
			return false
		}
	}
	return true
}

// each yields all numbers of a block.
func (b *blockValue) each(yield func(int) bool) {
	for _, r := range b.Runs {
		for n := r[0]; n < r[1]; n++ {
			if !yield(n) {
				return
			}
		}
	}
}

// wasAdvanced reports whether a claim takes over slots of its owner, which had advance offers, in each pending pool.
func (h *History) wasAdvanced(x *Hold, pending []string) bool {
	for _, name := range pending {
		if !h.queue.hasAdvance(instanceID{x.Host, x.Instance}, name, h.rev) {
			return false
		}
		had, count := map[int]bool{}, 0
		for _, s := range h.queue.ended {
			if s.pool != name || s.claim == x.Claim || s.ownerOf(h) != (instanceID{x.Host, x.Instance}) {
				continue
			}
			count += s.value.Count
			for n := range s.value.each {
				had[n] = true
			}
		}
		for _, s := range h.byClaim[x.Claim] {
			if s.pool != name {
				continue
			}
			for n := range s.value.each {
				if !had[n] {
					return false
				}
			}
			if s.value.Count > count {
				return false
			}
		}
	}
	return true
}

// ownerOf returns the instance that held a slot which this revision has ended.
func (s *slot) ownerOf(h *History) instanceID {
	for _, x := range slices.Backward(h.holds) {
		if x.Claim == s.claim && x.From == s.rev {
			return instanceID{x.Host, x.Instance}
		}
	}
	return instanceID{}
}

// hasAdvance reports whether there was an advance offer to an instance before a revision.
func (q *queueState) hasAdvance(of instanceID, pool string, rev int64) bool {
	k := berthKey{Kind: advanceKey, Pool: pool, Host: of.host, Instance: of.instance}
	for _, o := range q.gone {
		if o.key == k {
			return true
		}
	}
	for _, o := range q.offers {
		if o.key == k {
			return o.rev < rev
		}
	}
	return false
}

// checkTurn judges a claim that shows by the pending keys that it had its turn: it has read all that waited when they were put
// last. If others took slots since, or with it, the one before it may have fitted then.
func (h *History) checkTurn(x *Hold, had []*waiter, known int64) {
	if len(h.queue.begun) > 1 {
		return
	}
	for name := range x.Pools {
		if h.queue.taken[name] > known {
			return
		}
	}
	for _, w := range h.demands.line {
		if slices.ContainsFunc(had, func(got *waiter) bool { return byRank(w, got) >= 0 }) {
			return
		}
		if w.rev < known && w.owner() != (instanceID{x.Host, x.Instance}) && h.passedBy(w, x.Pools) && !w.fits(h.free()) {
			h.violate(Order, "claim %s of %s/%s had its turn, and %s waits before it", x.Claim, x.Host, x.Instance, w.described())
			return
		}
	}
}

// checkOffers judges the offers of a revision: no demand of a higher rank that the dispatcher knows is left out.
func (h *History) checkOffers() {
	q := &h.queue
	q.noteSilent()
	keys, offered := 0, []*waiter{}
	for _, o := range q.put {
		for _, x := range o.value.Offers {
			w := h.demands.waiterOf(o.key.owner(), x.Demand)
			if len(x.Take) == 0 || w == nil {
				continue // it is refused, or its owner has taken it out
			}
			offered = append(offered, w)
			for name := range w.value.Pools {
				q.known[name] = max(q.known[name], w.ref.Created)
			}
		}
		if o.key.Kind == offersKey {
			keys++
		}
	}
	if len(offered) == 0 || keys > fewKeys || q.before != q.role {
		return
	}
	last := slices.MaxFunc(offered, byRank)
	free := h.unlent()
	for _, w := range h.demands.line {
		if byRank(w, last) >= 0 {
			return
		}
		if !q.knew(w) || w.fits(free) {
			continue
		}
		for _, x := range offered {
			if byRank(w, x) < 0 && h.passedBy(w, x.value.Pools) {
				h.violate(Order, "%s was offered slots, and %s waits before it", x.described(), w.described())
				return
			}
		}
	}
}

// noteSilent records the hosts to whose instances an offers key was deleted by the dispatcher: in a revision that has other keys of it.
// They have left it alone, and are passed from then on; their signs may come later, as a transaction has few of them.
func (q *queueState) noteSilent() {
	if q.before != q.role { // a take-over deletes them all
		return
	}
	if len(q.put) == 0 && !slices.ContainsFunc(q.gone, func(o *offersKeySeen) bool { return o.key.owner() != q.gone[0].key.owner() }) {
		return
	}
	for _, o := range q.gone {
		if o.key.Kind == offersKey {
			q.signs[o.key.Host] = q.now()
		}
	}
}

// passedBy reports whether a claim that takes slots of pools passes a waiter that nothing excuses.
func (h *History) passedBy(w *waiter, pools map[string]int) bool {
	return covers(pools, w.value.Pools) && h.possible(w) && !h.excused(w)
}

// knew reports whether the dispatcher certainly knows a waiter as it is.
func (q *queueState) knew(w *waiter) bool { return q.sawOf(w, w.rev) }

// sawOf reports whether the dispatcher has certainly seen the pools of a waiter at a revision: its offers show what it has seen of
// each.
func (q *queueState) sawOf(w *waiter, rev int64) bool {
	for name := range w.value.Pools {
		if rev >= q.known[name] {
			return false
		}
	}
	return true
}

// excused reports whether a waiter may be left out:
//   - it is not in all of its pools, or has had its slots and its demand goes later;
//   - its claim has two demands, one of which a restore has brought back;
//   - one of several claims for the same, or a step: its owner may have no place for it;
//   - it has an offer, or had one a moment ago that came to nothing;
//   - its owner dispatches, and has its offers in memory;
//   - its host is passed, or was a moment ago: an instance was silent, or has left an offer alone;
//   - its owner has many offers already;
//   - it needs so much that it may need blocks, or whole pools, and waits until nothing else is lent there.
func (h *History) excused(w *waiter) bool {
	q := &h.queue
	switch {
	case !w.whole, w.served, h.holding[w.value.Claim] != nil:
	case q.demands.stands[w.wait] > 1:
	case w.value.Sole, w.value.Holder.Step != "":
	case w.offers > 0, !w.offered.IsZero() && q.now().Sub(w.offered) < offeredBefore:
	case w.owner() == q.role:
	case q.passed(w), q.now().Sub(q.signs[w.value.Holder.Host]) < passedBefore:
	case q.lentTo(w) >= fewOffers:
	case len(w.value.Pools) > fewPools || total(w.value.Pools) > fewSlots:
	default:
		return false
	}
	return true
}

// passed reports whether an instance of a waiter's host is passed.
func (q *queueState) passed(w *waiter) bool {
	for _, o := range q.offers {
		if o.key.Kind == passedKey && o.key.Host == w.value.Holder.Host {
			return true
		}
	}
	return false
}

// lentTo is how many demands of a waiter's owner have offers, or had some a moment ago, and of how many the dispatcher may not know
// yet that they were committed.
func (q *queueState) lentTo(waits *waiter) (n int) {
	for _, w := range q.demands.line {
		if w.owner() == waits.owner() && (w.offers > 0 || q.now().Sub(w.offered) < offeredBefore) {
			n++
		}
	}
	for _, x := range q.closed {
		if x.of == waits.owner() && !q.sawOf(waits, x.rev) {
			n += x.n
		}
	}
	return n
}

func total(pools map[string]int) (n int) {
	for _, x := range pools {
		n += x
	}
	return n
}

// possible reports whether a waiter could be granted if nothing else were held.
func (h *History) possible(w *waiter) bool {
	for name, n := range w.value.Pools {
		if p := h.pool(name); !p.known || p.paused || p.limit != Unlimited && n > p.limit {
			return false
		}
	}
	return true
}

// free returns the free slots of all pools.
func (h *History) free() map[string]int {
	all := map[string]int{}
	for name, p := range h.pools {
		if all[name] = p.limit - p.used; p.limit == Unlimited {
			all[name] = math.MaxInt
		}
	}
	return all
}

// unlent returns the free slots that are not offered.
func (h *History) unlent() map[string]int {
	free := h.free()
	for _, w := range h.demands.line {
		if w.offers == 0 {
			continue
		}
		for name, n := range w.value.Pools {
			free[name] -= n
		}
	}
	return free
}

// covers reports whether a claim takes at least what another one needs.
func covers(took, needs map[string]int) bool {
	for name, n := range needs {
		if took[name] < n {
			return false
		}
	}
	return true
}
