package dispatch

import (
	"container/heap"
	"strings"
	"testing"

	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// drop drops operations on their way to etcd.
func drop(which func(*queueWorld, *pb.RequestOp) bool) func(*queueWorld, *pb.TxnRequest) {
	return func(w *queueWorld, t *pb.TxnRequest) {
		for i, op := range t.Success {
			if which(w, op) { // the answers keep their places
				t.Success[i] = store.Delete("/nothing")
			}
		}
	}
}

func isPut(prefix, suffix string) func(*queueWorld, *pb.RequestOp) bool {
	return func(_ *queueWorld, op *pb.RequestOp) bool {
		key := string(op.GetRequestPut().GetKey())
		return strings.Contains(key, prefix) && strings.HasSuffix(key, suffix)
	}
}

// offers changes what is offered.
func offers(change func(*queueWorld, string, *wire.Take)) func(*queueWorld, *pb.TxnRequest) {
	return func(w *queueWorld, t *pb.TxnRequest) {
		for _, op := range t.Success {
			put := op.GetRequestPut()
			list, err := wire.DecodeOffers(string(put.GetKey()), put.GetValue())
			if put == nil || err != nil {
				continue
			}
			for _, o := range list {
				for name, take := range o.Take {
					change(w, name, &take)
					o.Take[name] = take
				}
			}
			put.Value = wire.EncodeOffers(list)
		}
	}
}

// forget has loans of some offers forgotten.
func forget(which func(*open) bool) func(*Dispatcher, *queueWorld) {
	return func(d *Dispatcher, _ *queueWorld) {
		for _, o := range d.book.all() {
			if !which(o) {
				continue
			}
			for _, l := range o.loans {
				for i, h := range l.held {
					l.demand.needs[i].pool.slots.Return(h)
				}
			}
		}
	}
}

// demandsOf changes all demands before a plan, and puts them in order again.
func demandsOf(change func(*Dispatcher, *demand)) func(*Dispatcher, *queueWorld) {
	return func(d *Dispatcher, _ *queueWorld) {
		for _, b := range d.batches {
			for _, x := range b.demands {
				change(d, x)
			}
		}
		for _, l := range d.order.lanes {
			heap.Init(&l.heap)
		}
	}
}

func TestEveryRuleIsNeeded(t *testing.T) {
	long(t)
	for name, m := range map[string]mutant{
		"a dispatcher that sleeps wakes": {deaf: true},
		"the role is compared":           {txn: func(_ *queueWorld, t *pb.TxnRequest) { t.Compare = nil }},
		"a pool that was put again as pending is not ended": {txn: func(_ *queueWorld, t *pb.TxnRequest) {
			for _, op := range t.Success {
				if child := op.GetRequestTxn(); child != nil {
					child.Compare = nil
				}
			}
		}},
		"a number is lent to one owner at a time":              {before: forget(func(*open) bool { return true })},
		"a loan ends when the view shows that the key is gone": {before: forget(func(o *open) bool { return o.stage == revoking })},
		"an offer in memory is open until the view shows it":   {before: forget(func(o *open) bool { return o.own() && o.gone > 0 })},
		"a put without an answer counts":                       {before: forget(func(o *open) bool { return o.stage == put && !o.own() && !o.there })},
		"an owner has a bound": {before: func(d *Dispatcher, _ *queueWorld) {
			for _, o := range d.owners.all {
				clear(o.open)
			}
		}},
		"an owner that was silent is passed": {before: func(d *Dispatcher, _ *queueWorld) {
			for _, o := range d.owners.all {
				if o.passing != served {
					o.pass(served)
				}
			}
		}},
		"an owner can be silent": {before: func(d *Dispatcher, w *queueWorld) {
			for _, o := range d.book.keys {
				o.since = w.now
			}
		}},
		"a key that is gone already is no silence": {answer: func(r *pb.TxnResponse) {
			for _, resp := range r.Responses {
				if del := resp.GetResponseDeleteRange(); del != nil {
					del.Deleted = 1
				}
			}
		}},
		"an owner that is passed is notified":                    {txn: drop(isPut("/offers/", "/passed"))},
		"a deletion of an offer is sent":                         {txn: drop(func(_ *queueWorld, op *pb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })},
		"what comes to nothing is not offered again immediately": {before: demandsOf(func(_ *Dispatcher, x *demand) { x.again = 0 })},
		"a demand that has slots gets none": {before: demandsOf(func(d *Dispatcher, x *demand) {
			if x.stage == ended {
				x.stage = waits
				d.owners.waiting(x.owner, 1)
				for _, n := range x.needs {
					n.pool.waiting.add(x.owner, 1)
				}
				d.queue(x)
			}
		})},
		"no event is missed after a listing": {event: func(d *Dispatcher, ev *mvccpb.Event) bool { return ev.Kv.ModRevision > d.view.listed+2 }},
		"a pool becomes pending again":       {txn: drop(isPut("/pending/", ""))},
		"a pool stops being pending":         {txn: drop(func(_ *queueWorld, op *pb.RequestOp) bool { return op.GetRequestTxn() != nil })},
		"slots are reserved":                 {before: demandsOf(func(_ *Dispatcher, x *demand) { x.reserve = false })},
		"a priority counts":                  {before: demandsOf(func(_ *Dispatcher, x *demand) { x.rank.Priority = 0 })},
		"a stamp counts":                     {before: demandsOf(func(_ *Dispatcher, x *demand) { x.rank.Stamp.Revision = -x.rank.Stamp.Revision })},
		"blocks are known at the revision that is said": {txn: offers(func(_ *queueWorld, _ string, t *wire.Take) {
			for i := range t.Areas {
				t.Areas[i][1] += 1000
			}
		})},
		"the spec is the one that is known": {txn: offers(func(w *queueWorld, name string, t *wire.Take) {
			for kv := range w.etcd.All(w.keys.Spec(name)) {
				t.Spec = kv.ModRevision
			}
		})},
		"a value that can't be read closes the pool": {before: func(d *Dispatcher, _ *queueWorld) {
			for _, p := range d.view.pools {
				clear(p.unreadable)
			}
		}},
		"a paused pool grants nothing": {before: func(d *Dispatcher, _ *queueWorld) {
			for _, p := range d.view.pools {
				if p.spec != nil && p.spec.Limit != pool.Closed {
					p.spec.Paused = false
				}
			}
		}},
		"what waits for a pool that does not exist is refused": {before: func(d *Dispatcher, _ *queueWorld) {
			for _, p := range d.view.pools {
				if p.spec == nil {
					p.spec = &pool.Spec{Paused: true}
				}
			}
		}},
		"a key that is not known is deleted": {before: func(d *Dispatcher, _ *queueWorld) { clear(d.book.strays) }},
		"an advance offer ends": {txn: drop(func(_ *queueWorld, op *pb.RequestOp) bool {
			return strings.Contains(string(op.GetRequestDeleteRange().GetKey()), "/advance~")
		})},
		"the order holds but for a while":                          {before: demandsOf(func(_ *Dispatcher, x *demand) { x.first = 0 })},
		"an advance offer waits for the first demand only so long": {before: func(d *Dispatcher, _ *queueWorld) { d.planAt = max(d.planAt, d.mark.put+time.Hour) }},
		"a plan is made when a pause ends":                         {before: func(d *Dispatcher, _ *queueWorld) { d.planAt = never }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				if w := newQueueWorld(seed, m).run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}
