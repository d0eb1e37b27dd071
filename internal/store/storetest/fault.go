package storetest

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/store"
)

// Op names a method of [Backend] that asks etcd for something.
type Op string

// The operations that faults can be ordered for.
const (
	OpTxn        Op = "txn"
	OpRange      Op = "range"
	OpGrant      Op = "grant lease"
	OpRenew      Op = "renew lease"
	OpRevoke     Op = "revoke lease"
	OpTimeToLive Op = "read lease"
)

// Call is one request, as a fault hook sees it, to be read only. What does not
// belong to its Op is zero.
type Call struct {
	Op    Op
	Txn   *pb.TxnRequest   // of OpTxn
	Range *pb.RangeRequest // of OpRange
	Lease store.LeaseID    // of OpRenew, OpRevoke and OpTimeToLive
	TTL   time.Duration    // of OpGrant
}

// Fault is what happens to one request. The zero value is nothing.
type Fault struct {
	// Drop loses the request before it reaches etcd.
	Drop bool
	// Delay is how long the request is under way before etcd carries it out,
	// also when its caller has given up meanwhile.
	Delay time.Duration
	// Hold keeps the request under way until the channel closes, on top of
	// Delay. Like Delay it outlives the caller.
	Hold <-chan struct{}
	// LoseAnswer has etcd carry the request out and loses the answer.
	LoseAnswer bool
	// Err is what the caller of a dropped request or a lost answer gets, at once.
	// Without it the caller waits until its context ends and gets
	// [store.ErrUnavailable].
	Err error
}

// late reports whether the request needs a life of its own.
func (f Fault) late() bool { return f.Delay > 0 || f.Hold != nil }

// call sends one request through the faults ordered for it.
func call[T any](ctx context.Context, b *Backend, c Call, do func(*Etcd, Call) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, gaveUp(ctx, c.Op)
	}
	to, _ := b.Cluster()
	if store.IsReplaced(ctx, to) {
		return none, fmt.Errorf("%s: %w", c.Op, store.ErrOtherCluster)
	}
	f, err := b.fault(c)
	switch {
	case err != nil:
		return none, err
	case f.Drop:
		return none, b.lost(ctx, c.Op, f)
	}
	answer, err := send(ctx, b, c, f, func(e *Etcd, c Call) (T, error) {
		if err := b.belongs(to); err != nil {
			return none, fmt.Errorf("%s: %w", c.Op, err)
		}
		return do(e, c)
	})
	if f.LoseAnswer {
		return none, b.lost(ctx, c.Op, f)
	}
	return answer, err
}

// send has etcd carry the request out, and waits for it unless ctx ends.
func send[T any](ctx context.Context, b *Backend, c Call, f Fault, do func(*Etcd, Call) (T, error)) (answer T, err error) {
	if !f.late() {
		b.hub.do(func(e *Etcd) { answer, err = do(e, c) })
		return answer, err
	}
	type result struct {
		answer T
		err    error
	}
	done := make(chan result, 1)
	c = c.clone()
	b.later(f, func(e *Etcd) {
		var r result
		r.answer, r.err = do(e, c)
		done <- r
	})
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
		return answer, gaveUp(ctx, c.Op)
	case <-b.done:
		return answer, down(c.Op)
	}
}

// clone copies a request that outlives its caller: a real one was written to
// the wire before the caller got control back.
func (c Call) clone() Call {
	if c.Txn != nil {
		c.Txn = proto.CloneOf(c.Txn)
	}
	if c.Range != nil {
		c.Range = proto.CloneOf(c.Range)
	}
	return c
}

// lost is what the caller sees when nothing comes back.
func (b *Backend) lost(ctx context.Context, op Op, f Fault) error {
	if f.Err != nil {
		return fmt.Errorf("%s: %w", op, f.Err)
	}
	select {
	case <-ctx.Done():
		return gaveUp(ctx, op)
	case <-b.done:
		return down(op)
	}
}

func gaveUp(ctx context.Context, op Op) error {
	return fmt.Errorf("%s: %w: %v", op, store.ErrUnavailable, ctx.Err())
}

func down(op Op) error {
	return fmt.Errorf("%s: %w: connection refused", op, store.ErrUnavailable)
}
