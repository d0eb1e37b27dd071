package sidecar

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

func TestAStreamOfARunShowsThatItLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		f := &runFollower{to: server.NewStream(t.Context(), w), stopped: make(chan struct{})}
		f.serve(t.Context(), func(_ context.Context, tell func([]run.LoggedEvent) error) error {
			time.Sleep(2*server.Heartbeat + time.Second)
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			return tell([]run.LoggedEvent{
				{Revision: 7, ID: "x", Event: run.Event{Type: run.RunStarted, At: at}},
				{Revision: 7, ID: "y", Event: run.Event{Type: run.RunSucceeded, At: at}},
			})
		})
		want := ": still here\n\n: still here\n\n" +
			"id: 7-x\nevent: RunStarted\ndata: {\"type\":\"RunStarted\",\"at\":\"2026-01-02T03:04:05Z\",\"revision\":7}\n\n" +
			"id: 7-y\nevent: RunSucceeded\ndata: {\"type\":\"RunSucceeded\",\"at\":\"2026-01-02T03:04:05Z\",\"revision\":7}\n\n" +
			"event: end\ndata: {\"type\":\"end\"}\n\n"
		if got := w.Body.String(); got != want {
			t.Errorf("%q", got)
		}
	})
}

// A reader that hangs up ends the following, and gets no message.
func TestAReaderThatHangsUpEndsTheFollowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, hangUp := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		f := &runFollower{to: server.NewStream(ctx, w), stopped: make(chan struct{})}
		time.AfterFunc(time.Second, hangUp)
		f.serve(ctx, func(ctx context.Context, _ func([]run.LoggedEvent) error) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if got := w.Body.String(); got != "" {
			t.Errorf("%q", got)
		}
	})
}

func TestStreamsOfRunsAreBounded(t *testing.T) {
	a := &apiServer{watching: newWatching(nil, 1)}
	s := &session{}
	if _, err := a.streamRunEvents(t.Context(), s, "a", run.Place{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.streamRunEvents(t.Context(), s, "a", run.Place{}); problem.CodeOf(err) != problem.TooManyRequests {
		t.Errorf("%v", err)
	}
}
