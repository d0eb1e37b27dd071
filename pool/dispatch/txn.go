package dispatch

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// flight is a transaction without an answer.
type flight struct {
	puts    []*open
	deletes []*open         // of silent owners
	drops   []wire.OfferKey // other keys
	passed  []*owner
	pending []pendingChange
	advance []wire.OfferKey // to be put
	ends    []wire.OfferKey // advance offers to be deleted
	mark    []wire.Mark
}

// maxDeletes bounds the keys of silent owners that a transaction deletes, other keys, and owners that are passed: what is
// left follows. maxPending bounds the pools that begin or stop being pending.
const (
	maxDeletes = 8
	maxPending = 6
)

// MaxOps is the most operations of a transaction of a dispatcher. Etcd accepts 128, in a child what its parents leave.
const MaxOps = maxKeys + 3*maxDeletes + 2*maxAdvances + maxPending + 1

const (
	firstRetry = 100 * time.Millisecond
	mostRetry  = 5 * time.Second
)

// pace spaces transactions that etcd refuses.
type pace struct {
	until, last time.Duration
}

// refused records that etcd has refused a transaction.
func (p *pace) refused(now time.Duration) {
	p.last = min(mostRetry, max(firstRetry, 2*p.last))
	p.until = now + p.last
}

// well records that etcd has carried one out.
func (p *pace) well() { *p = pace{} }

// Next returns the next transaction, false if there is none, or one is under way. It is to be called after anything was
// shown or answered, and when Wake says; then Offers returns what is offered in memory.
func (d *Dispatcher) Next(now time.Duration) (*pb.TxnRequest, bool) {
	if d.lost || d.flight != nil || d.view.listed == 0 || now < d.pace.until {
		return nil, false
	}
	f := &flight{}
	d.age(now)
	d.revoke(f, now)
	if d.dirty || now >= d.planAt {
		f.puts = d.plan(now)
	}
	f.advance, f.ends = d.advances.next()
	f.pending = d.pendingChanges(now)
	f.pending = f.pending[:min(len(f.pending), maxPending)]
	if demands := d.Demands() > 0; now >= d.mark.due(demands) && !d.mark.stale(now) {
		f.mark = append(f.mark, d.mark.key(demands, now))
	}
	ops := d.ops(f)
	if len(ops) == 0 {
		return nil, false
	}
	d.fly(f)
	return &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(d.keys.Role(), d.role)}, Success: ops}, true
}

// fly records which transaction is under way.
func (d *Dispatcher) fly(f *flight) { d.flight = f }

// revoke adds the keys that are to be deleted, and owners that are to be passed.
func (d *Dispatcher) revoke(f *flight, now time.Duration) {
	f.deletes = d.silentKeys(now)
	f.deletes = f.deletes[:min(len(f.deletes), maxDeletes)]
	for _, key := range slices.SortedFunc(maps.Keys(d.unwanted), compareKeys) {
		if len(f.drops) == maxDeletes {
			break
		}
		delete(d.unwanted, key)
		if o := d.book.keys[key]; o != nil && o.stage == put && !slices.Contains(f.deletes, o) && o.owner.idle() {
			f.drops = append(f.drops, key)
		} else if x := d.owners.all[instance{key.Host, key.Instance}]; key.Passed() && x != nil && x.idle() && x.passing == passed {
			f.drops = append(f.drops, key)
		}
	}
	for _, key := range d.book.strays() {
		if len(f.drops) == maxDeletes {
			break
		}
		if d.book.dropping(key, true); !slices.Contains(f.drops, key) {
			f.drops = append(f.drops, key)
		}
	}
	for x := range d.owners.toPass {
		if !slices.Contains(f.drops, x.passedKey()) { // no key can be deleted and put in one transaction
			f.passed = append(f.passed, x)
		}
	}
	slices.SortFunc(f.passed, func(x, y *owner) int { return compareKeys(x.passedKey(), y.passedKey()) })
	f.passed = f.passed[:min(len(f.passed), maxDeletes)]
}

// unwant has a key deleted if its owner still has no demands then.
func (d *Dispatcher) unwant(key wire.OfferKey) { d.unwanted[key] = true }

// ops returns the operations of a transaction, and records that they are sent.
func (d *Dispatcher) ops(f *flight) (ops []*pb.RequestOp) {
	for _, o := range f.puts {
		var list []wire.Offer
		for _, l := range o.loans {
			list = append(list, l.offer())
		}
		ops = append(ops, store.Put(d.keys.Offer(o.key), wire.EncodeOffers(list), 0))
	}
	for _, o := range f.deletes {
		d.book.revoke(o, true)
		ops = append(ops, store.Delete(d.keys.Offer(o.key)))
	}
	for _, key := range f.drops {
		if o := d.book.keys[key]; o != nil {
			d.book.revoke(o, true)
		}
		ops = append(ops, store.Delete(d.keys.Offer(key)))
	}
	for _, x := range f.passed {
		d.owners.pass(x, putting)
		ops = append(ops, store.Put(d.keys.Offer(x.passedKey()), wire.EncodeEmpty(), 0))
	}
	for _, key := range f.advance {
		d.advances.await.sent(key)
		d.counts.add(Advanced)
		ops = append(ops, store.Put(d.keys.Offer(key), wire.EncodeEmpty(), 0))
	}
	for _, key := range f.ends {
		d.advances.await.sent(key)
		ops = append(ops, store.Delete(d.keys.Offer(key)))
	}
	for _, c := range f.pending {
		d.pending.await.sent(c.pool)
		d.counts.add(c.count)
		ops = append(ops, c.op)
	}
	for _, m := range f.mark {
		ops = append(ops, store.Put(d.keys.Mark(), wire.EncodeMark(m), d.mark.lease))
	}
	return ops
}

// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown: then
// the transaction is to be fenced, and the dispatcher sends nothing until Fenced is called.
func (d *Dispatcher) Answer(resp *pb.TxnResponse, err error, now time.Duration) (unknown bool) {
	f := d.flight
	switch {
	case err != nil && store.OutcomeUnknown(err):
		for _, o := range f.puts {
			d.book.unanswered(o, 0, now)
		}
		return true
	case err != nil:
		d.fly(nil)
		d.refused(f, now)
		d.pace.refused(now)
		d.lose(errors.Is(err, store.ErrLeaseNotFound))
		return false
	case !resp.Succeeded:
		d.fly(nil)
		d.refused(f, now)
		d.lose(true)
		return false
	}
	d.fly(nil)
	d.pace.well()
	d.carried(f, resp, now)
	d.shown(now)
	return false
}

// lose records that the role was lost: its key, and the lease of that key, come and go together.
func (d *Dispatcher) lose(lost bool) { d.lost = d.lost || lost }

// carried records that a transaction was carried out.
func (d *Dispatcher) carried(f *flight, resp *pb.TxnResponse, now time.Duration) {
	revision := resp.Header.Revision
	for _, o := range f.puts {
		if d.book.answered(o, revision, now); revision <= d.view.revision && !o.there {
			d.closed(o, now) // all was read since
		}
	}
	for i, o := range f.deletes {
		if resp.Responses[len(f.puts)+i].GetResponseDeleteRange().Deleted > 0 {
			d.silent(o, now)
		}
		d.book.leave(o, revision)
	}
	for _, key := range f.drops {
		if o := d.book.keys[key]; o != nil {
			d.book.leave(o, revision)
		}
	}
	for _, x := range f.passed {
		if d.owners.put(x, revision); x.passing == putting && revision <= d.view.revision {
			d.owners.pass(x, served) // all was read since
			d.owners.forget(x)
		}
	}
	d.answered(f, revision)
}

// answered records the revision at which a transaction was carried out, or after which it can't be; 0 that it was not.
func (d *Dispatcher) answered(f *flight, revision int64) {
	for _, c := range f.pending {
		d.pending.await.answered(c.pool, revision)
	}
	for _, key := range slices.Concat(f.advance, f.ends) {
		d.advances.await.answered(key, revision)
	}
}

// refused records that a transaction was not carried out.
func (d *Dispatcher) refused(f *flight, now time.Duration) {
	for _, o := range f.puts {
		d.closed(o, now)
	}
	d.notDeleted(f)
	for _, x := range f.passed {
		if x.passing == putting {
			d.owners.pass(x, passes)
			d.left(x)
		}
	}
	d.answered(f, 0)
	if len(f.mark) > 0 {
		d.mark.failed()
	}
	d.touch()
}

// notDeleted records that keys may not have been deleted.
func (d *Dispatcher) notDeleted(f *flight) {
	for _, o := range f.deletes {
		d.book.revoke(o, false)
	}
	for _, key := range f.drops {
		if o := d.book.keys[key]; o != nil {
			d.book.revoke(o, false)
		}
		d.book.dropping(key, false)
		if x := d.owners.all[instance{key.Host, key.Instance}]; x != nil && x.idle() {
			d.unwant(key)
		}
	}
}

// Fenced records that the transaction without an answer can't be carried out after a revision. What it has done is seen
// when the view is at that revision.
func (d *Dispatcher) Fenced(revision int64, now time.Duration) {
	f := d.flight
	if f == nil {
		return
	}
	d.fly(nil)
	for _, o := range f.puts {
		d.book.unanswered(o, revision, now)
	}
	d.notDeleted(f)
	for _, x := range f.passed {
		if x.passing == putting {
			d.owners.pass(x, passes)
			d.left(x)
		}
	}
	d.answered(f, revision)
	if len(f.mark) > 0 {
		d.mark.failed()
	}
	d.touch()
	d.shown(now)
}

// Wake returns when Next is to be called again if nothing happens before.
func (d *Dispatcher) Wake(now time.Duration) time.Duration {
	if d.lost || d.flight != nil || d.view.listed == 0 {
		return never
	}
	at := min(d.planAt, d.pending.again, d.wakeSilent(now), d.mark.due(d.Demands() > 0))
	if d.dirty {
		at = now
	}
	return max(at, d.pace.until)
}

func compareKeys(x, y wire.OfferKey) int {
	return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Advance, y.Advance))
}
