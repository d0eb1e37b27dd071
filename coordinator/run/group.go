package run

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// groupMost bounds the changes that share a transaction: each is a child of it, and
	// etcd takes 128.
	groupMost = 100
	// groupBytes bounds what they put; etcd's limit is 1.5 MiB in all.
	groupBytes = 1 << 20
	// groupTimeout bounds one transaction.
	groupTimeout = 2 * time.Second
)

// group has changes that come while a transaction is under way share the next, each
// failing alone: etcd pays for a transaction, not for what is in it.
type group struct {
	mu      sync.Mutex // guards what follows
	pending []*grouped
	busy    bool // somebody sends what is pending
}

// grouped is one change.
type grouped struct {
	txn   *pb.TxnRequest
	bytes int
	done  chan groupAnswer // with room for one
}

type groupAnswer struct {
	rev int64
	err error
}

// commit is [store.Commit] in company.
func (g *group) commit(ctx context.Context, b store.Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (int64, error) {
	c := &grouped{txn: &pb.TxnRequest{Compare: cmps, Success: ops}, done: make(chan groupAnswer, 1)}
	for _, op := range ops {
		c.bytes += len(op.GetRequestPut().GetValue())
	}
	g.mu.Lock()
	g.pending = append(g.pending, c)
	idle := !g.busy
	g.busy = true
	g.mu.Unlock()
	if idle {
		go g.drain(context.WithoutCancel(ctx), b)
	}
	select {
	case a := <-c.done:
		return a.rev, a.err
	case <-ctx.Done():
		return 0, context.Cause(ctx) // it may happen all the same
	}
}

// drain sends until nothing is pending.
func (g *group) drain(ctx context.Context, b store.Backend) {
	for {
		some := g.take()
		if len(some) == 0 {
			return
		}
		send(ctx, b, some)
	}
}

// take returns what fits into the next transaction; nothing ends the sending.
func (g *group) take() []*grouped {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(g.pending), groupMost) && (n == 0 || bytes+g.pending[n].bytes <= groupBytes) {
		bytes += g.pending[n].bytes
		n++
	}
	some := g.pending[:n]
	g.pending = g.pending[n:]
	g.busy = n > 0
	return some
}

func send(ctx context.Context, b store.Backend, some []*grouped) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	if len(some) == 1 {
		rev, err := store.Commit(ctx, b, some[0].txn.Compare, some[0].txn.Success...)
		some[0].done <- groupAnswer{rev, err}
		return
	}
	t := &pb.TxnRequest{}
	for _, c := range some {
		t.Success = append(t.Success, store.Nest(c.txn))
	}
	resp, err := b.Txn(ctx, t)
	for i, c := range some {
		a := groupAnswer{err: err}
		if err == nil {
			a.rev = resp.Header.Revision
			if !resp.Responses[i].GetResponseTxn().Succeeded {
				a = groupAnswer{err: store.ErrChanged}
			}
		}
		c.done <- a
	}
}
