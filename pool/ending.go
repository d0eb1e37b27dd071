package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// giveBack ends a held claim and has its keys deleted.
func (c *core) giveBack(e *entry, cause error) {
	e.state = releasing
	e.claim.end(cause)
	c.releases = append(c.releases, e)
	c.noteGiven(e, true)
	c.dirty = true // the next waiter may take them in the same transaction
}

// done ends an entry that had slots.
func (c *core) done(e *entry) {
	if e.state == over {
		return
	}
	e.state, c.ownRev = over, c.seen
	e.claim.end(nil) // after a combined release, it was valid until now
	e.claim.freed.Store(true)
	c.unjournal(&e.holding)
	c.unregrant(e)
	c.releaseLease(e)
	if !e.req.Bridge {
		c.publish(ClaimReleased, e, "")
	}
	if !e.revoked.IsZero() {
		c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, e.req.ID))
	}
	e.answerCombined(0, ErrNotCombined)
	e.released()
	c.forget(e)
}

// leaseLost ends all claims on a lease that is no longer valid. Their keys stay: they
// end with the lease, or when the holder reports that it has stopped.
func (c *core) leaseLost(id store.LeaseID, cause error, now time.Time) {
	c.lost[id] = lostLease{cause, now}
	for _, e := range slices.Concat(c.queue, c.takes) {
		if e.waiterLease == id {
			c.releaseWaiterKeys(e)
			e.written, c.dirty = false, true
		}
		if e.lease == id && e.state == queued {
			c.releaseLease(e)
			e.written, c.dirty = false, true
		}
	}
	for _, name := range sortedKeys(c.roles) {
		if c.roles[name].lease == id {
			c.endRole(name)
		}
	}
	c.returnAllIdle(func(i *idleSlots) bool { return i.lease == id })
	for _, e := range c.sorted() {
		if e.state == held && e.lease == id && e.claim.Err() == nil {
			c.endValidity(e, lostError(e, cause))
		}
	}
}

func lostError(e *entry, cause error) error {
	return problem.New(problem.ClaimLost, "claim %q is lost: %w", e.req.ID, cause)
}

// endValidity ends a claim, which notifies its holder that it must stop.
func (c *core) endValidity(e *entry, cause error) {
	if e.claim.Err() != nil {
		return // it was notified before
	}
	c.metrics.lost(problem.CodeOf(cause))
	c.log.Warn("claim lost", "claim", e.req.ID, "pools", e.req.Slots, "reason", cause)
	e.claim.end(cause)
	c.publish(ClaimEnded, e, cause.Error())
}

// end ends the validity of all claims, later grants included, because this instance
// is stopping.
func (c *core) end(cause error) {
	c.endCause = cause
	c.stop()
	for _, e := range c.sorted() {
		if e.state == held && e.claim.Err() == nil {
			c.endValidity(e, cause)
		}
	}
}

// abandon ends this instance's part in its claims, which a later one takes over.
func (c *core) abandon(cause error) {
	c.endCause = cause
	c.stop()
	for _, e := range c.sorted() {
		if (e.state == held || e.combined != nil) && e.claim.Err() == nil {
			e.claim.end(cause)
			c.publish(ClaimEnded, e, cause.Error())
		}
	}
}

// wanted is a claim that is to be revoked: its fence, the revision of the key that says so, 0
// if there is none, and since when that is known.
type wanted struct {
	fence  store.Fence
	rev    int64
	forced bool // its slots are gone already
	at     time.Time
}

// revoke takes an operator's revocation of the claim with that fence, put at rev. The engine
// may not know yet that it was granted. A fence of 0 withdraws the revocation.
func (c *core) revoke(id string, v revocationValue, rev int64, now time.Time) {
	fence := v.Fence
	if fence == 0 {
		delete(c.wanted, id)
		return
	}
	e := c.entries[id]
	c.wanted[id] = wanted{fence, rev, v.Forced, now}
	if fence == waitingFence {
		c.out(e, id)
		return
	}
	c.revokeRetained(id, fence, v.Forced)
	if e != nil && (e.state == held || e.state == releasing) {
		c.obey(e, now)
	}
	if cv := c.view.fenced(id, fence); cv != nil && c.leases.Keeps(cv.lease) && (e == nil || e.claim == nil || e.claim.Fence != fence) {
		c.following(c.view.pool(cv.main.pool)).audit = true // it may be orphaned
	}
}

// revocationKept is for how long a revocation of a claim that an instance does not have is left
// to the other instances of its host.
const revocationKept = time.Minute

// endRevocations deletes the keys of revocations whose claims are gone without them: one was
// released, or ended with its lease, before any instance of the host had learned of the
// revocation. No instance would do it otherwise.
func (c *core) endRevocations(now time.Time) {
	if c.phase != normal || !c.fresh(now) {
		return
	}
	for _, id := range sortedKeys(c.wanted) {
		w := c.wanted[id]
		if w.rev == 0 || c.entries[id] != nil || now.Sub(w.at) < revocationKept {
			continue
		}
		delete(c.wanted, id)
		c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, id))
	}
}

// out takes a claim that is no longer needed out of the wait queue.
func (c *core) out(e *entry, id string) {
	if e == nil || e.state > claiming {
		return // it is another instance's, or its end is on its way
	}
	if e.state == claiming {
		e.unwanted = true // its slots may be taken already
		return
	}
	c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, id))
	c.refuse(e, problem.New(problem.ClaimRevoked, "claim %q was taken out of the wait queue: what it is for has ended", id))
}

// obey acts on the revocation of a held claim, if there is one.
func (c *core) obey(e *entry, now time.Time) {
	w := c.wanted[e.req.ID]
	if w.fence != e.claim.Fence || !e.revoked.IsZero() && !w.forced || e.state == releasing && !w.forced {
		return
	}
	if e.revoked = now; w.forced {
		c.gone(e)
		return
	}
	if e.req.Bridge {
		c.giveBack(e, nil) // no holder has to stop
		return
	}
	c.revoking = append(c.revoking, e)
	if e.claim.Err() == nil {
		c.endValidity(e, problem.New(problem.ClaimRevoked, "claim %q was revoked by an operator", e.req.ID))
	}
}

// ended takes the slots that were taken from their claims.
func (c *core) ended(changes []change) {
	for _, ch := range changes {
		e := c.entries[ch.claim.id]
		if by := c.regrants[ch.claim]; by != nil {
			e = by
		}
		if i := c.idle[ch.claim]; i != nil && i.rev == ch.rev {
			c.goneIdle(i)
		}
		if e != nil && !e.rewriting && e.claim != nil && (e.state == held || e.state == releasing) && ch.claim == e.key() && ch.rev == e.rev {
			c.gone(e)
		}
	}
}

// gone ends an entry whose keys are no longer there, by no doing of ours that
// has been answered.
func (c *core) gone(e *entry) {
	c.ownRev = c.seen
	switch e.state {
	case held:
		if e.req.Bridge {
			e.claim.end(errTakenOver)
		}
		if e.claim.Err() == nil {
			c.endValidity(e, problem.New(problem.ClaimLost, "claim %q is lost: its slots were taken away (its lease expired, or an operator released it by force)", e.req.ID))
		}
		c.done(e)
	case releasing:
		for _, list := range []*[]*entry{&c.releases, &c.shelf.releases} {
			if i := slices.Index(*list, e); i >= 0 {
				*list = slices.Delete(*list, i, i+1)
				c.done(e)
			}
		} // else the answer of the batch in flight ends it
	}
}

// renewedAgain is the reason of a [ClaimRenewed] after a gap.
const renewedAgain = "its lease could be renewed again"

// LeaseRenewed reports that a lease was renewed. Again is set for the first renewal
// after one that failed, or of this process.
func (e *Engine) LeaseRenewed(id store.LeaseID, again bool) {
	if e.core.broker.runs.Load() { // otherwise there is no subscriber
		e.urgent.add(func(c *core, _ time.Time) { c.leaseRenewed(id, again) })
	}
}

// leaseRenewed publishes the renewal of the claims on a lease that carry a run: of each
// the first one, and the first after a gap.
func (c *core) leaseRenewed(id store.LeaseID, again bool) {
	var renewed []*entry
	for _, e := range c.entries {
		if e.lease == id && e.state == held && e.req.Holder.Run != "" && (again || !e.renewed) && e.claim.Err() == nil {
			renewed = append(renewed, e)
		}
	}
	slices.SortFunc(renewed, func(a, b *entry) int { return strings.Compare(a.req.ID, b.req.ID) })
	for _, e := range renewed {
		e.renewed = true
		reason := ""
		if again {
			reason = renewedAgain
		}
		c.publish(ClaimRenewed, e, reason)
	}
}

// revocationTTL is how long a revocation stays if its host does not act on it: the
// host is dead then, and the claim ends with its lease.
const revocationTTL = 10 * time.Minute

// Revocation is the result of a revocation.
type Revocation struct {
	Claim    string
	Host     string
	Instance string
	Fence    store.Fence
	// Forced is set if the slots were freed although the holder may still run, and Unnotified
	// if etcd is full then, so that its host can't be notified.
	Forced, Unnotified bool
}

// Revoker revokes claims of all hosts.
type Revoker struct {
	Backend store.Backend
	Keys    store.Keys
}

// Revoke asks the host of a held claim to revoke it: the host ends the validity of
// the claim, has the holder stop, and releases the claim within [RevokeGrace]. With
// force, the slots are freed at once; a protected resource can then refuse the old
// holder only by its fence. An unknown claim is a ClaimNotFound problem.
//
// The claim is an id, or HOST/INSTANCE/ID where several instances hold claims of one
// id: then the id alone is refused as Invalid.
//
// May, if it is given, returns why the caller may not revoke a claim.
func (r Revoker) Revoke(ctx context.Context, claim string, force bool, may ...May) (Revocation, error) {
	state, err := Read(ctx, r.Backend, r.Keys)
	if err != nil {
		return Revocation{}, store.Problem("the claims could not be read", err)
	}
	cv, rec, err := state.held(claim)
	if err != nil {
		return Revocation{}, err
	}
	for _, f := range may {
		if err := f(rec.Holder, rec.Pools); err != nil {
			return Revocation{}, err
		}
	}
	by := rec.Holder
	done := Revocation{Claim: cv.id, Host: by.Host, Instance: by.Instance, Fence: cv.fence(r.Keys), Forced: force}
	if !force {
		return done, r.RequestRevocation(ctx, by.Host, cv.id, done.Fence)
	}
	done.Unnotified, err = r.freeByForce(ctx, cv, rec)
	return done, err
}

// freeByForce frees the slots of a claim that is held, and notifies its host. Unnotified is set
// if etcd is full, and only deletes keys.
func (r Revoker) freeByForce(ctx context.Context, cv *claimView, rec *record) (unnotified bool, err error) {
	r.identify(ctx, cv, rec)
	lease, _, err := r.Backend.Grant(ctx, revocationTTL)
	if errors.Is(err, store.ErrNoSpace) {
		return true, r.free(ctx, rec.refs(cv.main), cv.rev)
	}
	if err != nil {
		return false, store.Problem("the claim was not released", err)
	}
	put := store.Put(r.Keys.Revocation(rec.Holder.Host, cv.id), store.Encode(revocationValue{V: store.Now, Fence: cv.fence(r.Keys), Forced: true}), lease)
	if err = r.free(ctx, rec.refs(cv.main), cv.rev, put); err != nil {
		_ = r.Backend.Revoke(ctx, lease) // else it ends by itself
	}
	return false, err
}

// identifyEvery is how often is checked whether a host has shown who has its slots.
const identifyEvery = 20 * time.Millisecond

// identify has the host of a claim show who has its slots, if they may have been granted again without
// a write: it puts their keys again, or gives them back. That takes a live host no longer than
// [newsWithin].
func (r Revoker) identify(ctx context.Context, cv *claimView, rec *record) {
	retains := false
	for name := range rec.Pools {
		retains = retains || r.retained(ctx, name, cmp.Or(rec.Admitted, cv.rev))
	}
	if !retains || r.RequestRevocation(ctx, rec.Holder.Host, cv.id, cv.fence(r.Keys)) != nil {
		return
	}
	key := r.Keys.Slot(cv.main.pool, cv.main.group, cv.main.index)
	for end := time.Now().Add(newsWithin); time.Now().Before(end); {
		select {
		case <-time.After(identifyEvery):
		case <-ctx.Done():
			return
		}
		resp, err := r.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Get(key)}})
		if err == nil && (len(resp.Responses[0].GetResponseRange().Kvs) == 0 || resp.Responses[0].GetResponseRange().Kvs[0].ModRevision != cv.rev) {
			return
		}
	}
}

// retained reports whether slots that were taken at a revision may have been granted again without a
// write. The spec at that revision tells, because slots are granted so only under the spec that they
// were taken under. If that is compacted, any later spec may be another one.
func (r Revoker) retained(ctx context.Context, name string, at int64) bool {
	s, _, err := r.specAt(ctx, name, at)
	if errors.Is(err, store.ErrCompacted) {
		var rev int64
		if s, rev, err = r.specAt(ctx, name, 0); rev == 0 || rev > at {
			return true
		}
	}
	return err != nil || s.Retain > 0
}

// specAt returns a spec as it was at a revision, or as it is if that is 0, with its own revision, 0 if
// there is none.
func (r Revoker) specAt(ctx context.Context, name string, at int64) (s Spec, rev int64, err error) {
	key := r.Keys.Spec(name)
	resp, err := r.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key), Revision: at})
	if err != nil || len(resp.Kvs) == 0 {
		return Spec{}, 0, err
	}
	kv := resp.Kvs[0]
	if s, _, _, err = decodeSpec(key, kv.Value, kv.ModRevision); err != nil {
		return Spec{}, 0, err
	}
	return s, kv.ModRevision, nil
}

// May returns why a caller may not do something to a claim with those slots; nil if it may.
type May func(of Holder, slots map[string]int) error

// held returns the claim that is held under an id, or HOST/INSTANCE/ID, with its
// record. An unknown one is a ClaimNotFound problem, and an id that several instances
// hold an Invalid one.
func (r *Reader) held(claim string) (*claimView, *record, error) {
	keys := r.view.keys
	by, id, hasInstance := cutInstance(claim)
	all := r.view.claimsOf(id)
	if hasInstance {
		all = slices.DeleteFunc(all, func(cv *claimView) bool { return !cv.isOf(keys, by.Host, by.Instance) })
	}
	switch len(all) {
	case 0:
		return nil, nil, problem.New(problem.ClaimNotFound, "no claim %q is held", claim)
	case 1:
	default:
		var names []string
		for _, cv := range all {
			h := r.view.holder(cv, own{})
			names = append(names, h.Host+"/"+h.Instance+"/"+id)
		}
		return nil, nil, problem.Field("id", "claim %q is held by %d instances: name one of them, as in %s", id, len(all), strings.Join(names, " or "))
	}
	rec, err := all[0].full(keys)
	if err != nil {
		return nil, nil, problem.New(problem.CorruptValue, "claim %q can't be revoked: %w", claim, err)
	}
	return all[0], rec, nil
}

// cutInstance splits HOST/INSTANCE/ID, and is false for an id alone, which has no
// slash.
func cutInstance(claim string) (by Holder, id string, ok bool) {
	host, rest, _ := strings.Cut(claim, "/")
	instance, id, ok := strings.Cut(rest, "/")
	if !ok {
		return Holder{}, claim, false
	}
	return Holder{Host: host, Instance: instance}, id, true
}

// Free frees the claim with that id and fence at once, as [Revoker.Revoke] does with force, if
// it has not changed since it was read. Else it is a ClaimNotFound problem.
func (r Revoker) Free(ctx context.Context, in *Reader, id string, fence store.Fence) (Revocation, error) {
	cv, rec, err := in.fenced(id, fence)
	if err != nil {
		return Revocation{}, err
	}
	done := Revocation{Claim: id, Host: rec.Holder.Host, Instance: rec.Holder.Instance, Fence: fence, Forced: true}
	done.Unnotified, err = r.freeByForce(ctx, cv, rec)
	return done, err
}

// FreeBridge is Free for a bridge: see [Request.Bridge]. It notifies nobody: a bridge has no
// holder to stop, and the instance that keeps it watches its pools.
func (r Revoker) FreeBridge(ctx context.Context, in *Reader, id string, fence store.Fence) error {
	cv, rec, err := in.fenced(id, fence)
	if err != nil {
		return err
	}
	return r.free(ctx, rec.refs(cv.main), cv.rev)
}

// fenced returns the claim with that id and fence, with its record.
func (r *Reader) fenced(id string, fence store.Fence) (*claimView, *record, error) {
	cv := r.view.fenced(id, fence)
	if cv == nil {
		return nil, nil, problem.New(problem.ClaimNotFound, "no claim %q with fence %d is held", id, fence)
	}
	rec, err := cv.full(r.view.keys)
	if err != nil {
		return nil, nil, problem.New(problem.CorruptValue, "claim %q can't be freed: %w", id, err)
	}
	return cv, rec, nil
}

// waitingFence is the fence in a revocation that is about a claim which waits.
const waitingFence = -1

// RequestWithdrawal asks a host to take a claim out of the wait queue. If it does not
// wait there, nothing happens.
func (r Revoker) RequestWithdrawal(ctx context.Context, host, id string) error {
	return r.RequestRevocation(ctx, host, id, waitingFence)
}

// RequestRevocation asks a host to revoke the claim with that id and fence. If it does
// not have the claim, nothing happens.
func (r Revoker) RequestRevocation(ctx context.Context, host, id string, fence store.Fence) error {
	lease, _, err := r.Backend.Grant(ctx, revocationTTL)
	if err == nil {
		_, err = r.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
			store.Put(r.Keys.Revocation(host, id), store.Encode(revocationValue{V: store.Now, Fence: fence}), lease),
		}})
	}
	if err != nil {
		return store.Problem("the revocation could not be requested", err)
	}
	return nil
}

// revocationValue is the value of a revocation in etcd. It names the grant of the
// claim, so that it never revokes a later one of the same id. Forced is set if the slots
// were freed along with it.
type revocationValue struct {
	store.V
	Fence  store.Fence `json:"fence"`
	Forced bool        `json:"forced,omitempty"`
}

// free deletes the keys of a claim and does what else is given, if the keys still are that
// claim's.
func (r Revoker) free(ctx context.Context, refs []slotRef, rev int64, also ...*pb.RequestOp) error {
	slots := make([]placed, len(refs))
	for i, ref := range refs {
		slots[i].ref = ref
	}
	ops := slotDeletes(r.Keys, slots, nil)
	if len(ops) > maxChildOps {
		ops = children(ops, 1)
	}
	ops = append(ops, also...)
	ref := refs[0]
	resp, err := r.Backend.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(r.Keys.Slot(ref.pool, ref.group, ref.index), rev)},
		Success: ops,
	})
	if err != nil {
		return store.Problem("the claim may or may not be released", err)
	}
	if !resp.Succeeded {
		return problem.New(problem.ClaimNotFound, "the claim ended before it could be released by force")
	}
	return nil
}
