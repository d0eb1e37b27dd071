package e2e

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// proxy stands between a client and etcd and spoils the connection: it can hold
// back what goes one way or both, and cut everything off.
type proxy struct {
	to string
	l  net.Listener
	wg sync.WaitGroup

	up, down *gate // towards etcd, and back

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]bool
}

// gate lets bytes through while it is open.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// set opens or shuts the gate.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		if !open {
			g.open = make(chan struct{})
		}
	default:
		if open {
			close(g.open)
		}
	}
}

func (g *gate) wait() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
}

// through starts a proxy to an endpoint, until the end of the test.
func through(t testing.TB, endpoint string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		to: strings.TrimPrefix(endpoint, "http://"), l: l, up: newGate(), down: newGate(),
		conns: map[net.Conn]bool{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) endpoints() []string { return []string{"http://" + p.l.Addr().String()} }

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(in) })
	}
}

func (p *proxy) serve(in net.Conn) {
	defer in.Close()
	out, err := net.DialTimeout("tcp", p.to, 5*time.Second)
	if err != nil {
		return
	}
	defer out.Close()
	if !p.keep(in, out) {
		return
	}
	defer p.forget(in, out)
	var both sync.WaitGroup
	both.Go(func() { relay(out, in, p.up) })
	both.Go(func() { relay(in, out, p.down) })
	both.Wait()
}

// relay copies one way, and closes both ends when one has.
func relay(to, from net.Conn, g *gate) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		g.wait()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = errors.Join(err, werr)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				from.Close()
			}
			to.Close()
			return
		}
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// stall holds back what goes up and what comes down.
func (p *proxy) stall(up, down bool) {
	p.up.set(!up)
	p.down.set(!down)
}

// sever ends all connections, and refuses new ones until [proxy.heal].
func (p *proxy) sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		c.Close()
	}
}

// heal ends all faults.
func (p *proxy) heal() {
	p.mu.Lock()
	p.cut = false
	p.mu.Unlock()
	p.stall(false, false)
}

func (p *proxy) close() {
	p.sever()
	p.stall(false, false)
	p.l.Close()
	p.wg.Wait()
}

func TestAProxySpoilsConnectionsAndHealsThem(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 10)
	go func() { // an echo that tells what it got
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 10)
			for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
				got <- string(buf[:n])
				c.Write(buf[:n])
			}
			c.Close()
		}
	}()
	p := through(t, "http://"+l.Addr().String())
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := dial()
	buf := make([]byte, 10)
	p.stall(false, true) // answers are held back
	c.Write([]byte("one"))
	if s := <-got; s != "one" {
		t.Errorf("got %q", s)
	}
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(buf); err == nil {
		t.Errorf("an answer came through: %q", buf[:n])
	}
	p.heal()
	c.SetReadDeadline(time.Now().Add(deadline))
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "one" {
		t.Errorf("the answer was lost: %q, %v", buf[:n], err)
	}
	p.sever()
	if _, err := c.Read(buf); err == nil {
		t.Error("the connection is still there")
	}
	refused := dial() // the listener takes it, and closes it
	if _, err := refused.Read(buf); err == nil {
		t.Error("a new connection was served")
	}
	p.heal()
	c = dial()
	c.Write([]byte("two"))
	if s := <-got; s != "two" {
		t.Errorf("got %q", s)
	}
}
