package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// clientConn is the connection of a client. It notices that the client has gone away
// without having read what it was answered last.
//
// A server that closes a unix socket with unread data in it resets the connection, and
// ends it otherwise. Over TCP a reset is no proof: some proxies reset connections that
// they have kept for later. So it counts only within resetWindow.
type clientConn struct {
	net.Conn
	peer Peer // of a connection over the unix socket

	// mu guards what follows.
	mu      sync.Mutex
	over    bool      // nothing more comes from the client
	unread  func()    // called once if the answer is not read; nil for none
	free    func()    // called once it is closed; nil for nothing
	written time.Time // when the answer was; zero if it was not yet
}

// resetWindow is how long after an answer the reset of a TCP connection says that the
// answer was not read: enough for a client to notice that its own time is over.
const resetWindow = 100 * time.Millisecond

// IfUnread has f called, once, if the client whose request has that context does not
// come to read the answer that is about to be written: at once if it is known already.
func IfUnread(ctx context.Context, f func()) {
	c, _ := ctx.Value(connKey{}).(*clientConn)
	over := ctx.Err() != nil
	if c != nil {
		c.mu.Lock()
		if over = over || c.over; !over {
			c.unread, c.written = f, time.Time{}
		}
		c.mu.Unlock()
	}
	if over {
		f()
	}
}

// Read reads. Who sends another request has read the last answer.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	switch {
	case n > 0:
		c.mu.Lock()
		if !c.written.IsZero() {
			c.unread = nil
		}
		c.mu.Unlock()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
	case errors.Is(err, io.EOF):
		c.ends(false)
	case err != nil:
		c.ends(true)
	}
	return n, err
}

// Write writes.
func (c *clientConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.written.IsZero() {
		c.written = time.Now()
	}
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.ends(true)
	}
	return n, err
}

// Close closes the connection. The last word on whether it was reset comes before.
func (c *clientConn) Close() error {
	if wasReset(c.Conn) {
		c.ends(true)
	}
	err := c.Conn.Close()
	c.mu.Lock()
	free := c.free
	c.free = nil
	c.mu.Unlock()
	if free != nil {
		free()
	}
	return err
}

// CloseWrite ends the answers: so a client can read the last one before the connection
// is closed.
func (c *clientConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// ends records that nothing more comes from the client, since it has ended the connection
// or reset it.
func (c *clientConn) ends(reset bool) {
	c.mu.Lock()
	f := c.unread
	if _, unix := c.Conn.(*net.UnixConn); !c.written.IsZero() && (!reset || !unix && time.Since(c.written) > resetWindow) {
		f = nil // it was read, for all that is known
	} else {
		c.unread = nil
	}
	c.over = true
	c.mu.Unlock()
	if f != nil {
		f()
	}
}
