package sidecar

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// woken is how a wait for the look of a source has ended.
type woken struct {
	look *SourceLook
	err  error
}

func (s *stage) wakes(ctx context.Context, a *api, in *session, wait time.Duration) <-chan woken {
	ended := make(chan woken, 1)
	go func() {
		look, err := a.wakeAndAwait(ctx, in, "inbox", wait)
		ended <- woken{look, err}
	}()
	synctest.Wait()
	return ended
}

// woken is the revision at which the source was woken last, 0 if never.
func (s *stage) woken() int64 {
	s.t.Helper()
	resp, err := s.backend.Range(s.t.Context(), &pb.RangeRequest{Key: []byte(s.store.Keys.SourceWake("inbox"))})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	return resp.Kvs[0].ModRevision
}

func TestAWaitForASourceEndsInAllWays(t *testing.T) {
	onStage(t, func(s *stage) {
		a := &api{waits: newWaits()}
		in := &session{runs: s.executors, runStreams: make(chan struct{}, 1)}
		put := func(key, value string, lease store.LeaseID) {
			if _, err := store.Commit(s.t.Context(), s.backend, nil, store.Put(key, []byte(value), lease)); err != nil {
				t.Fatal(err)
			}
		}
		looked := func(wish int64, submitted int) {
			put(s.store.Keys.SourcePoll("inbox"), fmt.Sprintf(`{"v":1,"by":"far","submitted":%d,"wake":%d}`, submitted, wish), 0)
			synctest.Wait()
		}
		put(s.store.Keys.SourceCandidate("inbox", s.lease), `{"v":1,"host":"far"}`, s.lease)

		// It is over with the first look that has heard of the wish.
		first := s.wakes(s.t.Context(), a, in, time.Minute)
		wish := s.woken()
		if second := <-s.wakes(s.t.Context(), a, in, time.Minute); problem.CodeOf(second.err) != problem.Unavailable || s.woken() != wish {
			t.Errorf("one too many: %v", second.err)
		}
		looked(wish-1, 1)
		if len(first) > 0 {
			t.Fatalf("it has ended with an earlier look: %+v", <-first)
		}
		looked(wish, 2)
		if got := <-first; got.err != nil || got.look == nil || got.look.Submitted != 2 {
			t.Errorf("%+v", got)
		}

		// Or with its time: the source is woken all the same.
		begun := time.Now()
		if got := <-s.wakes(s.t.Context(), a, in, time.Minute); got.err != nil || got.look != nil || time.Since(begun) != time.Minute || s.woken() <= wish {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}

		// Or with who asks, or the server.
		gone, cancel := context.WithCancel(s.t.Context())
		left := s.wakes(gone, a, in, time.Minute)
		cancel()
		if got := <-left; got.err == nil || got.look != nil {
			t.Errorf("%+v", got)
		}
		last := s.wakes(s.t.Context(), a, in, time.Minute)
		a.waits.stop(errStopping)
		if got := <-last; problem.CodeOf(got.err) != problem.Stopping {
			t.Errorf("%+v", got)
		}
		if len(in.runStreams) > 0 {
			t.Error("there is no room for others")
		}
	})
}
