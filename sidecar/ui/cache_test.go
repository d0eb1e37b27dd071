package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// cacheRig is a run cache on a stand-in for etcd, on a fake clock.
type cacheRig struct {
	t *testing.T
	b *storetest.Backend // the client of the cache
	run.Store
	by   run.Store // another process's
	runs *runCache

	tasks sync.WaitGroup
	stop  context.CancelFunc
	// reads are how often all runs were asked for.
	reads atomic.Int64
}

func onRunCache(t *testing.T, f func(*testing.T, *cacheRig)) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		other := b.Peer()
		ctx, stop := context.WithCancel(context.Background())
		r := &cacheRig{t: t, b: b, stop: stop}
		b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpRange && string(c.Range.Key) == cacheKeys.Runs() && len(c.Range.RangeEnd) > 0 {
				r.reads.Add(1)
			}
			return storetest.Fault{}
		})
		r.Store = run.Store{Backend: b, Keys: cacheKeys}
		r.by = run.Store{Backend: other, Keys: cacheKeys, Journal: run.NewJournal(other, cacheKeys, "one/test", 0)}
		r.runs = newRunCache(hclog.NewNullLogger(), func(f func(context.Context)) bool {
			if ctx.Err() != nil {
				return false
			}
			r.tasks.Go(func() { f(ctx) })
			return true
		})
		defer func() {
			stop()
			r.tasks.Wait()
			other.Close()
			b.Close()
		}()
		f(t, r)
	})
}

func (r *cacheRig) submit(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		if _, _, err := r.by.Submit(r.t.Context(), id, run.Spec{}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// queued are the queued runs that a look shows.
func (r *cacheRig) queued() []string {
	r.t.Helper()
	var ids []string
	err := r.runs.read(r.t.Context(), r.Store, func(set *runSet) { ids = idsOf(set.queue.all) })
	if err != nil {
		r.t.Fatal(err)
	}
	return ids
}

func (r *cacheRig) wants(want ...string) {
	r.t.Helper()
	if got := r.queued(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("queued are %v, want %v", got, want)
	}
}

func (r *cacheRig) wantsReads(want int64) {
	r.t.Helper()
	if got := r.reads.Load(); got != want {
		r.t.Errorf("all runs were read %d times, want %d", got, want)
	}
}

func TestRunsAreReadOnceHoweverManyLook(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.submit("a", "b")
		r.wantsReads(0) // no page was requested
		var looks sync.WaitGroup
		for range 20 {
			looks.Go(func() { r.wants("a", "b") })
		}
		looks.Wait()
		for i := range 100 {
			r.submit(fmt.Sprint("c", i))
			if _, err := r.by.Cancel(t.Context(), fmt.Sprint("c", i), "", false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			r.wants("a", "b")
		}
		r.wantsReads(1)
	})
}

func TestWhatHappensIsSeen(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.wants()
		r.submit("a", "b")
		synctest.Wait()
		r.wants("a", "b")
		if _, err := r.by.Cancel(t.Context(), "a", "", false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.wants("b")
		r.b.BreakWatches(store.ErrCompacted) // and so it is read again
		r.submit("c")
		time.Sleep(time.Second)
		synctest.Wait()
		r.wants("b", "c")
		r.wantsReads(2)
	})
}

func TestRunsAreGivenUpAMinuteAfterTheLastLook(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.submit("a")
		r.wants("a")
		time.Sleep(cacheIdle - time.Second)
		r.wants("a") // and so it goes on
		time.Sleep(cacheIdle - time.Second)
		r.wants("a")
		r.wantsReads(1)
		time.Sleep(cacheIdle + time.Second)
		r.tasks.Wait() // nothing is followed any more
		if r.runs.runs != nil || r.runs.known != nil {
			t.Error("the runs are kept")
		}
		r.submit("b")
		r.wants("a", "b")
		r.wantsReads(2)
	})
}

func TestALookTellsThatEtcdIsAway(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		look := func() error {
			return r.runs.read(t.Context(), r.Store, func(*runSet) {})
		}
		r.b.Down()
		if err := look(); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("before the first reading: %v", err)
		}
		r.b.Up()
		r.submit("a")
		r.wants("a")
		r.b.Down()
		time.Sleep(cacheStale / 2)
		r.wants("a") // a moment is nothing
		time.Sleep(cacheStale)
		if err := look(); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("long after: %v", err)
		}
		r.b.Up()
		r.submit("b")
		time.Sleep(2 * time.Second)
		r.wants("a", "b")
	})
}

func TestALookTellsWhatEtcdRefuses(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: true, Err: store.ErrDenied} })
		err := r.runs.read(t.Context(), r.Store, func(*runSet) {})
		if problem.CodeOf(err) != problem.EtcdDenied {
			t.Error(err)
		}
		slow := make(chan struct{})
		defer close(slow)
		r.b.Inject(func(c storetest.Call) storetest.Fault {
			if len(c.Range.RangeEnd) > 0 {
				return storetest.Fault{Hold: slow}
			}
			return storetest.Fault{}
		})
		time.Sleep(time.Second)
		err = r.runs.read(t.Context(), r.Store, func(*runSet) {})
		if problem.CodeOf(err) != problem.Unavailable {
			t.Error(err)
		}
	})
}

func TestALookEndsWithWhoLooks(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.b.Down()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		go cancel(gone)
		if err := r.runs.read(ctx, r.Store, func(*runSet) {}); !errors.Is(err, gone) {
			t.Error(err)
		}
	})
}

// A look can come before the pages run, and after they have ended.
func TestNothingIsFollowedWhenThePagesDoNotRun(t *testing.T) {
	onRunCache(t, func(t *testing.T, r *cacheRig) {
		r.submit("a")
		r.wants("a")
		r.stop()
		r.tasks.Wait()
		err := r.runs.read(t.Context(), r.Store, func(*runSet) {})
		if problem.CodeOf(err) != problem.Unavailable {
			t.Error(err)
		}
		r.runs.background = func(func(context.Context)) bool { return false }
		time.AfterFunc(time.Second, func() {
			r.runs.mu.Lock()
			defer r.runs.mu.Unlock()
			r.runs.background = func(f func(context.Context)) bool {
				r.tasks.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					f(ctx)
				})
				return true
			}
		})
		r.wants("a")
	})
}
