package engine

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/dispatch"
)

// offersHalf is what the dispatcher of this instance writes, under a guard of its own.
type offersHalf struct {
	guard store.Guard
	d     *dispatch.Dispatcher // the present one
	of    *dispatch.Dispatcher // whose transaction is under way
	ops   int                  // of it, without the guard
	clock func() time.Duration
}

func newOffersHalf(e *Engine) *offersHalf {
	keys := e.cfg.Keys
	return &offersHalf{guard: store.NewGuard(keys.Guard(e.cfg.Host, e.cfg.Instance+"~offers")), clock: e.now}
}

// dispatch has transactions made by a dispatcher from now on.
func (o *offersHalf) dispatch(d *dispatch.Dispatcher) { o.d = d }

// Next returns the next transaction of the dispatcher.
func (o *offersHalf) Next(now time.Duration, _ time.Time) (*pb.TxnRequest, bool) {
	t, ok := o.d.Next(now)
	if !ok {
		return nil, false
	}
	o.of, o.ops = o.d, len(t.Success)
	t.Compare = append(t.Compare, o.guard.Compare())
	t.Success = append(t.Success, o.guard.Put())
	t.Failure = append(t.Failure, o.guard.Get())
	return t, true
}

// Answer takes the answer to Next.
func (o *offersHalf) Answer(resp *pb.TxnResponse, err error) (unknown bool) {
	switch {
	case err != nil:
	case !resp.Succeeded && o.guard.Foreign(resp):
		resp, err = nil, store.ErrUnavailable
	case resp.Succeeded:
		o.guard.Committed(resp.Header.Revision)
		resp.Responses = resp.Responses[:o.ops]
	}
	return o.of.Answer(resp, err, o.clock())
}

// Fence returns the transaction that fences earlier ones.
func (o *offersHalf) Fence() *pb.TxnRequest { return o.guard.FenceTxn() }

// Fenced takes the answer to Fence.
func (o *offersHalf) Fenced(resp *pb.TxnResponse) bool { return o.guard.Answer(resp) }

// Unresolved returns a read at a revision that shows what has become of the last transaction: the dispatcher's watch does.
func (o *offersHalf) Unresolved() *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{store.Get(o.guard.Key())}}
}

// Resolved takes the answer to Unresolved.
func (o *offersHalf) Resolved(resp *pb.TxnResponse) { o.of.Fenced(resp.Header.Revision, o.clock()) }
