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
	sent     time.Duration
	silent   []*open // to be deleted, as their owners have left them alone
	unwanted []*open // to be deleted, as their owners have no demands
	puts     []*open
	changes  []string // other keys that are put or deleted
	mark     bool     // it has the sign of life
	ops      []*pb.RequestOp
}

// maxDeletes bounds the keys of silent owners that a transaction deletes, those of owners without demands, other keys, and
// owners that are passed: what is left follows. maxPending bounds the pools that begin or stop being pending.
const (
	maxDeletes = 6
	maxPending = 6
)

// MaxOps is the most operations of a transaction of a dispatcher. Etcd accepts 128, in a child what its parents leave.
const MaxOps = maxKeys + 4*maxDeletes + 2*maxAdvances + maxPending + 1

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
	f := &flight{sent: now}
	d.age(now)
	d.revoke(f, now)
	if d.dirty || now >= d.planAt {
		p := d.plan(now)
		d.dirty, d.planAt = p.more, p.again
		d.put(f, p.keys)
	}
	d.changeOffers(f, slices.Collect(maps.Keys(d.book.strays)), false, maxDeletes)
	d.changeOffers(f, d.owners.toPass(), true, maxDeletes)
	d.counts[Advanced] += d.changeOffers(f, d.advances.missing(), true, maxAdvances)
	d.changeOffers(f, d.advances.surplus(), false, maxAdvances)
	d.changePending(f, now)
	if demands := d.demands(); now >= d.mark.due(demands) && !d.mark.stale(now) {
		f.mark = true
		f.ops = append(f.ops, store.Put(d.keys.Mark(), wire.EncodeMark(d.mark.next(demands, now)), d.mark.lease))
	}
	if len(f.ops) == 0 {
		return nil, false
	}
	d.flight = f
	return &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(d.keys.Role(), d.role)}, Success: f.ops}, true
}

// demands reports whether there are demands, or may be.
func (d *Dispatcher) demands() bool { return d.Demands() > 0 || d.view.reading() }

// touch has the next transaction planned again, and planned again what it has not got in.
func (d *Dispatcher) touch() { d.dirty = true }

// revoke adds the offers keys that are to be deleted.
func (d *Dispatcher) revoke(f *flight, now time.Duration) {
	silent, _ := d.silentKeys(now)
	f.silent = silent[:min(len(silent), maxDeletes)]
	for _, o := range f.silent {
		d.revokeKey(f, o)
	}
	unwanted := d.unwanted()
	f.unwanted = unwanted[:min(len(unwanted), maxDeletes)]
	for _, o := range f.unwanted {
		d.revokeKey(f, o)
	}
}

// unwanted returns the offers keys of owners without demands.
func (d *Dispatcher) unwanted() (all []*open) {
	for _, x := range d.owners.all {
		if !x.idle() {
			continue
		}
		for n := range x.names {
			if o := d.book.keys[x.offersKey(n)]; o.stage == put {
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(x, y *open) int { return compareKeys(x.key, y.key) })
	return all
}

func (d *Dispatcher) revokeKey(f *flight, o *open) {
	d.book.revoke(o, true)
	f.ops = append(f.ops, store.Delete(d.keys.Offer(o.key)))
}

// put adds offers keys.
func (d *Dispatcher) put(f *flight, keys []*open) {
	for _, o := range keys {
		var list []wire.Offer
		for _, l := range o.loans {
			list = append(list, l.offer())
		}
		f.ops = append(f.ops, store.Put(d.keys.Offer(o.key), wire.EncodeOffers(list), 0))
	}
	f.puts = keys
}

// change adds the put or the deletion of a key, unless it is not known yet what has become of the last one.
func (d *Dispatcher) change(f *flight, key string, op *pb.RequestOp) (added bool) {
	if d.await.waits(key, d.view.revision) {
		return false
	}
	d.await.sent(key)
	f.changes, f.ops = append(f.changes, key), append(f.ops, op)
	return true
}

// changeOffers adds the put or the deletion of some keys below offers/ whose presence is all that counts, and returns of how many.
func (d *Dispatcher) changeOffers(f *flight, keys []wire.OfferKey, put bool, most int) (n int) {
	slices.SortFunc(keys, compareKeys)
	for _, of := range keys {
		key := d.keys.Offer(of)
		op := store.Delete(key)
		if put {
			op = store.Put(key, wire.EncodeEmpty(), 0)
		}
		if n < most && d.change(f, key, op) {
			n++
		}
	}
	return n
}

// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown: then
// the transaction is to be fenced, and the dispatcher sends nothing until Fenced is called.
func (d *Dispatcher) Answer(resp *pb.TxnResponse, err error, now time.Duration) (unknown bool) {
	if err != nil {
		d.silence.troubled(now)
	}
	if err != nil && store.OutcomeUnknown(err) {
		return true
	}
	f := d.flight
	d.silence.took(now, now-f.sent)
	d.flight = nil
	switch {
	case err != nil:
		d.undone(f, 0, now)
		d.pace.refused(now)
		d.lost = errors.Is(err, store.ErrLeaseNotFound) // the role is on it
	case !resp.Succeeded:
		d.undone(f, 0, now)
		d.lost = true
	default:
		d.pace.well()
		d.carried(f, resp, now)
	}
	d.shown(now)
	return false
}

// Fenced records that the transaction without an answer can't be carried out after a revision. What it has done is seen
// when the view is at that revision.
func (d *Dispatcher) Fenced(revision int64, now time.Duration) {
	if f := d.flight; f != nil {
		d.flight = nil
		d.undone(f, revision, now)
		d.shown(now)
	}
}

// carried records that a transaction was carried out.
func (d *Dispatcher) carried(f *flight, resp *pb.TxnResponse, now time.Duration) {
	for i, o := range f.silent {
		if resp.Responses[i].GetResponseDeleteRange().Deleted > 0 {
			d.silent(o, now)
		}
	}
	for _, o := range f.puts {
		d.book.put(o, resp.Header.Revision, now)
	}
	d.answered(f, resp.Header.Revision)
}

// undone records that a transaction was not carried out or, with a revision, that it can't be after that one, and may have been before.
func (d *Dispatcher) undone(f *flight, revision int64, now time.Duration) {
	for _, o := range f.puts {
		if revision > 0 {
			d.book.put(o, revision, now)
		} else {
			d.closed(o, now)
		}
	}
	for _, o := range slices.Concat(f.silent, f.unwanted) {
		d.book.revoke(o, false)
	}
	d.answered(f, revision)
	if f.mark {
		d.mark.failed()
	}
	d.touch()
}

// answered records the revision of the answer to a transaction, 0 if it was not carried out.
func (d *Dispatcher) answered(f *flight, revision int64) {
	for _, key := range f.changes {
		d.await.answered(key, revision)
	}
}

// Wake returns when Next is to be called again if nothing happens before.
func (d *Dispatcher) Wake(now time.Duration) time.Duration {
	if d.lost || d.flight != nil || d.view.listed == 0 {
		return never
	}
	_, silent := d.silentKeys(now)
	at := min(d.planAt, d.pending.again, silent, d.mark.due(d.demands()))
	if d.dirty {
		at = now
	}
	return max(at, d.pace.until)
}

func compareKeys(x, y wire.OfferKey) int {
	return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Advance, y.Advance))
}
