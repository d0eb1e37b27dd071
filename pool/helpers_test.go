package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// eventually waits until something is so; it fails after half a minute.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	late := time.After(30 * time.Second)
	for !is() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("in vain waited until %s", what)
		}
	}
}

// db is so many slots of pool "db".
func db(n int) map[string]int { return map[string]int{"db": n} }

// claim claims slots that must be free.
func (c *cluster) claim(e *pool.Engine, id string, slots map[string]int, change ...func(*pool.Request)) *pool.Claim {
	c.t.Helper()
	r := pool.Request{ID: id, Slots: slots}
	for _, f := range change {
		f(&r)
	}
	claim, err := e.Claim(c.ctx(), &r)
	if err != nil {
		c.t.Fatalf("claim %s: %v", id, err)
	}
	return claim
}

// refused checks that a claim without waiting is refused with that code.
func (c *cluster) refused(code problem.Code, e *pool.Engine, id string, slots map[string]int, change ...func(*pool.Request)) *problem.Error {
	c.t.Helper()
	r := pool.Request{ID: id, Slots: slots}
	for _, f := range change {
		f(&r)
	}
	claim, err := e.Claim(c.ctx(), &r)
	return wantProblem(c.t, code, claim, err)
}

func wantProblem(t testing.TB, code problem.Code, claim *pool.Claim, err error) *problem.Error {
	t.Helper()
	var p *problem.Error
	if claim != nil || !errors.As(err, &p) || p.Code != code {
		t.Fatalf("got claim %v and error %v, want %s", claim != nil, err, code)
	}
	return p
}

func (c *cluster) release(e *pool.Engine, claims ...*pool.Claim) {
	c.t.Helper()
	for _, claim := range claims {
		if err := e.Release(c.ctx(), claim); err != nil {
			c.t.Fatalf("release %s: %v", claim.ID, err)
		}
	}
}

// waiting is a claim that waits.
type waiting struct {
	c      *cluster
	cancel context.CancelFunc
	done   chan struct{} // closed when there is an answer
	claim  *pool.Claim
	err    error
}

// wait asks for slots and returns when the claim waits: behind all that are
// there, of its priority. A host that has not seen them would come before them.
func (c *cluster) wait(e *pool.Engine, id string, slots map[string]int, change ...func(*pool.Request)) *waiting {
	c.t.Helper()
	c.caughtUp()
	w := c.ask(e, id, slots, change...)
	eventually(c.t, id+" waits", func() bool {
		select {
		case <-w.done:
			c.t.Fatalf("%s does not wait: %v", id, w.err)
		default:
		}
		return slices.Contains(c.queue(), id)
	})
	return w
}

// ask asks for slots, to wait for them.
func (c *cluster) ask(e *pool.Engine, id string, slots map[string]int, change ...func(*pool.Request)) *waiting {
	ctx, cancel := context.WithCancel(c.ctx())
	w := &waiting{c: c, cancel: cancel, done: make(chan struct{})}
	r := pool.Request{ID: id, Slots: slots, Wait: time.Minute}
	for _, f := range change {
		f(&r)
	}
	go func() {
		defer close(w.done)
		w.claim, w.err = e.Claim(ctx, &r)
	}()
	c.t.Cleanup(func() { cancel(); <-w.done })
	return w
}

// got returns the claim when it is granted.
func (w *waiting) got() *pool.Claim {
	w.c.t.Helper()
	<-w.done
	if w.err != nil {
		w.c.t.Fatal(w.err)
	}
	return w.claim
}

// refused returns why the claim was refused, when it was.
func (w *waiting) refused(code problem.Code) *problem.Error {
	w.c.t.Helper()
	<-w.done
	return wantProblem(w.c.t, code, w.claim, w.err)
}

// hangUp ends the waiting as a client does that goes away.
func (w *waiting) hangUp() {
	w.c.t.Helper()
	w.cancel()
	w.refused(problem.ClaimCanceled)
}

// queue returns the waiting claims as etcd has them, in order; those in several
// lines once.
func (c *cluster) queue() []string {
	c.t.Helper()
	r := c.read()
	_, waiters := r.Claims()
	var ids []string
	for _, w := range waiters {
		ids = append(ids, w.Claim)
	}
	return ids
}

func (c *cluster) read() *pool.Reader {
	c.t.Helper()
	r, err := pool.Read(c.ctx(), c.client, c.keys)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// wantLine waits until those wait.
func (c *cluster) wantWaiters(want ...string) {
	c.t.Helper()
	var got []string
	eventually(c.t, "the line is as wanted", func() bool {
		got = c.queue()
		return slices.Equal(got, want)
	})
}

// sound fails if an invariant is broken.
func (c *cluster) sound() {
	c.t.Helper()
	for _, v := range c.read().Verify() {
		c.t.Errorf("%s: %s", v.Key, v.Problem)
	}
}

// empty waits until nothing is held and no claim waits.
func (c *cluster) empty() {
	c.t.Helper()
	eventually(c.t, "nothing is held and no claim waits", func() bool {
		h, w := c.read().Claims()
		return len(h)+len(w) == 0
	})
	c.sound()
}

// change changes a pool and waits until all engines see it.
func (c *cluster) change(name string, ch pool.Change) {
	c.t.Helper()
	put, err := c.reg.Set(c.ctx(), name, ch)
	if err != nil {
		c.t.Fatal(err)
	}
	c.seen(put.Revision)
}

// seen waits until all engines have seen a revision.
func (c *cluster) seen(rev int64) {
	c.t.Helper()
	for _, e := range c.engines {
		if err := e.WaitRevision(c.ctx(), rev); err != nil && problem.CodeOf(err) != problem.Stopping {
			c.t.Fatal(err)
		}
	}
}

// caughtUp waits until all engines have seen everything up to now.
func (c *cluster) caughtUp() {
	c.t.Helper()
	c.seen(c.txn(store.Put("/mark", nil, 0)))
}

func (c *cluster) txn(ops ...*pb.RequestOp) int64 {
	c.t.Helper()
	resp, err := c.client.Txn(c.ctx(), &pb.TxnRequest{Success: ops})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.Header.Revision
}

// keysUnder is how many keys there are.
func (c *cluster) keysUnder(prefix string) int {
	c.t.Helper()
	resp, err := c.client.Range(c.ctx(), &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), CountOnly: true})
	if err != nil {
		c.t.Fatal(err)
	}
	return int(resp.Count)
}
