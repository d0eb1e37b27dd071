package list

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// bench is an etcd and the lists of one instance, with what that knows.
type bench struct {
	*testing.T
	w  byHand
	b  *storetest.Backend
	by *storetest.Backend // of the instance
	*Lists

	mu    sync.Mutex
	own   Own
	reads []string // ranges of pools
	hold  chan struct{}
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, w: newByHand(t), own: Own{Host: "one", Instance: "i"}}
	b.b = storetest.NewBackend(storetest.New(storetest.Options{}))
	b.by = b.b.Peer()
	t.Cleanup(b.b.Close)
	t.Cleanup(b.by.Close)
	b.by.Inject(func(call storetest.Call) storetest.Fault {
		if call.Op != storetest.OpRange || !strings.HasPrefix(string(call.Range.Key), b.w.keys.Pools()) {
			return storetest.Fault{}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reads = append(b.reads, strings.TrimPrefix(string(call.Range.Key), b.w.keys.Pools()))
		return storetest.Fault{Hold: b.hold}
	})
	b.Lists = NewLists(b.by, b.w.keys.Keys, func(context.Context) (Own, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.own, nil
	})
	b.w.spec("db", 3)
	b.write()
	b.reads = nil
	return b
}

// write has etcd hold what the world holds, and returns the revision.
func (b *bench) write() int64 {
	b.Helper()
	t := &pb.TxnRequest{}
	for _, key := range sortedNames(b.w.kvs) {
		t.Success = append(t.Success, store.Put(key, b.w.kvs[key].Value, 0))
	}
	resp, err := b.b.Txn(b.Context(), t)
	if err != nil {
		b.Fatal(err)
	}
	return resp.Header.Revision
}

// know changes what the instance knows.
func (b *bench) know(f func(o *Own)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.own)
}

// holding holds reads until the returned function is called.
func (b *bench) holding() (release func()) {
	hold := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = hold
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(hold)
		b.hold = nil
	}
}

func (b *bench) wantReads(what string, want ...string) {
	b.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.reads, want) {
		b.Errorf("%s: read %q, want %q", what, b.reads, want)
	}
	b.reads = nil
}

func (b *bench) held(ctx context.Context) (held []string) {
	b.Helper()
	holders, _, err := b.Claims(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, h := range holders {
		held = append(held, h.Claim)
	}
	return held
}

func (b *bench) wantHeld(ctx context.Context, what string, want ...string) {
	b.Helper()
	if got := b.held(ctx); !slices.Equal(got, want) {
		b.Errorf("%s: %q are held, want %q", what, got, want)
	}
}

func TestListsWithinASecondAreOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.w.hold("a", "one", db(1))
		b.write()
		list := func() {
			var tasks sync.WaitGroup
			defer tasks.Wait()
			for i := range 100 {
				tasks.Go(func() {
					var err error
					switch i % 4 {
					case 0:
						_, err = b.Pools(t.Context())
					case 1:
						_, _, err = b.Claims(t.Context())
					case 2:
						_, err = b.Why(t.Context(), "a")
					case 3:
						_, err = b.Space(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		release := b.holding()
		go release()
		list()
		b.wantReads("100 at the same time", "")
		time.Sleep(time.Second - time.Millisecond)
		list()
		if _, err := b.Pool(t.Context(), "db"); err != nil {
			t.Error(err)
		}
		b.wantReads("100 within the second")
		time.Sleep(time.Millisecond)
		list()
		b.wantReads("a second later", "")
		time.Sleep(time.Second)
		if _, err := b.Pool(t.Context(), "db"); err != nil {
			t.Error(err)
		}
		b.wantReads("a pool", "db/")
	})
}

// What the instance has done is shown immediately, also while older things are read; what others have done after a second.
func TestListsShowWhatTheInstanceHasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.wantHeld(t.Context(), "at first")
		b.w.hold("a", "two", db(1))
		b.write()
		b.wantHeld(t.Context(), "after a claim of another")
		b.wantHeld(pool.Fresh(t.Context()), "fresh", "a")
		b.wantHeld(t.Context(), "after a fresh read", "a")
		b.w.hold("b", "one", db(1))
		at := b.write()
		b.AtLeast(at)
		b.wantHeld(t.Context(), "after its claim", "a", "b")
		if b.Shown() != at {
			t.Errorf("revision %d was shown, want %d", b.Shown(), at)
		}
		b.w.hold("c", "one", db(1))
		at = b.write()
		b.know(func(o *Own) { o.Revision = at })
		b.wantHeld(t.Context(), "after what it knows", "a", "b", "c")

		// One that is under way is no answer for who asks after a write.
		time.Sleep(time.Second)
		release := b.holding()
		early := make(chan int)
		go func() { early <- len(b.held(t.Context())) }()
		synctest.Wait()
		b.w.spec("gpu", 1)
		b.AtLeast(b.write())
		late := make(chan int)
		go func() {
			all, err := b.Pools(t.Context())
			if err != nil {
				t.Error(err)
			}
			late <- len(all)
		}()
		synctest.Wait()
		release()
		if n := <-early; n != 3 {
			t.Errorf("%d are held", n)
		}
		if n := <-late; n != 2 {
			t.Errorf("%d pools", n)
		}
	})
}

func TestWhatIsNotFoundIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if _, err := b.Pools(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.w.spec("gpu", 1)
		b.w.hold("a", "two", db(1))
		b.write()
		if d, err := b.Pool(t.Context(), "gpu"); err != nil || d.Limit != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if why, err := b.Why(t.Context(), "a"); err != nil || why.Held == nil {
			t.Errorf("%+v, %v", why, err)
		}
		if _, err := b.Pool(t.Context(), "nowhere"); problem.CodeOf(err) != problem.PoolNotFound {
			t.Error(err)
		}
		if _, err := b.Why(t.Context(), "nobody"); problem.CodeOf(err) != problem.ClaimNotFound {
			t.Error(err)
		}
	})
}

// For a claim of its own that waits, its pools are enough.
func TestOwnClaimsAreExplainedByTheirPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.w.spec("gpu", 1)
		b.w.hold("a", "two", db(3))
		b.write()
		wait := func(id string, pools ...string) {
			d := wire.Demand{Claim: id, Pools: map[string]int{}, Since: epoch, Holder: pool.Holder{Host: "one", Instance: "i"}}
			for _, name := range pools {
				d.Pools[name] = 1
			}
			b.know(func(o *Own) { o.Waiting = append(o.Waiting, OwnDemand{Demand: d}) })
		}
		wait("w", "db")
		wait("v", "db", "gpu")
		for id, want := range map[string][]string{"w": {"db/"}, "v": {"db/", ""}} {
			time.Sleep(time.Second)
			why, err := b.Why(t.Context(), "one/i/"+id)
			if err != nil || why.Waiter == nil || why.Reason.Text != "pool 'db' full (3/3 slots)" || why.Reason.Waiting != 2 {
				t.Errorf("%s: %+v, %v", id, why, err)
			}
			b.wantReads(id, want...)
		}
		time.Sleep(time.Second)
		d, err := b.Pool(t.Context(), "db")
		if err != nil || len(d.Waiters) != 2 || d.Waiting != 2 {
			t.Errorf("%+v, %v", d, err)
		}
		b.wantReads("a pool with own waiters", "db/", "")
	})
}

func TestAReadThatFailsSaysThatEtcdIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.by.Down()
		for what, err := range map[string]error{
			"pools":  func() error { _, err := b.Pools(t.Context()); return err }(),
			"a pool": func() error { _, err := b.Pool(t.Context(), "db"); return err }(),
			"claims": func() error { _, _, err := b.Claims(t.Context()); return err }(),
			"why":    func() error { _, err := b.Why(t.Context(), "a"); return err }(),
			"space":  func() error { _, err := b.Space(t.Context()); return err }(),
		} {
			if problem.CodeOf(err) != problem.EtcdUnavailable {
				t.Errorf("%s: %v", what, err)
			}
		}
		b.by.Up()
		if _, err := b.Pools(t.Context()); err != nil {
			t.Error(err)
		}

		// A read for which no caller waits ends.
		time.Sleep(time.Second)
		defer b.holding()()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := b.Pools(ctx)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("a canceled caller: %v", err)
		}
		b.Lists.reads.mu.Lock()
		if n := len(b.Lists.reads.latest); n > 0 {
			t.Errorf("%d reads are kept", n)
		}
		b.Lists.reads.mu.Unlock()
	})
}

func TestAnInstanceThatDoesNotAnswerIsNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.Lists.own = func(context.Context) (Own, error) { return Own{}, errors.New("it ends") }
		if _, err := b.Pools(t.Context()); err == nil || err.Error() != "it ends" {
			t.Error(err)
		}
	})
}

// After a restore etcd is at earlier revisions than the instance has seen.
func TestReadsGoOnAfterARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var before *storetest.Saved
		b.b.Do(func(e *storetest.Etcd) { before = e.Save() })
		b.w.hold("a", "one", db(1))
		b.AtLeast(b.write())
		b.wantHeld(t.Context(), "before", "a")
		restored := storetest.New(storetest.Options{})
		restored.Restore(before, 0)
		history := b.by.History()
		b.b.Restore(restored)
		for b.by.History() == history {
			_, _ = b.by.Range(t.Context(), &pb.RangeRequest{Key: []byte("x")}) // it notices
		}
		if b.Shown() != 0 {
			t.Errorf("revision %d of another history was shown", b.Shown())
		}
		b.reads = nil
		for range 3 {
			b.wantHeld(t.Context(), "after it")
		}
		b.wantReads("after it", "")
	})
}
