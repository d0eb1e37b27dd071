package sidecar

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// awaited is how a wait for a queue has ended.
type awaited struct {
	found []api.ReadyStep
	err   error
}

// await begins a wait for a queue, and returns when it waits.
func (b *bubble) await(wait time.Duration) <-chan awaited {
	ended := make(chan awaited, 1)
	go func() {
		out, err := b.listReady(allowed(b.t.Context(), "alice"), b.session, &readyInput{Queue: step.DefaultQueue, Limit: 10, Wait: wait.String()})
		if err != nil {
			ended <- awaited{err: err}
			return
		}
		ended <- awaited{found: out.Body.Items}
	}()
	synctest.Wait()
	return ended
}

func TestAWaitForAQueueEndsInAllWays(t *testing.T) {
	inBubble(t, func(b *bubble) {
		first := b.await(time.Minute)
		if second := <-b.await(time.Minute); problem.CodeOf(second.err) != problem.TooManyRequests {
			t.Errorf("one too many: %v", second.err)
		}
		key := b.steps.Keys.Ready(step.DefaultQueue) + step.OrderOf(0, 1, 0, 0, "a")
		ready := step.Ready{Run: "a", Step: "x", External: true, ScheduledAt: time.Now()}
		if _, err := store.Commit(b.t.Context(), b.backend, nil, store.Put(key, ready.Encode(), 0)); err != nil {
			t.Fatal(err)
		}
		if got := <-first; got.err != nil || len(got.found) != 1 || got.found[0].RunID != "a" {
			t.Errorf("%+v", got)
		}
		if _, err := store.Commit(b.t.Context(), b.backend, nil, store.Delete(key)); err != nil {
			t.Fatal(err)
		}
		last := b.await(time.Minute)
		b.waits.stop(errStopping)
		if got := <-last; problem.CodeOf(got.err) != problem.Stopping {
			t.Errorf("%+v", got)
		}
		if b.watching.Open() > 0 {
			t.Error("it still counts as a stream")
		}
	})
}
