package sidecar

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/pool"
)

// stillClock is a clock that a test moves.
type stillClock struct{ now time.Duration }

func (c *stillClock) Now() time.Duration { return c.now }

func TestAClaimOfWhichNobodyKnowsIsReleased(t *testing.T) {
	a, s := behindTheDoor(t)
	clock := &stillClock{now: time.Hour}
	s.holders.clock = clock
	limit := 10
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	untimed := DurationOf(0)
	gone := context.WithValue(t.Context(), connKey{}, &clientConn{over: true})
	ask := func(ctx context.Context, r ClaimRequest) {
		t.Helper()
		r.Pools = Slots{"db": 1}
		if _, err := a.claim(ctx, nil, r); err != nil {
			t.Fatal(err)
		}
	}
	released := func(ids ...string) {
		t.Helper()
		s.holders.look()
		s.holders.tasks.Wait()
		held := map[string]bool{}
		for id := range s.holders.byID {
			held[id] = true
		}
		for _, id := range ids {
			if held[id] {
				t.Errorf("%s is held after %s", id, clock.now-time.Hour)
			}
		}
		if want := 5 - len(ids); len(held) != want {
			t.Errorf("after %s %d are held, want %d: %v", clock.now-time.Hour, len(held), want, held)
		}
	}
	ask(gone, ClaimRequest{TTL: DurationOf(time.Hour)}) // without an id: it goes at once
	for _, id := range []string{"forgotten", "repeated", "renewed", "twice"} {
		ask(gone, ClaimRequest{ID: id, TTL: untimed})
	}
	ask(t.Context(), ClaimRequest{ID: "known", TTL: untimed})
	ask(gone, ClaimRequest{ID: "known", TTL: untimed}) // the holder knows it, though
	released()
	clock.now += keepUnheard - time.Second
	released()
	ask(t.Context(), ClaimRequest{ID: "repeated", TTL: untimed})
	ask(gone, ClaimRequest{ID: "twice", TTL: untimed})
	if _, err := s.holders.renew("renewed", RenewRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	clock.now += time.Second
	released("forgotten")
	clock.now += keepUnheard
	released("forgotten", "twice")
	clock.now += time.Hour
	released("forgotten", "twice")
}

// ending is a connection that ends as it is told to.
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
					tc.do(c, e, func() { ifUnread(ctx, func() { calls++ }); answer() })
				} else {
					ifUnread(ctx, func() { calls++ })
					tc.do(c, e, answer)
				}
				if calls > 1 || (calls == 1) != tc.unread {
					t.Errorf("told %d times that it was not read", calls)
				}
			})
		})
	}
}
