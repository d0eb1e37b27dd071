package owner

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// world is some instances on one stand-in for etcd, driven by a seed: what is asked for, what arrives when, and whose
// answers are lost.
type world struct {
	*rand.Rand
	etcd  *storetest.Etcd
	keys  wire.Keys
	hosts []*host
	d     *standIn
	// without drops compares on their way to etcd, to show that the checks notice.
	without   func(*pb.Compare) bool
	late      []*pb.TxnRequest // sent, given up, and not carried out yet
	forced    map[int64]bool   // revisions of claims that were freed by force
	freed     map[string]int64 // when keys were
	stamps    map[string]wire.Stamp
	chosen    map[string]bool                   // ids that users have chosen, and with a host those that were asked for there
	knew      map[*turn]map[wire.DemandRef]bool // demands that were over when a turn was found out
	clock     time.Duration
	outside   bool // etcd carries out what no instance has sent
	written   *written
	workers   *workers
	transfers *takeOvers
	lives     lives
	errs      []string
	space     spaceOf
	mutant    mutant
	calm      bool     // no message is lost or refused, and each lease is granted
	nobody    bool     // dispatches
	seldom    int      // one part in so many is without a dispatcher
	ids       int      // one claim in so many chooses its id
	shown     int64    // the revision at which etcd is read, 0 for the last one
	turns     []*Claim // that take slots although others wait, in the revision that is being checked
	stats
}

// stats is what has happened.
type stats struct {
	claims, granted, waited, offered int
	over, ahead                      int // keys that were taken over, and of these by advance offers
	passing, served                  int // claims that were taken although others wait, and those that nobody offered
}

type host struct {
	*Owner
	name   string
	leases map[bool]store.LeaseID // of presence, and of claims
	held   []*Claim
	asked  map[*Claim]bool // neither granted nor refused yet, or not released yet
	halves []*half
	reads  []*message
	events []*mvccpb.Event        // of its offers, on their way
	dead   []store.LeaseID        // leases that have ended, unknown to it
	ids    map[store.LeaseID]bool // leases that have claims, or had
	audit  *auditing
	whole  bool // after a restore, all that it holds is to be audited before it commits
}

// half is a half of the writer of a host.
type half struct {
	Half
	sent    []*message
	unknown bool // the outcome of a transaction
}

// message is a transaction on its way, or its answer.
type message struct {
	t       *pb.TxnRequest
	resp    *pb.TxnResponse
	err     error
	carried bool
}

// leasesOf grants a host its leases.
type leasesOf struct {
	*world
	h        *host
	presence bool
}

func (l leasesOf) Acquire(time.Duration, int) (store.LeaseID, bool) {
	if !l.calm && l.IntN(10) == 0 {
		return 0, false
	}
	if l.h.leases[l.presence] == 0 {
		l.h.leases[l.presence], _, _ = l.etcd.Grant(time.Hour) // 0 if etcd is full
		if !l.presence {
			l.h.ids[l.h.leases[false]] = true
		}
	}
	return l.h.leases[l.presence], l.h.leases[l.presence] != 0
}

func (leasesOf) Release(store.LeaseID, int) {}

func (l leasesOf) Valid(id store.LeaseID) bool { return l.h.leases[l.presence] == id }

var errLost = errors.New("no answer")

var poolNames = []string{"db", "gpu"}

func newWorld(seed uint64, without func(*pb.Compare) bool) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 1)), etcd: storetest.New(storetest.Options{}), keys: wire.Keys{Keys: store.NewKeys("/b/")},
		without: without, forced: map[int64]bool{}, freed: map[string]int64{}, stamps: map[string]wire.Stamp{}, knew: map[*turn]map[wire.DemandRef]bool{}, chosen: map[string]bool{}, written: newWritten(), workers: newWorkers(seed), transfers: newTakeOvers(),
		seldom: 8, ids: 4,
	}
	w.d, w.transfers.w = newStandIn(w), w
	w.etcd.OnCommit(w.committed)
	for _, p := range poolNames {
		w.setSpec(p)
	}
	for i := range 2 + w.IntN(2) {
		w.hosts = append(w.hosts, w.begin(&host{name: fmt.Sprint("host-", i), asked: map[*Claim]bool{}, leases: map[bool]store.LeaseID{}, ids: map[store.LeaseID]bool{}}))
	}
	return w
}

// begin has a process of a host begin.
func (w *world) begin(h *host) *host {
	h.Owner = New(Config{Keys: w.keys.Keys, Host: h.name, Instance: "i", Leases: leasesOf{w, h, false}, Presence: leasesOf{w, h, true}})
	h.halves = []*half{{Half: h.Commits()}, {Half: h.Queue()}}
	for _, x := range h.halves {
		for !x.Fenced(w.must(x.Fence())) {
		}
	}
	return h
}

// now is the time of the world: each claim that is asked for takes a while.
func (w *world) now() time.Duration { return w.clock }

// must has etcd carry out what no instance has sent.
func (w *world) must(t *pb.TxnRequest) *pb.TxnResponse {
	w.outside = true
	w.etcd.SetSpace(storetest.SpaceFree)
	resp, err := w.etcd.Txn(t)
	w.etcd.SetSpace(w.space.is)
	w.outside = false
	if err != nil {
		panic(err)
	}
	return resp
}

func (w *world) setSpec(name string) {
	s := pool.DefaultSpec()
	s.Limit = []int{0, 1, 2, 3, 5, 8, 60, 300, pool.Unlimited}[w.IntN(9)]
	s.Paused = w.IntN(10) == 0
	w.putSpec(name, s)
}

func (w *world) putSpec(name string, s pool.Spec) {
	since := int64(0)
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		if was, claims, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision); err == nil && was.Limit == s.Limit {
			since = claims.Since
		}
	}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Spec(name), wire.EncodeSpec(s, since), 0)}})
}

func (w *world) run(steps int) *world {
	for i := range steps {
		w.changeSpace()
		if i%200 == 0 {
			w.nobody = w.IntN(w.seldom) == 0
		}
		w.step(w.hosts[w.IntN(len(w.hosts))])
		if len(w.errs) == 0 && i%200 == 199 {
			w.rest()
		}
		if len(w.errs) > 0 {
			break
		}
	}
	return w
}

func (w *world) step(h *host) {
	if w.lives.often > 0 && w.IntN(w.lives.often) == 0 {
		w.live(h)
		return
	}
	switch x := w.IntN(100); {
	case x < 25:
		w.claim(h, nil)
	case x < 37:
		w.work(h)
		w.release(h)
	case x < 40:
		w.takeOver(h)
	case x < 55:
		w.send(h)
	case x < 80:
		w.deliver(h)
	case x < 87 && x >= 80 && w.space.is != storetest.SpaceFree: // who dispatches can't put anything
	case x < 85:
		w.d.act()
	case x < 87:
		w.d.disturb()
		w.d.disturb()
	case x < 89:
		w.deliverLate()
	case x < 91:
		w.poll(h)
	case x < 92:
		w.withdraw(h)
	case x < 93:
		h.Forget()
	case x < 94:
		w.setSpec(poolNames[w.IntN(len(poolNames))])
	case x < 95:
		h.Age(w.now())
	case x < 96:
		h.RoleChanged()
		w.setFlag()
	case x < 97:
		w.loseLease(h)
	case x < 98:
		w.tell(h)
	default:
		switch w.IntN(4) {
		case 0:
			w.force()
		case 1:
			w.deleteDemands()
		case 2:
			w.gone(h)
		case 3:
			w.written.refusing = !w.written.refusing
		}
	}
}

// deleteDemands deletes demands of a pool, as is done with the pool.
func (w *world) deleteDemands() {
	t := &pb.TxnRequest{}
	for kv := range w.etcd.All(w.keys.DemandsAll(poolNames[w.IntN(len(poolNames))])) {
		if len(t.Success) < 100 {
			t.Success = append(t.Success, store.Delete(string(kv.Key)))
		}
	}
	w.must(t)
	w.unknownStamps()
}

// claim asks for a claim.
func (w *world) claim(h *host, needs map[string]int) *Claim {
	r := &pool.Request{Slots: needs, Holder: pool.Holder{Host: h.name, Instance: "i"}}
	if needs == nil {
		r.Slots = map[string]int{}
		for _, p := range poolNames[w.IntN(2) : 1+w.IntN(2)] {
			r.Slots[p] = []int{1, 1, 1, 2, 40}[w.IntN(5)]
		}
		if len(r.Slots) == 0 {
			r.Slots["gpu"] = 1
		}
		r.Wait = time.Duration(w.IntN(3)) * time.Second
		r.Priority = w.IntN(5) / 4
		r.Bridge = w.IntN(4) == 0
	}
	w.stats.claims++
	w.clock += 2 * time.Millisecond
	r.ID = fmt.Sprint("c", w.stats.claims)
	switch {
	case needs != nil:
	case w.ids > 0 && w.IntN(w.ids) == 0:
		w.choose(h, r)
	default:
		w.writeWith(r, r.ID)
	}
	var place *pool.Place
	if needs == nil {
		place = w.seat(h, r)
	}
	c := NewClaim(r)
	h.asked[c], w.workers.of[c] = true, place
	h.Claim(c, w.now(), time.Unix(int64(w.stats.claims), 0))
	return c
}

func (w *world) release(h *host) {
	if len(h.held) == 0 {
		return
	}
	i := w.IntN(len(h.held))
	c := h.held[i]
	h.held = slices.Delete(h.held, i, i+1)
	h.asked[c] = true
	if w.IntN(3) > 0 || c.request.Chosen || w.transfers.of(c) || !w.releaseWith(h, c) {
		h.Release(c)
	}
}

// withdraw withdraws a claim that was asked for.
func (w *world) withdraw(h *host) {
	for _, c := range h.sorted() {
		if c.state < held && w.IntN(2) == 0 {
			h.Withdraw(c, w.IntN(2) == 0)
			w.results(h)
			return
		}
	}
}

// sorted returns the claims that were asked for, in an order that depends on the seed alone.
func (h *host) sorted() []*Claim {
	return slices.SortedFunc(maps.Keys(h.asked), func(a, b *Claim) int { return strings.Compare(a.request.ID, b.request.ID) })
}

// loseLease ends a lease of a host, which learns of it later.
func (w *world) loseLease(h *host) {
	if id := h.leases[w.IntN(2) == 0]; id != 0 && !slices.Contains(h.dead, id) {
		_ = w.etcd.Revoke(id)
		h.dead = append(h.dead, id)
	}
}

// tell has a host learn that one of its leases has ended.
func (w *world) tell(h *host) {
	if len(h.dead) == 0 {
		return
	}
	id := h.dead[0]
	h.dead = h.dead[1:]
	for _, presence := range []bool{false, true} {
		if h.leases[presence] == id {
			delete(h.leases, presence)
		}
	}
	var lost []*Claim
	for _, c := range slices.Concat(h.held, h.sorted()) {
		if c.lease == id {
			lost = append(lost, c)
		}
	}
	h.LeaseLost(id, lost)
	w.unknownStamps()
	w.results(h)
}

// unknownStamps forgets the stamps of demands whose keys are gone, if their owners never knew that they were there.
func (w *world) unknownStamps() {
	for _, h := range w.hosts {
		for c := range h.asked {
			if c.demand == nil {
				continue
			}
			if _, ok := c.demand.stamped(); !ok {
				delete(w.stamps, asked(c.request))
			}
		}
	}
}

// send sends what an instance has to send.
func (w *world) send(h *host) {
	for i, x := range h.halves {
		if x.unknown || i == 0 && h.whole {
			continue
		}
		if t, ok := x.Next(w.now(), time.Unix(int64(w.stats.claims), 0)); ok {
			w.checkPuts(h, t)
			x.sent = append(x.sent, &message{t: t})
		}
	}
	if t, ok := h.Reads(); ok {
		h.reads = append(h.reads, &message{t: t})
	}
	w.spoil(h)
	w.results(h)
}

func (w *world) results(h *host) {
	for _, r := range h.Results() {
		if r.Claim.found && !h.asked[r.Claim] && !slices.Contains(h.held, r.Claim) {
			continue // a key that belonged to no claim
		}
		w.seated(h, r)
		switch r.Outcome {
		case Waits:
			w.waited++
			w.check(w.transfers.by[r.Claim] == nil, "claim %s waits to be taken over", r.Claim.request.ID)
			continue
		case Stays:
			w.stays(h, r.Claim, r.Err)
			continue
		case Lost:
			w.lives.lost++
			w.checkCombined(r)
			h.held = slices.DeleteFunc(h.held, func(c *Claim) bool { return c == r.Claim })
			delete(h.asked, r.Claim)
			continue
		case Granted:
			w.granted++
			h.held = append(h.held, r.Claim)
			w.checkResponses(r.Claim)
			w.checkTakenOver(r.Claim)
		case Refused:
			w.checkRefusal(r.Claim, r.Err)
		case Released:
			w.checkCombined(r)
			if w.space.is != storetest.SpaceFree {
				w.space.released++
			}
			if errors.Is(r.Err, ErrGone) {
				w.check(w.forced[r.Claim.fence] || w.freed[r.Claim.main.Key(w.keys)] > r.Claim.fence, "the slots of claim %s of revision %d were gone", r.Claim.request.ID, r.Claim.fence)
			}
		}
		w.check(h.asked[r.Claim], "claim %s ends twice", r.Claim.request.ID)
		delete(h.asked, r.Claim)
	}
}

// deliver has a message of an instance get on.
func (w *world) deliver(h *host) {
	switch x := w.IntN(4); {
	case x == 3:
		if len(h.events) > 0 {
			h.Offered(h.events[0])
			h.events = h.events[1:]
		}
	case x == 2:
		if m := w.carryOn(&h.reads); m != nil {
			w.mutant.changeRead(m.resp)
			h.Read(m.resp, m.err)
			w.decided(h)
		}
	case h.halves[x].unknown && x == 0 && h.whole:
	case h.halves[x].unknown:
		w.resolve(h, h.halves[x])
	default:
		if m := w.carryOn(&h.halves[x].sent); m != nil {
			w.noSpace(h, m.err)
			h.halves[x].unknown = h.halves[x].Answer(m.resp, m.err)
		}
	}
	claims, demands := h.Suspects()
	for _, id := range slices.Concat(claims, demands) {
		if i := slices.Index(h.dead, id); i >= 0 {
			h.dead[0], h.dead[i] = h.dead[i], h.dead[0]
			w.tell(h)
		}
	}
	w.results(h)
}

// carryOn has a transaction carried out, or returns one whose answer has arrived.
func (w *world) carryOn(sent *[]*message) *message {
	if len(*sent) == 0 {
		return nil
	}
	m := (*sent)[0]
	if !m.carried {
		if m.carried = true; !w.calm && w.IntN(20) == 0 { // it comes later, or never
			m.err = errLost
			if w.IntN(2) == 0 {
				w.late = append(w.late, m.t)
			}
			return nil
		}
		m.resp, m.err = w.carry(m.t)
		return nil
	}
	*sent = (*sent)[1:]
	if m.err == nil && !w.calm && w.IntN(20) == 0 {
		m.resp, m.err = nil, errLost
	}
	return m
}

// carry has etcd carry a transaction out.
func (w *world) carry(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if w.without != nil && (!w.mutant.pool || slices.ContainsFunc(deletes(t), func(key string) bool { return strings.Contains(key, "/pending/") })) {
		dropCompares(t, w.without)
	}
	if w.transfers.unchecked {
		w.transfers.uncheck(t)
	}
	w.mutant.change(t)
	if err := w.refuses(t); err != nil {
		return nil, err
	}
	return w.carriedOut(t)
}

func dropCompares(t *pb.TxnRequest, without func(*pb.Compare) bool) {
	t.Compare = slices.DeleteFunc(t.Compare, without)
	for _, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			dropCompares(child, without)
		}
	}
}

func (w *world) deliverLate() {
	if len(w.late) > 0 {
		t := w.late[0]
		w.late = w.late[1:]
		_, _ = w.carry(t)
	}
}

// resolve finds out what has become of a transaction without an answer.
func (w *world) resolve(h *host, x *half) {
	w.outside = true
	resp, err := w.etcd.Txn(x.Fence())
	w.outside = false
	if w.noSpace(h, err); err == nil && x.Fenced(resp) {
		x.Resolved(w.must(x.Unresolved()))
		x.unknown = false
	}
}

// poll has an instance read its offers and its demands.
func (w *world) poll(h *host) {
	h.events = nil // it is not behind what it has read
	resp := w.must(&pb.TxnRequest{Success: h.Polls()})
	h.Polled(resp.Responses, resp.Header.Revision)
	h.Serve(w.now(), w.nobody)
}

// force frees the slots of a claim by force.
func (w *world) force() {
	all := w.held()
	if len(all) == 0 {
		return
	}
	rev := slices.Sorted(maps.Keys(all))[w.IntN(len(all))]
	t := &pb.TxnRequest{}
	for _, kv := range all[rev] {
		t.Success = append(t.Success, store.Delete(string(kv.Key)))
	}
	if len(t.Success) > 100 {
		return
	}
	w.forced[rev] = true
	t.Success = append(t.Success, w.idsOf(rev)...)
	w.must(t)
	for _, kv := range all[rev] {
		w.freed[string(kv.Key)] = w.etcd.Revision()
	}
}
