package sidecar

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/sidecar/api"
)

// bubble is a session on a stand-in for etcd, in a bubble. It has stores, and neither
// claims nor executors.
type bubble struct {
	*apiServer
	*session
	t       *testing.T
	backend *storetest.Backend
	lease   store.LeaseID
}

// inBubble runs a test in a bubble.
func inBubble(t *testing.T, f func(*bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		lease, _, err := b.Grant(t.Context(), 1000*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		keys := store.NewKeys("/berth/")
		f(&bubble{
			t: t, backend: b, lease: lease, apiServer: &apiServer{log: hclog.NewNullLogger(), waits: newWaits(nil), watching: newWatching(nil, 1), reads: newReads(nil)},
			session: &session{
				runs: run.Store{Backend: b, Keys: keys}, steps: step.Store{Backend: b, Keys: keys},
			},
		})
	})
}

// woken is how a wait for the poll of a source has ended.
type woken struct {
	look *api.SourcePoll
	err  error
}

func (b *bubble) wakes(ctx context.Context, wait time.Duration) <-chan woken {
	ended := make(chan woken, 1)
	go func() {
		look, err := b.wakeAndAwait(ctx, b.session, "inbox", wait)
		ended <- woken{look, err}
	}()
	synctest.Wait()
	return ended
}

// woken is the revision at which the source was woken last, 0 if never.
func (b *bubble) woken() int64 {
	b.t.Helper()
	resp, err := b.backend.Range(b.t.Context(), &pb.RangeRequest{Key: []byte(b.runs.Keys.SourceWake("inbox"))})
	if err != nil {
		b.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	return resp.Kvs[0].ModRevision
}

func TestAWaitForASourceEndsInAllWays(t *testing.T) {
	inBubble(t, func(b *bubble) {
		put := func(key, value string, lease store.LeaseID) {
			if _, err := store.Commit(b.t.Context(), b.backend, nil, store.Put(key, []byte(value), lease)); err != nil {
				t.Fatal(err)
			}
		}
		looked := func(wish int64, submitted int) {
			put(b.runs.Keys.SourcePoll("inbox"), fmt.Sprintf(`{"v":1,"by":"far","submitted":%d,"wake":%d}`, submitted, wish), 0)
			synctest.Wait()
		}
		put(b.runs.Keys.SourceCandidate("inbox", b.lease), `{"v":1,"host":"far"}`, b.lease)

		// It is over with the first poll after the request.
		first := b.wakes(b.t.Context(), time.Minute)
		wish := b.woken()
		if second := <-b.wakes(b.t.Context(), time.Minute); problem.CodeOf(second.err) != problem.TooManyRequests || b.woken() != wish {
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
		if got := <-b.wakes(b.t.Context(), time.Minute); got.err != nil || got.look != nil || time.Since(begun) != time.Minute || b.woken() <= wish {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}

		// Or with who asks, or the server.
		gone, cancel := context.WithCancel(b.t.Context())
		left := b.wakes(gone, time.Minute)
		cancel()
		if got := <-left; got.err == nil || got.look != nil {
			t.Errorf("%+v", got)
		}
		last := b.wakes(b.t.Context(), time.Minute)
		b.waits.stop(errStopping)
		if got := <-last; problem.CodeOf(got.err) != problem.Stopping {
			t.Errorf("%+v", got)
		}
		if b.watching.Open() > 0 {
			t.Error("there is no free slot for others")
		}
	})
}
