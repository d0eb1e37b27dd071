package store_test

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// relayed relays connections to an etcd, each in its own way.
type relayed struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	conns []*relayedConn
	tasks sync.WaitGroup
}

// relayedConn is one connection. What etcd answers on it waits while it is stalled.
type relayedConn struct {
	in, out net.Conn
	answers sync.Mutex // held while answers are stalled
}

// relay returns a relay to an etcd.
func relay(t *testing.T, endpoint string) *relayed {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relayed{listener: l, to: u.Host}
	r.tasks.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			_, _ = c.in.Close(), c.out.Close()
		}
		r.mu.Unlock()
		r.tasks.Wait()
	})
	return r
}

func (r *relayed) endpoint() string { return "http://" + r.listener.Addr().String() }

func (r *relayed) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		c := &relayedConn{in: in, out: out}
		r.mu.Lock()
		r.conns = append(r.conns, c)
		r.mu.Unlock()
		r.tasks.Go(func() { c.copy(out, in, &sync.Mutex{}) })
		r.tasks.Go(func() { c.copy(in, out, &c.answers) })
	}
}

// copy copies from one connection to the other. It holds the lock while it writes.
func (c *relayedConn) copy(to, from net.Conn, gate sync.Locker) {
	defer func() { _, _ = c.in.Close(), c.out.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		gate.Lock()
		_, failed := to.Write(buf[:n])
		gate.Unlock()
		if err != nil || failed != nil {
			return
		}
	}
}

// all returns the connections so far.
func (r *relayed) all() []*relayedConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*relayedConn(nil), r.conns...)
}

func TestLeasesDoNotWaitForTheAnswersToReads(t *testing.T) {
	t.Parallel()
	r := relay(t, embedtest.New(t).Endpoint())
	c := newClient(t, store.Config{Endpoints: []string{r.endpoint()}})
	ctx := long(t)
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	data := r.all()
	if len(data) != 1 {
		t.Fatalf("a read has made %d connections, want 1", len(data))
	}
	data[0].answers.Lock() // a large answer is on its way
	defer data[0].answers.Unlock()

	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lease, _, err := c.Grant(soon, 10*time.Second)
	if err != nil {
		t.Fatalf("a lease can't be granted while the answer to a read is on its way: %v", err)
	}
	if ttl, err := c.Renew(soon, lease); err != nil || ttl != 10*time.Second {
		t.Fatalf("a lease can't be renewed while the answer to a read is on its way: %v %v", ttl, err)
	}
	if err := c.Revoke(soon, lease); err != nil {
		t.Fatalf("a lease can't be revoked while the answer to a read is on its way: %v", err)
	}
	if all := r.all(); len(all) != 2 {
		t.Errorf("reads and leases have made %d connections, want 2", len(all))
	}
}

func TestOnlyEndpointsInUseHaveConnections(t *testing.T) {
	t.Parallel()
	etcd := embedtest.New(t).Endpoint()
	relays := []*relayed{relay(t, etcd), relay(t, etcd), relay(t, etcd)}
	var endpoints []string
	for _, r := range relays {
		endpoints = append(endpoints, r.endpoint())
	}
	c := newClient(t, store.Config{Endpoints: endpoints})
	ctx := long(t)
	count := func() (all int) {
		for _, r := range relays {
			all += len(r.all())
		}
		return all
	}
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Range(ctx, getReq("/b/1")); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("a process that only reads has %d connections, want 1", n)
	}
	if _, _, err := c.Grant(ctx, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 2 {
		t.Errorf("a process with a lease has %d connections, want 2", n)
	}
}
