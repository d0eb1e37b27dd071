package server

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// ending is a connection that ends in a given way.
type ending struct {
	net.Conn
	read, write error
}

func (c *ending) Read([]byte) (int, error) { return 0, c.read }
func (c *ending) Write(p []byte) (int, error) {
	if c.write != nil {
		return 0, c.write
	}
	return len(p), nil
}
func (c *ending) Close() error { return nil }

func TestAnAnswerIsUnreadIfItsConnectionEndsTooEarly(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(c *clientConn, e *ending, answer func())
		unread bool
	}{
		"it ends before the answer": {unread: true, do: func(c *clientConn, e *ending, answer func()) {
			e.read = io.EOF
			_, _ = c.Read(nil)
			answer()
		}},
		"it ends as it is answered": {unread: true, do: func(c *clientConn, e *ending, _ func()) {
			e.read = io.EOF
			_, _ = c.Read(nil)
			_, _ = c.Write(nil)
		}},
		"the answer can't be written": {unread: true, do: func(c *clientConn, e *ending, answer func()) {
			e.write = syscall.EPIPE
			answer()
		}},
		"it is reset at once": {unread: true, do: func(c *clientConn, e *ending, answer func()) {
			answer()
			e.read = syscall.ECONNRESET
			_, _ = c.Read(nil)
			_ = c.Close()
		}},
		"it is reset later, as by a proxy": {do: func(c *clientConn, e *ending, answer func()) {
			answer()
			<-time.After(resetWindow + 1)
			e.read = syscall.ECONNRESET
			_, _ = c.Read(nil)
			_ = c.Close()
		}},
		"it ends after the answer": {do: func(c *clientConn, e *ending, answer func()) {
			answer()
			e.read = io.EOF
			_, _ = c.Read(nil)
			_ = c.Close()
		}},
		"it is closed by the server": {do: func(c *clientConn, e *ending, answer func()) {
			answer()
			e.read = net.ErrClosed
			_ = c.Close()
			_, _ = c.Read(nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &ending{}
				c := &clientConn{Conn: e}
				calls := 0
				ctx := context.WithValue(t.Context(), connKey{}, c)
				answer := func() { _, _ = c.Write([]byte("x")) }
				if name == "it ends before the answer" {
					tc.do(c, e, func() { IfUnread(ctx, func() { calls++ }); answer() })
				} else {
					IfUnread(ctx, func() { calls++ })
					tc.do(c, e, answer)
				}
				if calls > 1 || (calls == 1) != tc.unread {
					t.Errorf("notified %d times that it was not read", calls)
				}
			})
		})
	}
}
