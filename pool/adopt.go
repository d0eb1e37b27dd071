package pool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// adoptClaims takes over what an earlier life of this instance holds: every
// slot on one of its leases. Slots that do not form a claim of this instance are
// released. It runs once, after earlier writes are fenced and the view has reached
// that revision, so that no write of the earlier life can follow.
func (c *core) adoptClaims() {
	if c.adopt == nil {
		return
	}
	leases := c.adopt
	c.adopt = nil
	for _, part := range c.view.on(func(id store.LeaseID) bool { return leases[id] }) {
		if !c.known(part) {
			continue // it was granted by a dispatcher just now: there is a notice, or [core.freeOrphans] finds it
		}
		if last := c.lastHolder(part); last != nil && last.Claim == "" {
			c.giveBack(ownerless(part.claim.id, part.slots, part.rev), nil) // it was idle
		} else if !c.takeOver(part, last) {
			c.giveBackOrphaned(part)
		}
	}
}

// part is what some leases have of one claim: all its slots, unless it is torn.
type part struct {
	claim *claimView
	rev   int64
	lease store.LeaseID
	slots []placed
}

// on returns the claims that have slots on some leases, by id and with the newest of
// an id first. The slots of a claim that were put at several revisions, or are on
// several leases, are separate parts.
func (v *view) on(lease func(store.LeaseID) bool) []part {
	type one struct {
		claim claimKey
		rev   int64
		lease store.LeaseID
	}
	found := map[one][]placed{}
	for _, p := range v.order {
		for g, gv := range p.groups {
			for i, s := range gv.slots {
				if lease(s.lease) {
					key := one{s.claim, s.rev, s.lease}
					found[key] = append(found[key], placed{ref: slotRef{p.name, g, i}, n: s.n})
				}
			}
		}
	}
	all := make([]part, 0, len(found))
	for key, slots := range found {
		// The main key first, as everywhere.
		slices.SortFunc(slots, func(a, b placed) int {
			switch {
			case a.ref == key.claim.main:
				return -1
			case b.ref == key.claim.main:
				return 1
			}
			return a.ref.compare(b.ref)
		})
		all = append(all, part{claim: v.claim(key.claim), rev: key.rev, lease: key.lease, slots: slots})
	}
	slices.SortFunc(all, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.claim.id, b.claim.id), cmp.Compare(b.rev, a.rev), a.slots[0].ref.compare(b.slots[0].ref))
	})
	return all
}

// known reports whether all pools in which the claim of a part can have slots, or a notice, are
// known as they are now, and as they were when it was granted, or later. Those that are not are
// read, and the part is checked again. What is old may be of before a restore of etcd.
func (c *core) known(p part) bool {
	pools := []string{p.claim.main.pool}
	if rec, err := p.claim.full(c.view.keys); err == nil {
		pools = append(pools, poolNames(rec.Pools)...)
	}
	known := true
	for _, name := range pools {
		v := c.view.pool(name)
		f := c.following(v)
		if at := max(f.auditAt, p.rev); v.stale || v.rev < at {
			f.audit, f.auditAt, c.refollow = true, at, true
			known = false
		}
	}
	return known
}

// takeOver makes a claim of an earlier life a claim of this one. It reports false if
// the claim is torn, belongs to another instance, or is older than another claim of
// its id. Last, if it is not nil, is what the journal has of who was granted the slots since.
func (c *core) takeOver(p part, last *journalValue) bool {
	rec, err := p.claim.full(c.view.keys)
	id := p.claim.id
	if last != nil && err == nil {
		id = last.Claim
		rec, err = decodeRecord(p.slots[0].ref.String(), id, last.Record)
	}
	early := c.entries[id]
	switch {
	case err != nil || p.claim.keys != len(p.slots) || !p.claim.isOf(c.view.keys, c.host, c.instance):
		return false
	case early != nil && early.state != queued:
		return false
	case early != nil:
		c.refuse(early, c.elsewhere(p.claim.id)) // requested before the view showed it
	}
	e := &entry{
		req: &Request{
			ID: id, Slots: rec.Pools, Priority: rec.Priority, Holder: rec.Holder,
		},
		needs: needsOf(rec.Pools), record: rec, waiting: &admit.Waiter{Mine: true},
		holding:  holding{lease: p.lease, reserved: len(p.slots), slots: p.slots, former: true},
		order:    Order{Priority: rec.Priority, Claim: id, By: hash(c.host + "/" + c.instance)},
		received: true, // by its holder: a later request that is canceled does not release it
	}
	e.kind = kindOf(e.needs)
	if last != nil {
		e.shown, e.shownFence, e.spelled, c.rewrites = p.claim.claimKey, p.claim.fence(c.view.keys), spell(e.req, e.needs), true
		c.regrants[e.shown] = e
		c.label(e.shown.id, 1)
	}
	c.entries[e.req.ID] = e
	c.hold(e, nil, p.rev, c.updatedAt)
	c.adopted = append(c.adopted, e.claim)
	return true
}

// giveBackOrphaned frees slots on a lease of this instance that belong to no claim of
// it. They have no entry: another claim of that id may have one.
func (c *core) giveBackOrphaned(p part) *entry {
	c.log.Warn("giving back slots on a lease of this instance that no claim of it has",
		"claim", p.claim.id, "revision", p.rev, "keys", len(p.slots))
	e := ownerless(p.claim.id, p.slots, p.rev)
	e.orphan = true
	c.giveBack(e, nil)
	return e
}

// ownerless makes an entry of slots that no claim of this instance has. No holder has to stop or
// be notified.
func ownerless(id string, slots []placed, rev int64) *entry {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &entry{
		req: &Request{ID: id, Bridge: true}, holding: holding{slots: slots, rev: rev}, waiting: &admit.Waiter{Mine: true},
		claim: &Claim{ID: id, ctx: ctx, cancel: cancel},
	}
}

// forgetOrphans gives up the release of orphaned slots, which are found again: of some claims, slots
// that were gone may have been brought back by a restore of etcd, and they are freed together.
func (c *core) forgetOrphans() {
	forget := func(e *entry) bool {
		if e.orphan {
			c.done(e)
		}
		return e.orphan
	}
	c.releases = slices.DeleteFunc(c.releases, forget)
	c.shelf.releases = slices.DeleteFunc(c.shelf.releases, forget)
	for _, b := range []*batch{c.inFlight, c.unresolved} {
		if b != nil {
			b.releases = slices.DeleteFunc(b.releases, func(o releaseOp) bool { return forget(o.e) })
		}
	}
}

// reconcileEvery is how often an instance compares what it has in the pools that it follows
// with the claims it holds, and up to twice that: hosts differ. It does so at once with
// what is read of a pool, as after a restore of etcd, which brings back claims that have ended
// since the snapshot.
const reconcileEvery = time.Minute

// reconcile frees the slots on this instance's leases that belong to no claim of it,
// deletes its waiters that belong to no request, and has waiters written again that are
// missing in etcd. Pools that are not watched are read for that first. No call is in flight,
// and what earlier ones did is known.
func (c *core) reconcile(now time.Time) {
	if !now.Before(c.reconcileAt) {
		c.reconcileAt = now.Add(reconcileEvery + time.Duration(hash(c.host+"/"+c.instance))%reconcileEvery)
		for _, f := range c.followed {
			f.audit = f.audit || f.scope != nothing
		}
		c.refollow = true
	}
	due := map[*poolView]bool{}
	for _, f := range c.followed {
		if f.audits(now) {
			due[f.pool], f.audit = true, false
		}
	}
	if len(due) > 0 {
		c.freeOrphans(now)
		c.rewriteWaiters()
		c.dropOrphans()
	}
	c.reconciling = slices.DeleteFunc(c.reconciling, func(r reconciling) bool {
		if c.allAt < r.from {
			return false
		}
		var freed []<-chan error
		for _, e := range c.releases {
			if e.orphan {
				reply := make(chan error, 1)
				e.waiters = append(e.waiters, reply)
				freed = append(freed, reply)
			}
		}
		r.reply <- freed
		return true
	})
}

// audits reports whether what is known of a pool can be compared with the claims now.
func (f *followed) audits(now time.Time) bool {
	return f.audit && f.pool.whole && f.pool.rev >= f.auditAt && now.Sub(f.pool.at) < store.StaleAfter
}

// reconciling is a request to free orphaned slots, of all pools as they are at a revision or
// later. It receives when the slots are free.
type reconciling struct {
	from  int64
	reply chan<- []<-chan error
}

// freeOrphans frees the slots that are on leases of this instance and belong to no claim of
// it.
func (c *core) freeOrphans(now time.Time) {
	type one struct {
		claimKey
		rev int64
	}
	known := map[one]bool{}
	note := func(e *entry) {
		if e.claim != nil && (e.state == held || e.state == releasing) {
			known[one{e.key(), e.rev}] = true
		}
	}
	for _, e := range c.entries {
		note(e)
	}
	for _, e := range slices.Concat(c.releases, c.shelf.releases) {
		note(e) // orphaned slots have no entries
	}
	for _, i := range c.idle {
		known[one{i.shown, i.rev}] = true
	}
	for _, p := range c.view.on(c.leases.Keeps) {
		if known[one{p.claim.claimKey, p.rev}] || c.view.noticed(p.claim.id, p.rev, c.name()) || !c.known(p) {
			continue
		}
		e := c.giveBackOrphaned(p)
		if c.wanted[p.claim.id].fence == p.claim.fence(c.view.keys) {
			e.revoked = now
		}
	}
}

// rewriteWaiters has waiters written again that are missing in a wait queue, unless they may
// have been granted: the notice of that is in the first of their pools.
func (c *core) rewriteWaiters() {
	for _, e := range c.queue {
		i, found := c.view.findWaiter(e.order)
		first := c.view.pool(e.needs[0].Pool)
		for _, n := range e.needs {
			p := c.view.pool(n.Pool)
			if e.written && p.whole && e.writtenAt <= p.rev && p.rev <= first.noticesRev && (!found || !slices.Contains(c.view.waiters[i].in, p)) {
				e.written = false
				c.dirty = true
			}
		}
	}
}

// Reconcile frees slots on this instance's leases that belong to no claim of it, as the
// engine does by itself, and returns when that is done. It knows of all that was listed.
func (e *Engine) Reconcile(ctx context.Context) error {
	shown := e.reads.latestShown()
	reply := make(chan []<-chan error, 1)
	if err := e.send(ctx, func(c *core, _ time.Time) {
		c.seen = max(c.seen, shown)
		c.wantAll()
		c.reconciling = append(c.reconciling, reconciling{c.readAllMust, reply})
	}); err != nil {
		return err
	}
	var freed []<-chan error
	select {
	case freed = <-reply:
	case <-ctx.Done():
		return unavailable(ctx, context.Cause(ctx))
	case <-e.stopped:
		return errStopped
	}
	for _, f := range freed {
		select {
		case <-f:
		case <-ctx.Done():
			return unavailable(ctx, context.Cause(ctx))
		case <-e.stopped:
			return errStopped
		}
	}
	return nil
}

// Journal keeps values by name, for the next process of an instance: see package journal. What it
// keeps of slots is named by the first of their keys.
type Journal interface {
	Get(name string) []byte
	Put(name string, value []byte) error
	Forget(name string)
}

// journalValue is what is kept of retained slots: who has them. Rev and Shown are their keys as
// they were then; if those have changed, the value is void.
type journalValue struct {
	store.V
	Rev   int64  `json:"rev"`
	Shown string `json:"shown"`
	// Claim and Record are empty while no claim has the slots.
	Claim  string          `json:"claim,omitempty"`
	Record json.RawMessage `json:"record,omitempty"`
}

// journaled notes who has retained slots: an entry, or none if it is nil.
// It is false if that could not be kept.
func (c *core) journaled(h *holding, e *entry) bool {
	if c.journal == nil {
		return true // the holders die with this process
	}
	b := journalPrefix(c.scratch.journal[:0], h.rev)
	b = append(append(append(b, `"shown":"`...), h.shown.id...), '"')
	if e != nil {
		b = append(append(append(b, `,"claim":"`...), e.req.ID...), `","record":`...)
		b = appendRecord(b, e.spelled, e.record, stampOf(e.record.Since))
	}
	b = append(b, '}')
	c.scratch.journal = b
	c.metrics.journaled.Inc()
	err := c.journal.Put(h.slots[0].ref.String(), b)
	if err != nil && !c.unjournaled {
		c.log.Warn("slots are not retained: the journal can't be written", "error", err)
	}
	c.unjournaled = err != nil
	return err == nil
}

// journalPrefix begins the value of slots whose keys have a revision.
func journalPrefix(b []byte, rev int64) []byte {
	return append(strconv.AppendInt(append(b, `{"v":1,"rev":`...), rev, 10), ',')
}

// unjournal forgets who has slots: etcd shows it, or they are given back.
func (c *core) unjournal(h *holding) {
	if c.journal == nil || h.shown.id == "" || len(h.slots) == 0 {
		return
	}
	name := h.slots[0].ref.String()
	if bytes.HasPrefix(c.journal.Get(name), journalPrefix(nil, h.rev)) { // else it is of other keys by that name
		c.journal.Forget(name)
	}
}

// lastHolder returns what an earlier life of this instance has kept of slots: nil if their keys
// show who has them.
func (c *core) lastHolder(p part) *journalValue {
	if c.journal == nil {
		return nil
	}
	name := p.slots[0].ref.String()
	data := c.journal.Get(name)
	if data == nil {
		return nil
	}
	var v journalValue
	if err := store.Decode(name, data, &v); err != nil {
		c.log.Error("ignoring an entry of the journal", "error", err)
		return nil
	}
	if v.Rev != p.rev || v.Shown != p.claim.id {
		return nil
	}
	return &v
}

// present takes the history that etcd is at. What is known of another one is void, and what
// this instance holds is to be found again.
func (c *core) present(history uint64) {
	if history <= c.history {
		return
	}
	began := c.seen == 0
	if c.history = history; began {
		return
	}
	c.log.Warn("etcd was restored: this instance compares what it holds with what etcd has", "revision_before", c.seen)
	c.restores++
	c.ownRev, c.revokedRev, c.samples = 0, 0, [4]sample{}
	c.phase, c.seen, c.resolveAt = fencing, 0, 0
	for _, p := range c.view.order {
		c.view.void(p)
	}
	for _, f := range c.followed {
		f.mustShow, f.auditAt = 0, 0
	}
	for _, e := range c.entries {
		e.retryAt, e.writtenAt, e.written = 0, 0, false
		e.waited = e.waited.restored()
		for _, s := range e.slots {
			c.following(c.view.pool(s.ref.pool)).restored = true
		}
	}
	for _, p := range c.places {
		p.waited = p.waited.restored()
	}
	for id, w := range c.wanted {
		w.forced = false // its slots may be back
		c.wanted[id] = w
	}
	c.forgetOrphans()
	for _, i := range c.sortedIdle() {
		c.goneIdle(i) // what is left of it is found again
	}
	clear(c.dropped)
	c.retryOthers = 0
	for _, r := range c.roles {
		r.rev, r.inherited, r.recalled = 0, 0, 0
	}
	for key, l := range c.loans {
		l.rev = 0
		c.loans[key] = l
	}
	c.wantAll()
}

const (
	// sweepAfter and sweepEvery are when guards of instances that are gone are deleted:
	// not by an instance that ends at once, and not by all at the same time.
	sweepAfter = time.Minute
	sweepEvery = time.Hour
)

// sweep deletes the guards of instances that are gone. What fails is done by another
// instance, or later.
func (e *Engine) sweep(ctx context.Context) error {
	next := time.NewTimer(sweepAfter + rand.N(sweepAfter))
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		try, cancel := context.WithTimeout(ctx, sweepAfter)
		n, err := store.SweepGuards(try, e.cfg.Backend, e.cfg.Keys, e.cfg.Host)
		cancel()
		if err != nil || n > 0 {
			e.cfg.Logger.Debug("swept the guards of instances that are gone", "guards", n, "error", err)
		}
		next.Reset(sweepEvery + rand.N(sweepAfter))
	}
}

// RemoveGuard deletes the instance's guard once Run has returned, so that an
// instance that ends for good leaves no keys. A write of the instance that is still
// in flight can't happen any more then.
func (e *Engine) RemoveGuard(ctx context.Context) error {
	key := e.cfg.Keys.Guard(e.cfg.Host, e.cfg.Instance)
	_, err := e.cfg.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(key)}})
	return err
}
