package store

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	// groupMost bounds the changes that share a transaction: each may be a child of it,
	// and etcd takes 128.
	groupMost = 100
	// groupBytes bounds what they put; etcd's limit is 1.5 MiB in all.
	groupBytes = 1 << 20
	// groupFlights bounds the transactions under way.
	groupFlights = 4
	// groupTimeout bounds one transaction.
	groupTimeout = 2 * time.Second
	// groupWait bounds the wait for company; it is no longer than a quarter of what the
	// last transaction took.
	groupWait = time.Millisecond
)

// Group has changes that come while a transaction is under way share the next, each
// failing alone: etcd pays for a transaction, not for what is in it. Zero is ready.
//
// The callers that a transaction answered have their next change ready in a moment. If the
// transaction had several changes, the next one waits for as many, but not for long. Otherwise half
// of the callers would miss it, and each half would wait for the other's transaction.
type Group struct {
	mu      sync.Mutex // guards what follows
	pending []*grouped
	flying  int // transactions under way
	// waits is the transaction that waits for company, if one does.
	waits *waiting
	// wary tells that a change has failed in the last transaction: see [Joined].
	wary bool
	// flat tells that one is under way that may have to be sent again: no other may
	// overtake it.
	flat bool
}

// waiting is a transaction that goes when so many changes are pending, or at a time.
type waiting struct {
	want int
	late *time.Timer
	send func([]*grouped)
}

// grouped is one change.
type grouped struct {
	Part
	keys  []string // that it puts or deletes
	bytes int
	done  chan groupAnswer // buffered
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

// Commit is [Commit], together with other changes. If ctx ends before the change was sent, it never is.
func (g *Group) Commit(ctx context.Context, b Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (Committed, error) {
	return g.Enqueue(ctx, b, cmps, ops...)()
}

// Enqueue is [Group.Commit] in two steps: when it returns, the change is queued, and what
// is enqueued later is sent with it or after it. The returned function waits for the result.
func (g *Group) Enqueue(ctx context.Context, b Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (answer func() (Committed, error)) {
	c := &grouped{Part: Part{If: cmps, Then: ops}, done: make(chan groupAnswer, 1)}
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
	send := func(some []*grouped) { g.drain(context.WithoutCancel(ctx), b, some) }
	switch {
	case g.waits != nil && len(g.pending) >= g.waits.want:
		some, send = g.depart()
	case g.flying == 0 || g.flying < groupFlights && len(g.pending) >= groupMost && !g.flat:
		g.flying++
		some = g.take()
	}
	g.mu.Unlock()
	if len(some) > 0 {
		go send(some)
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

// drain sends, until nothing is pending or the next waits for company.
func (g *Group) drain(ctx context.Context, b Backend, some []*grouped) {
	for len(some) > 0 {
		begun := time.Now()
		g.send(ctx, b, some)
		most := min(groupWait, time.Since(begun)/4)
		g.mu.Lock()
		if last := len(some); last > 1 && len(g.pending) < groupMost && g.waits == nil {
			g.wait(min(groupMost, len(g.pending)+last), most, func(some []*grouped) { g.drain(ctx, b, some) })
			some = nil
		} else if some = g.take(); len(some) == 0 {
			g.flying--
		}
		g.mu.Unlock()
	}
}

// wait has the next transaction wait for company. The lock is held.
func (g *Group) wait(want int, most time.Duration, send func([]*grouped)) {
	w := &waiting{want: want, send: send}
	g.waits = w
	w.late = time.AfterFunc(most, func() {
		g.mu.Lock()
		if g.waits != w {
			g.mu.Unlock()
			return
		}
		some, send := g.depart()
		g.mu.Unlock()
		send(some)
	})
}

// depart ends the wait for company, and returns what is to be sent. The lock is held.
func (g *Group) depart() (some []*grouped, send func([]*grouped)) {
	w := g.waits
	w.late.Stop()
	g.waits = nil
	if some = g.take(); len(some) == 0 {
		g.flying--
	}
	return some, w.send
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

// send sends some changes, and answers them.
func (g *Group) send(ctx context.Context, b Backend, some []*grouped) {
	if len(some) == 1 {
		some[0].alone(ctx, b)
		return
	}
	joined, resp, err := g.try(ctx, b, some)
	switch {
	case err != nil && !OutcomeUnknown(err): // because of one of them: find out which
		for _, c := range some {
			c.alone(ctx, b)
		}
		return
	case err != nil:
		for _, c := range some {
			c.done <- groupAnswer{err: err}
		}
		return
	}
	failed := false
	for i, a := range joined.Answers(resp) {
		some[i].answer(resp.Header.Revision, a)
		failed = failed || !a.Succeeded
	}
	g.mu.Lock()
	g.wary = failed
	g.mu.Unlock()
}

// try sends some changes in one transaction: flat, unless one has failed lately or others
// are under way, and again if one fails.
func (g *Group) try(ctx context.Context, b Backend, some []*grouped) (*Joined, *pb.TxnResponse, error) {
	parts := make([]Part, len(some))
	for i, c := range some {
		parts[i] = c.Part
	}
	g.mu.Lock()
	joined := Join(&pb.TxnRequest{}, parts, !g.wary && g.flying == 1)
	g.flat = joined.Flat
	g.mu.Unlock()
	resp, err := once(ctx, b, joined.Txn)
	if joined.Flat && err == nil && !resp.Succeeded {
		joined = Join(&pb.TxnRequest{}, parts, false)
		g.mu.Lock()
		g.wary = true
		g.mu.Unlock()
		resp, err = once(ctx, b, joined.Txn)
	}
	g.mu.Lock()
	g.flat = false
	g.mu.Unlock()
	return joined, resp, err
}

// once sends a transaction, and waits for as long as one may take.
func once(ctx context.Context, b Backend, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	return b.Txn(ctx, t)
}

// alone sends one change by itself.
func (c *grouped) alone(ctx context.Context, b Backend) {
	resp, err := once(ctx, b, &pb.TxnRequest{Compare: c.If, Success: c.Then})
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
