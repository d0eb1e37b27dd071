package owner

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// Leases reserves keys on leases of this instance.
type Leases interface {
	// Acquire reserves some keys on a lease of a duration. It never blocks: false means that a lease is being granted.
	Acquire(d time.Duration, keys int) (store.LeaseID, bool)
	// Release ends the reservation.
	Release(id store.LeaseID, keys int)
	// Valid reports whether a lease is valid now. Slots are only taken on one that is.
	Valid(id store.LeaseID) bool
}

// Config is what an [Owner] needs.
type Config struct {
	Keys           store.Keys
	Host, Instance string
	// Leases are those of claims, and Presence those of claims that wait: they end soon after the process.
	Leases, Presence Leases
}

// Owner is the claims of one instance.
type Owner struct {
	keys      wire.Keys
	prefix    string // of offers to this instance
	memory    memory
	offers    *offers
	queue     *queue
	commits   *commits
	transfers transfers
	surveys   *surveys
	outcomes  *outcomes
	space     *Space
	orphans   orphans
	reading   func(*pb.TxnResponse, error) // takes the answer to the read that is under way; nil if none is
	polled    []string                     // pools whose demands the last poll reads
	chosen    []*demand                    // whose ids it reads
}

// Half is one of the two halves of the writer of an instance. Each has one transaction under way, and a guard of its own,
// so a claim that has to wait is put into the queue while slots are taken. Earlier writes of the instance must be fenced
// before the first one: Fence is to be sent until Fenced is true. After a transaction with an unknown outcome they must be
// fenced too, and then what Unresolved returns is to be read.
type Half interface {
	// Next returns the next transaction, false if there is none, or one is under way. It takes the time since any fixed
	// moment, and the time to record.
	Next(now time.Duration, at time.Time) (*pb.TxnRequest, bool)
	// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown, or
	// another process has written as this instance.
	Answer(resp *pb.TxnResponse, err error) (unknown bool)
	Fence() *pb.TxnRequest
	Fenced(resp *pb.TxnResponse) bool
	Unresolved() *pb.TxnRequest
	Resolved(resp *pb.TxnResponse)
}

// New returns the owner of the claims of an instance.
func New(cfg Config) *Owner {
	keys := wire.Keys{Keys: cfg.Keys}
	o := &Owner{
		keys: keys, prefix: keys.Offers(cfg.Host, cfg.Instance),
		memory: memory{keys: keys, hash: slots.Hash(cfg.Host, cfg.Instance), pools: map[string]*known{}},
		offers: newOffers(), outcomes: &outcomes{counts: newCounts()}, space: &Space{},
	}
	o.queue = newQueue(cfg, o.space, &o.memory)
	o.commits = &commits{
		memory: &o.memory, queue: o.queue, offers: o.offers, outcomes: o.outcomes, leases: cfg.Leases,
		sender: sender{space: o.space, guard: store.NewGuard(keys.Guard(cfg.Host, cfg.Instance))},
	}
	o.surveys = newSurveys(o.commits, cfg)
	o.commits.surveys = o.surveys
	return o
}

// Commits returns the half that takes and releases slots.
func (o *Owner) Commits() Half { return o.commits }

// Queue returns the half that puts claims into the wait queue.
func (o *Owner) Queue() Half { return o.queue }

// Space returns whether etcd takes puts, as far as is known. Refused is to be called for each transaction of its halves that etcd refuses for want of space.
func (o *Owner) Space() *Space { return o.space }

// Claim asks for a claim, at a time of day.
func (o *Owner) Claim(c *Claim, now time.Duration, at time.Time) {
	c.arrive(now, at, o.memory.begun)
	if c.transfer != nil {
		o.transfers.add(c) // what is taken over is read first
		return
	}
	o.commits.want.add(c)
}

// Release asks for the end of a claim that was granted.
func (o *Owner) Release(c *Claim) {
	if c.state == held {
		o.commits.release(c)
	} else if c.combined != nil {
		c.combined.release()
	}
}

// Withdraw asks for the end of a claim that was not granted yet. If it is granted meanwhile, it is released, unless it is kept
// then.
func (o *Owner) Withdraw(c *Claim, kept bool) {
	if c.withdraw(kept); c.state == waiting {
		o.commits.refuse(c, nil)
	}
}

// Want ends that a claim is withdrawn. It is false if that is too late.
func (o *Owner) Want(c *Claim) bool {
	if c.state != wanted && c.state != taking {
		return false
	}
	c.renew()
	return true
}

// Wakes returns when a half may have a next transaction without anything else having happened, later than now; 0 is never.
func (o *Owner) Wakes(now time.Duration) (at time.Duration) {
	for _, t := range []time.Duration{o.commits.wakes, o.queue.collecting.until, o.queue.reserving.next, o.queue.shelf.wakes(), o.space.Wakes()} {
		if t > now && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// Waiting returns how many claims wait in the queue.
func (o *Owner) Waiting() int { return o.queue.waits }

// Results returns what has become of claims since the last call.
func (o *Owner) Results() []Result { return o.outcomes.news.take() }

// Forget forgets what may have changed unseen: to be called when etcd has not answered for a while, or a connection to
// it has broken.
func (o *Owner) Forget() { o.memory.forget() }

// Age is to be called at least each half minute.
func (o *Owner) Age(now time.Duration) { o.memory.age(now) }

// LeaseLost records that a lease is not valid any longer. Demands on it are put again on another one, and claims that wait
// reserve their keys on another one. Claims is those of this instance whose keys on it are gone.
func (o *Owner) LeaseLost(id store.LeaseID, claims []*Claim) {
	o.queue.leaseLost(id)
	for _, c := range o.queue.reservedOn(id) {
		c.reserve(o.commits.leases, o.memory.leaseDuration(c))
	}
	o.commits.leaseLost(claims)
}

// Gone records that the slots of claims that were granted are no longer theirs: they were freed by force, or taken over.
func (o *Owner) Gone(claims []*Claim) { o.commits.leaseLost(claims) }

// Suspects returns the leases of claims, and of demands, that etcd may not know: since the last call it has refused a
// transaction with them for that reason. If one has ended, LeaseLost is to be called.
func (o *Owner) Suspects() (claims, demands []store.LeaseID) {
	return o.commits.suspects.take(), o.queue.suspects.take()
}

// Offered takes an event of a key below the offers to this instance.
func (o *Owner) Offered(ev *mvccpb.Event) {
	if ev.Type == mvccpb.PUT {
		o.offerRead(ev.Kv)
	} else {
		o.offers.withdraw(string(ev.Kv.Key))
	}
}

// offersRead takes all keys below the offers to this instance.
func (o *Owner) offersRead(kvs []*mvccpb.KeyValue) {
	o.offers.keep(kvs)
	for _, kv := range kvs {
		o.offerRead(kv)
	}
}

// offerRead takes a key below the offers to this instance. One that can't be read offers nothing: it is deleted.
func (o *Owner) offerRead(kv *mvccpb.KeyValue) {
	of := &offered{key: string(kv.Key), created: kv.CreateRevision}
	of.list, _ = wire.DecodeOffers(of.key, kv.Value)
	switch name, err := o.keys.OfferKey(of.key); {
	case err != nil:
	case name.Passed():
		o.passed(of)
	case name.Advance != "":
		o.offers.setAdvance(name.Advance, of)
	default:
		o.offers.add(of)
	}
}

// passed takes the sign that the dispatcher passes this instance: it puts its demands again, and deletes the sign.
func (o *Owner) passed(of *offered) {
	o.queue.renotify()
	o.commits.drops.add(of)
}

// Polls returns the operations that read what a watch shows too, whether the demands of this instance are there, their pools, and
// who has the ids that users have chosen for them: to be part of a transaction from time to time, in case that the watch is silent.
func (o *Owner) Polls() []*pb.RequestOp {
	o.polled, o.chosen = o.queue.pools(), o.queue.chosen()
	ops := []*pb.RequestOp{under(o.prefix, false)}
	for _, p := range o.polled {
		own := under(o.keys.Demands(p, o.queue.host, o.queue.instance), true)
		ops = append(ops, limited(own, int64(len(o.queue.byName)+maxStrays)), store.Get(o.keys.Spec(p)))
	}
	for _, d := range o.chosen {
		ops = append(ops, store.Get(o.keys.ID(d.claim.request.ID)))
	}
	return ops
}

// Polled takes the responses to Polls, as of a revision.
func (o *Owner) Polled(responses []*pb.ResponseOp, revision int64) {
	o.offersRead(responses[0].GetResponseRange().Kvs)
	created := map[string]int64{}
	for _, r := range responses[1:] {
		for _, kv := range r.GetResponseRange().Kvs {
			created[string(kv.Key)] = kv.CreateRevision
		}
	}
	var whole []string
	for i, name := range o.polled {
		if !responses[1+2*i].GetResponseRange().More {
			whole = append(whole, name)
		}
		o.memory.specRead(name, responses[2+2*i], revision)
	}
	o.queue.reserving.soon(0) // from what age on may be another one now
	for i, d := range o.chosen {
		o.commits.idRead(d, responses[1+2*len(o.polled)+i].GetResponseRange().Kvs)
	}
	o.queue.polled(whole, created, revision)
}

// Serve is to be called after each poll. Nobody says that nobody dispatches: the demands of this instance are committed whose turn
// it is. Else only those are that had their turn 5 s before already, and no offer since.
func (o *Owner) Serve(now time.Duration, nobody bool) { o.surveys.serve(now, nobody) }

// OfferOwn offers slots to this instance, which dispatches itself under a role of a revision.
func (o *Owner) OfferOwn(list []wire.Offer, role int64) {
	o.offers.add(&offered{role: o.keys.Role(), created: role, list: list})
}

// Dispatch records that this instance dispatches under a role of a revision, and in which pools it may then hand slots on
// to its own claims that wait; nil if it does not dispatch.
func (o *Owner) Dispatch(may func(pool string) bool, role int64) {
	o.offers.setOwn(ownAdvance{may, offered{role: o.keys.Role(), created: role}})
}

// OwnOffers returns what has become of offers in memory, under the role that this instance has, since the last call.
func (o *Owner) OwnOffers() []OwnOffer { return o.offers.closed.take() }

// Left reports whether this instance has put pools as pending that nobody may end, or is putting some: then it has to dispatch.
func (o *Owner) Left() bool {
	b := o.queue.flight
	return o.queue.left || b != nil && len(b.pending) > 0
}

// Queued returns how many demands keys of this instance are in etcd.
func (o *Owner) Queued() int { return o.queue.placed() }

// RoleChanged has the pools pending again that claims of this instance keep so: a new dispatcher begins with those.
func (o *Owner) RoleChanged() { o.queue.roleTaken() }

// Role returns the key of the role of the dispatcher as the last answer to the queue has shown it, with its revision; nil
// if there was none.
func (o *Owner) Role() (kvs *pb.RangeResponse, revision int64) {
	return o.queue.role.kv, o.queue.role.revision
}

// Reads returns the transaction that reads what claims need to know, false if there is none, or one is under way.
func (o *Owner) Reads() (*pb.TxnRequest, bool) {
	if o.reading != nil {
		return nil, false
	}
	t, answer := o.transfers.next(o.keys, o.commits)
	if t == nil {
		t, answer = o.surveys.next(len(o.memory.wants) > 0)
	}
	if t == nil {
		t, answer = o.memory.next()
	}
	o.reading = answer
	return t, t != nil
}

// Read takes the answer to Reads, or that there was none.
func (o *Owner) Read(resp *pb.TxnResponse, err error) {
	answer := o.reading
	o.reading = nil
	o.commits.reroute()
	answer(resp, err)
}

// Watched returns the prefix of the offers to this instance, which is to be watched while claims of it wait.
func (o *Owner) Watched() string { return o.prefix }
