package store

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	// groupMost bounds the changes that share a transaction: each is a child of it, and
	// etcd takes 128.
	groupMost = 100
	// groupBytes bounds what they put; etcd's limit is 1.5 MiB in all.
	groupBytes = 1 << 20
	// groupFlights bounds the transactions under way.
	groupFlights = 4
	// groupTimeout bounds one transaction.
	groupTimeout = 2 * time.Second
)

// Group has changes that come while a transaction is under way share the next, each
// failing alone: etcd pays for a transaction, not for what is in it. Zero is ready.
type Group struct {
	mu      sync.Mutex // guards what follows
	pending []*grouped
	flying  int // transactions under way
}

// grouped is one change.
type grouped struct {
	txn   *pb.TxnRequest
	keys  []string // that it puts or deletes
	bytes int
	done  chan groupAnswer // with room for one
}

type groupAnswer struct {
	Committed
	err error
}

// Committed is what came of a change that was made.
type Committed struct {
	Revision int64
	// Responses are those to its operations, in their order.
	Responses []*pb.ResponseOp
}

// Commit is [Commit] in company. If ctx ends before the change was sent, it never is.
func (g *Group) Commit(ctx context.Context, b Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (Committed, error) {
	return g.Enqueue(ctx, b, cmps, ops...)()
}

// Enqueue is [Group.Commit] in two parts: when it returns the change has its place, and
// what is enqueued later goes with it or after it. The answer is what it returns for.
func (g *Group) Enqueue(ctx context.Context, b Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (answer func() (Committed, error)) {
	c := &grouped{txn: &pb.TxnRequest{Compare: cmps, Success: ops}, done: make(chan groupAnswer, 1)}
	for _, op := range ops {
		if put := op.GetRequestPut(); put != nil {
			c.keys = append(c.keys, string(put.Key))
			c.bytes += len(put.Value)
		} else if del := op.GetRequestDeleteRange(); del != nil {
			c.keys = append(c.keys, string(del.Key))
		}
	}
	g.mu.Lock()
	g.pending = append(g.pending, c)
	// One at a time makes large groups; another goes out when it is full. What it sends
	// is taken here, so that the next change does not find it pending still.
	var some []*grouped
	if g.flying == 0 || g.flying < groupFlights && len(g.pending) >= groupMost {
		g.flying++
		some = g.take()
	}
	g.mu.Unlock()
	if len(some) > 0 {
		go g.drain(context.WithoutCancel(ctx), b, some)
	}
	return func() (Committed, error) {
		select {
		case a := <-c.done:
			return a.Committed, a.err
		case <-ctx.Done():
			g.withdraw(c)
			return Committed{}, context.Cause(ctx)
		}
	}
}

// withdraw takes a change back if it was not sent yet.
func (g *Group) withdraw(c *grouped) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.pending, c); i >= 0 {
		g.pending = slices.Delete(g.pending, i, i+1)
	}
}

// drain sends, until nothing is pending.
func (g *Group) drain(ctx context.Context, b Backend, some []*grouped) {
	for len(some) > 0 {
		send(ctx, b, some)
		g.mu.Lock()
		if some = g.take(); len(some) == 0 {
			g.flying--
		}
		g.mu.Unlock()
	}
}

// take returns what goes into the next transaction, first come first. Changes that
// touch the same key go one after the other: etcd takes no transaction that puts a key
// twice. The lock is held.
func (g *Group) take() []*grouped {
	var some, later []*grouped
	bytes, touched := 0, map[string]bool{}
	for _, c := range g.pending {
		full := len(some) == groupMost || len(some) > 0 && bytes+c.bytes > groupBytes
		if full || slices.ContainsFunc(c.keys, func(key string) bool { return touched[key] }) {
			later = append(later, c)
			continue
		}
		some, bytes = append(some, c), bytes+c.bytes
		for _, key := range c.keys {
			touched[key] = true
		}
	}
	g.pending = later
	return some
}

func send(ctx context.Context, b Backend, some []*grouped) {
	if len(some) == 1 {
		some[0].alone(ctx, b)
		return
	}
	t := &pb.TxnRequest{}
	for _, c := range some {
		t.Success = append(t.Success, Nest(c.txn))
	}
	try, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	resp, err := b.Txn(try, t)
	if err != nil && !InDoubt(err) { // because of one of them: find out which
		for _, c := range some {
			c.alone(ctx, b)
		}
		return
	}
	for i, c := range some {
		if err != nil {
			c.done <- groupAnswer{err: err}
			continue
		}
		c.answer(resp.Header.Revision, resp.Responses[i].GetResponseTxn())
	}
}

// alone sends one change by itself.
func (c *grouped) alone(ctx context.Context, b Backend) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	resp, err := b.Txn(ctx, c.txn)
	if err != nil {
		c.done <- groupAnswer{err: err}
		return
	}
	c.answer(resp.Header.Revision, resp)
}

// answer tells what came of a change.
func (c *grouped) answer(rev int64, resp *pb.TxnResponse) {
	if !resp.Succeeded {
		c.done <- groupAnswer{err: ErrChanged}
		return
	}
	c.done <- groupAnswer{Committed: Committed{rev, resp.Responses}}
}
