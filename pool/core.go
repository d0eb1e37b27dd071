package pool

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// Leases provides the leases that claims are attached to.
type Leases interface {
	// Acquire reserves some keys on a lease of exactly that duration. It never
	// blocks: false means that a lease is being granted, and that
	// [Engine.LeasesReady] will be called.
	Acquire(d time.Duration, keys int) (store.LeaseID, bool)
	// Release releases the reservation.
	Release(id store.LeaseID, keys int)
	// Valid reports whether a lease is valid now, by the clock that decides on claims.
	Valid(id store.LeaseID) bool
	// Keeps reports whether this instance renews a lease, so that keys on it that belong
	// to no claim of the instance would never end.
	Keeps(id store.LeaseID) bool
	// Suspect reports that etcd did not know one of these leases.
	Suspect(ids ...store.LeaseID)
	// Trouble returns why the last grant of a lease failed, nil if it succeeded.
	Trouble() error
}

// phase of a core.
type phase int

const (
	fencing   phase = iota // earlier writes are being fenced: they may still happen
	resolving              // earlier writes are fenced: the view must reach that revision
	normal
)

const (
	// patience is how long a request that does not wait is kept while the view is
	// too old to decide on it.
	patience = 5 * time.Second
	// WaiterTTL is how long the waiters of an instance outlive it.
	WaiterTTL = 10 * time.Second
	// keepPlace is how long a canceled claim keeps its place in the wait queue.
	keepPlace = 10 * time.Second
	// RevokeGrace is how long after a revocation the slots are kept for the holder
	// to stop, unless it is supervised.
	RevokeGrace = grace.Revoke
	// fullPause is how long a core waits before it tries to write again after
	// etcd said that it is full.
	fullPause = 5 * time.Second
	// waiterDelay is how long waiters are kept back to be written along with
	// something else: some round trips to etcd, and nothing a waiter would notice.
	waiterDelay = time.Millisecond
	// calmBatches is how many batches without a conflict make a core flat again.
	calmBatches = 4
)

// core makes all decisions of an engine: a state machine without goroutines,
// clocks or connections. Its driver passes in what happened, with the time, asks
// it for the next call to etcd, and passes in the response; at most one call is
// in flight. Errors of the driver can cost time, not safety.
type core struct {
	host, instance string
	start          uint32 // the group at which this host starts to look for free slots
	leases         Leases
	waiterLeases   Leases // nil: waiters can't be written
	log            hclog.Logger
	metrics        *metrics
	broker         *broker

	view  *view
	guard store.Guard
	phase phase
	// witnesses are the keys that show what the batch with an unknown outcome did to slots that it
	// kept, as they are once earlier writes are fenced.
	witnesses map[string]*mvccpb.KeyValue
	// resolveAt is the revision that the view must reach to show what the batch
	// with an unknown outcome did.
	resolveAt  int64
	unresolved *batch // its outcome is unknown; nil if there is none
	calling    bool   // a call is under way
	inFlight   *batch // in that call; nil if there is none, or it fences earlier writes
	loaded     bool   // etcd has answered
	history    uint64 // the history of etcd that the view is of
	restores   int    // how often etcd's revisions went back
	// seen is the latest revision that etcd is known to have reached, and updatedAt when it
	// last answered.
	seen      int64
	updatedAt time.Time
	// followed is what is followed of the pools in use, by name; refollow is set if that is to
	// be decided again, and followings counts the decisions that changed something.
	followed          map[string]*followed
	refollow          bool
	followings, begun int
	// readAll has all pools read once, as they are at revision readAllMust or later; readingAll
	// is set while they are. They were last at allAt. After a failure it is not tried again
	// before readAllAt.
	readAll, readingAll bool
	readAllMust, allAt  int64
	readAllAt           time.Time
	dirty               bool // something happened that could allow a grant

	entries    map[string]*entry
	queue      []*entry // queued and claiming, in no order
	takes      []*entry // queued and claiming: claims to take over
	releases   []*entry // releasing and not in flight
	drops      []drop
	acks       []*notice         // notices to be deleted
	revokes    []string          // keys of revocations that are done
	revoking   []*entry          // revoked and not released yet
	places     map[string]*place // of claims that were canceled
	successors []successor       // whose ids are free: they are taken next
	lost       map[store.LeaseID]lostLease
	wanted     map[string]wanted // claims that are to be revoked, by id
	endCause   error             // why no claim is valid any more, nil if claims can be
	fenceErr   error             // why earlier writes could not be fenced
	alone      *entry            // to be tried next, in a batch of its own
	stopping   bool

	// judged is the state of the specs that all verdicts were given under.
	judged int // 0: none yet
	// ownRev is the revision of the view when a claim of this instance was last granted, or
	// ended.
	ownRev int64
	// waitersAt is when waiters are written at the latest that are written by no
	// other batch before; zero if there are none.
	waitersAt time.Time
	// roles are those of a dispatcher, by pool; dutiesAt is when the dispatchers of other
	// pools were last checked, and checked when the notices were.
	roles             map[string]*role
	dutiesAt, checked time.Time
	// retryOthers is the last revision that the view must reach before waiters of others
	// are tried again.
	retryOthers int64
	// loans are those of grants that others are to confirm, by their notices' keys, and
	// denied the instances on whose leases etcd lets this one put no keys.
	loans  map[string]loan
	denied map[instanceName]bool
	// dropped are the revisions at which waiters were deleted, by claim, which the view has
	// not come up to.
	dropped map[string]deletion
	scratch scratch

	// What is retained: see [retention]. Idle and regrants are by the claims that the keys show.
	// It is looked after at retainAt, zero if there is nothing, and rewrites is set if regrants
	// are to be written. journal keeps both for the next life.
	retentions map[string]*retention
	idle       map[claimKey]*idleSlots
	regrants   map[claimKey]*entry
	labels     map[string]int // how many of both, by the ids that the keys show
	retainAt   time.Time
	rewrites   bool
	journal    Journal
	// unjournaled is set while the journal can't be written.
	unjournaled bool
	// retainedUnder is the state of the specs under which idle slots were last checked.
	retainedUnder int
	// revokedRev is the revision up to which the revocations of claims of this host are known, and
	// samples are the revisions that etcd had when it was last asked.
	revokedRev int64
	samples    [4]sample
	// slow is set if something happened since the last plan that could change the next one, and
	// fast by an operation that did nothing of the kind.
	slow, fast bool

	// reconcileAt is when what this instance has in the pools is compared with its claims again.
	reconcileAt time.Time
	reconciling []reconciling

	// adopt are the leases of an earlier life whose claims are taken over.
	adopt   map[store.LeaseID]bool
	adopted []*Claim

	// shelf holds what etcd refused, until it is tried again.
	shelf shelf
	// isolate counts the batches that carry one thing only, so that what etcd
	// refuses does no harm to others.
	isolate int
	// suspects are those of whom one may have spoiled the last flat batch, because of
	// what else had to hold; nil if that is not why batches are nested.
	suspects map[*entry]bool
	// nested counts the batches until the next flat one; doorAt is when to try
	// again to fence earlier writes, sendAt when to send again after a refusal, and
	// fullUntil when to write again after etcd said that it is full: zero once a write
	// was carried out.
	nested                     int
	fenceAt, sendAt, fullUntil time.Time
}

// scratch is memory that each plan uses again.
type scratch struct {
	own, candidates []candidate
	waiting         []*admit.Waiter
	journal         []byte
}

// place is what is kept of a waiter that was canceled.
type place struct {
	req     *Request
	since   int64
	waited  waitedSince
	reserve bool
	until   time.Time
}

// shelf holds what etcd refused and can't be given up.
type shelf struct {
	releases []*entry
	drops    []drop
	skipped  []*waiter // of other instances, whose grants were refused
	duties   bool
	until    time.Time
}

// lostLease is a lease that is no longer valid.
type lostLease struct {
	cause error
	at    time.Time
}

func newCore(cfg Config) *core {
	c := &core{
		host: cfg.Host, instance: cfg.Instance, start: hash(cfg.Host),
		leases: cfg.Leases, waiterLeases: cfg.WaiterLeases, log: cfg.Logger, metrics: newMetrics(cfg.Registerer), broker: &broker{},
		view: newView(cfg.Keys), followed: map[string]*followed{},
		guard:   store.NewGuard(cfg.Keys.Guard(cfg.Host, cfg.Instance)),
		entries: map[string]*entry{},
		places:  map[string]*place{},
		lost:    map[store.LeaseID]lostLease{},
		wanted:  map[string]wanted{},
		roles:   map[string]*role{},
		dropped: map[string]deletion{},
		loans:   map[string]loan{}, denied: map[instanceName]bool{},
		retentions: map[string]*retention{}, idle: map[claimKey]*idleSlots{}, regrants: map[claimKey]*entry{}, labels: map[string]int{}, journal: cfg.Journal,
	}
	c.view.self = c.name()
	return c
}

// hash spreads hosts over the groups of a pool (FNV-1a).
func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// sorted returns all entries by id, so that nothing depends on the order of a
// map.
func (c *core) sorted() []*entry {
	all := make([]*entry, 0, len(c.entries))
	for _, e := range c.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		if a.req.ID < b.req.ID {
			return -1
		}
		return 1
	})
	return all
}

// holdsSlots reports whether the view shows the slots of an entry as it has them.
func (c *core) holdsSlots(e *entry) bool {
	s, ok := c.view.slot(e.slots[0].ref)
	return ok && s.claim == e.key() && s.rev == e.rev
}

// trouble returns why nothing can be claimed now, whatever is free.
func (c *core) trouble(now time.Time) error {
	switch {
	case !c.fullUntil.IsZero():
		return problem.New(problem.EtcdFull, "etcd is full and takes no new claims: compact and defragment it, or raise its quota, then disarm the alarm")
	case c.phase != normal && c.fenceErr != nil:
		return store.Problem("etcd does not take this instance's writes", c.fenceErr)
	case !c.fresh(now) || c.phase != normal:
		return problem.New(problem.EtcdUnavailable, "etcd does not answer; nothing was claimed")
	}
	if err := c.leases.Trouble(); err != nil {
		return store.Problem("no lease could be made", err)
	}
	return nil
}

// progress continues once the view shows the revision at which writes were fenced, of the
// pools that they may have changed.
func (c *core) progress() {
	if c.phase != resolving {
		return
	}
	if c.adopt != nil && !c.allKnown() {
		c.wantAll()
		return
	}
	for _, p := range c.unresolved.touched(c.view) {
		if !p.whole || p.rev < c.resolveAt {
			c.refollow = true
			return
		}
	}
	c.phase = normal
	if b := c.unresolved; b != nil {
		c.unresolved = nil
		c.resolve(b)
	}
	c.adoptClaims()
	c.dropOrphans()
	c.takeNotices(c.updatedAt)
	c.dirty = true
}

// allKnown reports whether all pools are known as they are now, and as they were when earlier
// writes were fenced, or later, and after a restore that a watch has met.
func (c *core) allKnown() bool {
	missing := func(p *poolView) bool { return p.stale || p.rev < max(c.resolveAt, c.following(p).auditAt) }
	return c.allAt >= c.resolveAt && !slices.ContainsFunc(c.view.order, missing)
}

// call is the next request of the core to etcd. Without a batch, it fences earlier writes.
type call struct {
	txn      *pb.TxnRequest
	batch    *batch
	restores int    // of the core, when it was made
	cluster  uint64 // of etcd that it is for
}

// behind reports whether something waits for the view to come up to a revision.
func (c *core) behind() bool {
	if c.phase == resolving {
		return true
	}
	for name := range c.roles {
		if c.view.pool(name).rev < c.retryOthers {
			return true
		}
	}
	for _, f := range c.followed {
		if f.audit && f.pool.rev < f.auditAt || f.scope == everything && f.pool.rev < c.resolveAt {
			return true
		}
	}
	late := func(e *entry) bool {
		return e.succeeds || e.retryAt > c.shown(e) && (e.offer != nil || e.takes != 0 || c.entryRoute(e) != routeQueue)
	}
	return slices.ContainsFunc(c.queue, late) || slices.ContainsFunc(c.takes, late)
}

// next returns the next call to etcd, nil if there is none to make now.
func (c *core) next(now time.Time) *call {
	c.succeed(now)
	c.tendRetained(now)
	if c.refollow {
		c.follow(now)
	}
	if c.phase == normal && !c.guard.Placed() && !c.full(now) {
		c.phase = fencing // a full etcd was fenced by deleting the guard
	}
	switch {
	case c.calling || c.phase == resolving || now.Before(c.sendAt):
		return nil
	case c.phase == fencing && (now.Before(c.fenceAt) || !c.full(now) || len(c.releases) == 0):
		if now.Before(c.fenceAt) {
			return nil
		}
		c.calling = true
		return &call{txn: c.fenceTxn(now), restores: c.restores}
	}
	if c.phase == normal && c.unresolved == nil {
		c.reconcile(now)
	}
	b := c.plan(now)
	if b == nil {
		return nil
	}
	c.calling, c.inFlight = true, b
	return &call{txn: b.txn, batch: b, restores: c.restores}
}

// fenceTxn is the transaction that fences earlier writes. A full etcd accepts deletes
// only: deleting the guard fences them as well, if there is one to delete.
func (c *core) fenceTxn(now time.Time) *pb.TxnRequest {
	t := c.guard.FenceTxn()
	if now.Before(c.fullUntil) {
		t = c.guard.DeleteFenceTxn()
	}
	for _, key := range c.unresolved.witnesses() {
		t.Success = append(t.Success, store.Get(key))
	}
	return t
}

// fresh reports whether the view is young enough to grant from.
func (c *core) fresh(now time.Time) bool {
	return c.loaded && now.Sub(c.updatedAt) < store.StaleAfter
}

// forgetLost is how long a lost lease is remembered: longer than any batch is
// under way that could still put slots on it. While the outcome of one is unknown, all are.
const forgetLost = 10 * time.Minute

// tick does what time brings. It is to be called a few times a second.
func (c *core) tick(now time.Time) {
	c.view.prune(func(p *poolView) bool {
		f := c.followed[p.name]
		return c.readingAll || f != nil && (f.reading || f.scope == everything)
	})
	c.refresh(now)
	maps.DeleteFunc(c.dropped, func(_ string, d deletion) bool { return !d.hidden(c.view) })
	c.checkNotices(now)
	c.checkDispatchers(now)
	c.endLoans()
	if !c.calling {
		c.checkRoles()
	}
	c.unshelve(now)
	c.endRevocations(now)
	for id, p := range c.places {
		if now.After(p.until) {
			delete(c.places, id)
		}
	}
	for id, l := range c.lost {
		if now.Sub(l.at) > forgetLost && c.unresolved == nil {
			delete(c.lost, id)
		}
	}
	for _, e := range slices.Clone(c.queue) {
		c.age(e, now)
		c.losePatience(e, now)
	}
	for _, e := range c.entries {
		if len(e.successors) > 0 {
			c.loseSuccessors(e, now)
		}
	}
	for _, e := range slices.Clone(c.takes) {
		if e.state != queued || e.offer != nil || now.Sub(e.arrived) < patience {
			continue
		}
		if err := c.trouble(now); err != nil {
			c.refuse(e, err)
		} else if c.anyStale(e.needs) {
			c.refuse(e, errUnread)
		}
	}
	c.revoking = slices.DeleteFunc(c.revoking, func(e *entry) bool {
		if e.combined != nil || e.state == held && (e.claim.Supervised() || now.Sub(e.revoked) < RevokeGrace) {
			return false // its combined release may fail, and leave it held
		}
		if e.state == held {
			c.giveBack(e, nil)
		}
		return true
	})
	c.follow(now)
	// Waiters of others may come to be passed.
	c.dirty = c.dirty || len(c.queue) > 0 || len(c.roles) > 0
}

// leaseDuration of an entry: the shortest of its pools'. A claim that is taken over
// may be of pools that were deleted meanwhile.
func (c *core) leaseDuration(e *entry) time.Duration {
	shortest := time.Duration(0)
	for _, n := range e.needs {
		if p := c.view.pool(n.Pool); p.known() && (shortest == 0 || p.spec.LeaseDuration < shortest) {
			shortest = p.spec.LeaseDuration
		}
	}
	return cmp.Or(shortest, DefaultSpec().LeaseDuration)
}

// reserveAfter of an entry: the shortest of its pools', [NeverReserve] if none
// of them has one.
func (c *core) reserveAfter(e *entry) time.Duration {
	shortest := NeverReserve
	for _, n := range e.needs {
		if d := c.view.pool(n.Pool).spec.ReserveAfter; d >= 0 && (shortest < 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}
