package server

import (
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/access"
)

func TestAStreamShowsThatItIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, hangUp := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		in := make(chan Message)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := NewStream(ctx, w)
			s.Retry(2 * time.Second)
			s.Add(Message{Event: "hello", Data: []byte("{}")})
			Follow(s, in, func(m Message) bool { s.Add(m); return false })
		}()
		time.Sleep(2*Heartbeat + time.Second)
		in <- Message{ID: "7", Event: "lines", Data: []byte("one\ntwo")}
		synctest.Wait()
		hangUp()
		<-done
		want := "retry: 2000\n\nevent: hello\ndata: {}\n\n: still here\n\n: still here\n\n" +
			"id: 7\nevent: lines\ndata: one\ndata: two\n\n"
		if got := w.Body.String(); got != want {
			t.Errorf("%q", got)
		}
		if got := w.Header().Get("Content-Type"); got != StreamType {
			t.Error(got)
		}
	})
}

// The last message is sent, and nothing after it.
func TestAStreamEndsWithItsLastMessage(t *testing.T) {
	w := httptest.NewRecorder()
	s := NewStream(t.Context(), w)
	in := make(chan string, 2)
	in <- "last"
	in <- "late"
	Follow(s, in, func(event string) bool { s.Add(Message{Event: event}); return true })
	if got, want := w.Body.String(), "event: last\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A reader whose identity has ended gets nothing more: neither what comes next, nor, if nothing
// does, the heartbeat.
func TestAStreamEndsWithTheIdentityOfItsReader(t *testing.T) {
	first := access.Identity{Kind: access.Certificate, Name: "ada", Grants: access.DefaultGrants}
	for what, second := range map[string]access.Identity{
		"a certificate that has expired": {Kind: access.Anonymous},
		"another role":                   {Kind: first.Kind, Name: first.Name, Grants: access.AllGrants},
	} {
		for _, quiet := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var id atomic.Pointer[access.Identity]
				id.Store(&first)
				w := httptest.NewRecorder()
				s := NewStream(access.With(t.Context(), func() access.Identity { return *id.Load() }), w)
				in := make(chan string, 2)
				in <- "first"
				done := make(chan struct{})
				go func() {
					defer close(done)
					Follow(s, in, func(event string) bool { s.Add(Message{Event: event}); return false })
				}()
				synctest.Wait()
				id.Store(&second)
				if !quiet {
					in <- "second"
				}
				began := time.Now()
				<-done
				if took, most := time.Since(began), map[bool]time.Duration{true: Heartbeat}[quiet]; took > most {
					t.Errorf("%s: it ended after %s", what, took)
				}
				if got, want := w.Body.String(), "event: first\n\n"; got != want {
					t.Errorf("%s: %q, want %q", what, got, want)
				}
			})
		}
	}
}
