package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// wait is how long claims of tests wait that are to be served.
const wait = 5 * time.Minute

// open opens a client without the polling fallback: waiting claims must be woken.
// It is closed at the end of the test, without waiting for its claims.
func open(t testing.TB, endpoints []string, host string, change ...func(*instance.Options)) *instance.Client {
	t.Helper()
	c, err := instance.Open(t.Context(), options(endpoints, host, change...))
	if err != nil {
		t.Fatalf("open %s: %v", host, err)
	}
	t.Cleanup(func() { shut(t, c) })
	return c
}

func options(endpoints []string, host string, change ...func(*instance.Options)) instance.Options {
	o := instance.Options{
		Endpoints: endpoints, Host: host, PollInterval: -1, ClaimTimeout: wait,
		Logger: hclog.New(&hclog.LoggerOptions{Name: host, Level: logLevel()}),
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

// shut closes a client at once. In a test that was skipped because the machine is slow, etcd may
// still be out of its reach.
func shut(t testing.TB, c *instance.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not drain
	if err := c.Close(ctx); err != nil && !t.Skipped() {
		t.Errorf("close %s: %v", c.Host(), err)
	}
}

// connect is a connection of the test's own.
func connect(t testing.TB, endpoints ...string) *store.Client {
	t.Helper()
	c, err := store.NewClient(store.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the client of etcd: %v", err)
		}
	})
	return c
}

// fixed makes an instance that a later process can resume.
func fixed(dir string) func(*instance.Options) {
	return func(o *instance.Options) { o.Instance, o.StateDir = "main", dir }
}

// spec sets what a test says of a pool, and returns when all these clients see
// it. Leases last long unless it says otherwise: what is no test of their end
// must not meet it, however slow the machine is.
func spec(t testing.TB, clients []*instance.Client, name string, limit int, change ...func(*pool.Change)) {
	t.Helper()
	lease := 2 * time.Minute
	ch := pool.Change{Limit: &limit, LeaseDuration: &lease}
	for _, f := range change {
		f(&ch)
	}
	put, err := clients[0].SetPool(t.Context(), name, ch)
	if err != nil {
		t.Fatalf("set pool %s: %v", name, err)
	}
	for _, c := range clients {
		eventually(t, c.Host()+" sees the pool", func(ctx context.Context) bool {
			d, err := c.Pool(ctx, name)
			return err == nil && d.SpecRevision >= put.Revision
		})
	}
}

// short is the shortest lease there is, for tests of its end.
func short(ch *pool.Change) {
	d := pool.MinLeaseDuration
	ch.LeaseDuration = &d
}

func leaseOf(d time.Duration) func(*pool.Change) {
	return func(ch *pool.Change) { ch.LeaseDuration = &d }
}

func reserveAfter(d time.Duration) func(*pool.Change) {
	return func(ch *pool.Change) { ch.ReserveAfter = &d }
}

// claim claims, and fails the test if it can't.
func claim(t testing.TB, c *instance.Client, id string, slots instance.Slots, opts ...instance.ClaimOption) *instance.Claim {
	t.Helper()
	cl, err := c.Claim(t.Context(), slots, append(opts, instance.WithID(id))...)
	if err != nil {
		t.Fatalf("claim %s on %s: %v", id, c.Host(), err)
	}
	return cl
}

func release(t testing.TB, cl *instance.Claim) {
	t.Helper()
	if err := cl.Release(t.Context()); err != nil {
		t.Errorf("release %s: %v", cl, err)
	}
}

// pending is a claim that waits in the background.
type pending struct {
	t    testing.TB
	id   string
	done chan struct{}
	cl   *instance.Claim
	err  error
}

// begin claims in the background. The test does not end before the claim has
// its answer.
func begin(t testing.TB, ctx context.Context, c *instance.Client, id string, slots instance.Slots, opts ...instance.ClaimOption) *pending {
	p := &pending{t: t, id: id, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.cl, p.err = c.Claim(ctx, slots, append(opts, instance.WithID(id))...)
	}()
	return p
}

// granted waits for the claim.
func (p *pending) granted() *instance.Claim {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		p.t.Fatalf("claim %s is not granted after %s", p.id, deadline)
	}
	if p.err != nil {
		p.t.Fatalf("claim %s: %v", p.id, p.err)
	}
	return p.cl
}

// refused waits for the refusal and its code.
func (p *pending) refused(code string) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		p.t.Fatalf("claim %s has no answer after %s", p.id, deadline)
	}
	if instance.ErrorCode(p.err) != code {
		p.t.Errorf("claim %s: %v, want %s", p.id, p.err, code)
	}
}

// waiting tells that there is no answer yet.
func (p *pending) waiting() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// closedWithin waits for something that must come.
func closedWithin(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(deadline):
		t.Fatalf("after %s still not: %s", deadline, what)
	}
}

// answers are the claims that holders were granted, to be held against the history.
type answers struct {
	mu     sync.Mutex
	grants []*instance.Claim
}

func (x *answers) note(cl *instance.Claim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.grants = append(x.grants, cl)
}

// judge holds all answers against the history as it is now.
func (x *answers) judge(w *witness) {
	w.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	w.look(func(h *History) {
		for _, cl := range x.grants {
			h.Granted(cl.ID, cl.Fence(), cl.Slots)
		}
	})
}

func (x *answers) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.grants)
}

// eventuallySees waits until a client sees a waiter as wanted.
func eventuallySees(t testing.TB, c *instance.Client, id string, wanted func(reserve bool) bool) {
	t.Helper()
	eventually(t, c.Host()+" sees that "+id+" waits", func(ctx context.Context) bool {
		_, waiters, err := c.Claims(ctx)
		return err == nil && slices.ContainsFunc(waiters, func(w pool.WaiterStatus) bool {
			return w.Claim == id && wanted(w.Reserve)
		})
	})
}

func limitOf(n int) pool.Change { return pool.Change{Limit: &n} }

// freeAddress returns an address at which no process listens. Its port is below those that Linux
// gives to outgoing connections, so that no process gets it by chance while etcd is away.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(17000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// eventuallyWell waits until a client sees no problem in a pool.
func eventuallyWell(t testing.TB, c *instance.Client, name string) {
	t.Helper()
	eventually(t, c.Host()+" finds the pool well", func(ctx context.Context) bool {
		d, err := c.Pool(ctx, name)
		return err == nil && d.Problem == "" && !d.Deleted
	})
}
