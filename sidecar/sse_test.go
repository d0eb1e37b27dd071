package sidecar

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAStreamShowsThatItLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, hangUp := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		s := &stream{wake: make(chan struct{}, 1)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			newSSE(w, ctx).serve(s, Event{Type: EventHello})
		}()
		time.Sleep(2*heartbeat + time.Second)
		s.push(message{id: "7", event: EventPoolChanged, data: []byte("{}")})
		s.lag()
		synctest.Wait()
		hangUp()
		<-done
		want := "event: hello\ndata: {\"type\":\"hello\"}\n\n: still here\n\n: still here\n\n" +
			"id: 7\nevent: pool_changed\ndata: {}\n\nevent: lagged\ndata: {\"type\":\"lagged\"}\n\n"
		if got := w.Body.String(); got != want {
			t.Errorf("%q", got)
		}
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
			t.Error(got)
		}
	})
}
