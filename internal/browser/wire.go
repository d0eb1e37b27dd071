package browser

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Wire is a way to a server that can be cut: what is open ends, and nothing new
// comes through. [Browser.Offline] does not end what is open.
type Wire struct {
	// URL is the server's, over the wire.
	URL string

	to       string
	listener net.Listener
	tasks    sync.WaitGroup

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]bool
}

// NewWire lays a wire to the server at an address, until the test ends.
func NewWire(t testing.TB, address string) *Wire {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{to: u.Host, listener: l, conns: map[net.Conn]bool{}}
	u.Host = l.Addr().String()
	w.URL = u.String()
	w.tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			w.tasks.Go(func() { w.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.Cut()
		w.tasks.Wait()
	})
	return w
}

// Cut ends what is open, and has what comes next fail.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
}

// Mend lets through again.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// keep notes a connection, unless the wire is cut.
func (w *Wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cut {
		w.conns[c] = true
	}
	return !w.cut
}

// drop closes a connection.
func (w *Wire) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	_ = c.Close()
}

// carry carries what both sides say until one of them has ended.
func (w *Wire) carry(near net.Conn) {
	defer w.drop(near)
	if !w.keep(near) {
		return
	}
	far, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer w.drop(far)
	if !w.keep(far) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
}
