package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestALeaseIsGrantedInTheBackgroundAndCalledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		if _, ok := h.Acquire(time.Minute, 1); ok {
			t.Fatal("there was a lease before Run")
		}
		h.run()
		if h.readies() != 1 {
			t.Fatalf("called back %d times, want once", h.readies())
		}
		id, ok := h.Acquire(time.Minute, 1)
		if !ok {
			t.Fatal("no lease after the call back")
		}
		if w := h.wantValid(id); w.TTL != time.Minute {
			t.Errorf("the lease lives %s", w.TTL)
		}
	})
}

func TestALeaseIsListedBeforeItIsHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.etcd.fault.Store(failing(store.ErrNoSpace, "txn"))
		h.Acquire(time.Minute, 1)
		h.run()
		h.wait(10 * time.Second)
		if _, ok := h.Acquire(time.Minute, 1); ok {
			t.Fatal("a lease that is not listed was handed out")
		}
		if !errors.Is(h.Trouble(), store.ErrNoSpace) {
			t.Errorf("the trouble is %v", h.Trouble())
		}
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v could not be listed and were not given back", left)
		}

		h.etcd.fault.Store(nil)
		h.wait(2 * maxPause)
		id := h.acquire(time.Minute, 1)
		kv := h.etcd.get(testKeys.Lease(testHost, id))
		if kv == nil || kv.Lease != int64(id) {
			t.Fatalf("entry %v does not hang on its lease", kv)
		}
		l, err := decodeListing(string(kv.Key), kv.Value)
		if want := (listing{testToken, testInst, span(time.Minute), 1}); err != nil || l != want {
			t.Errorf("entry %+v, %v", l, err)
		}
		if h.Trouble() != nil {
			t.Errorf("trouble after a grant: %v", h.Trouble())
		}
	})
}

func TestAKeeperWithoutTokenListsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(c *Config) { c.Token = "" })
		h.run()
		id := h.acquire(time.Minute, 1)
		if kv := h.etcd.get(testKeys.Lease(testHost, id)); kv != nil {
			t.Errorf("listed as %s", kv.Value)
		}
	})
}

func TestKeysAreSpreadOverLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		on := map[store.LeaseID]int{}
		for range 1000 {
			on[h.acquire(time.Minute, 1)]++
		}
		for id, n := range on {
			if n > KeysPerLease {
				t.Errorf("%d keys on lease %s", n, name(id))
			}
		}
		if len(on) != 4 {
			t.Errorf("1,000 keys on %d leases, want 4", len(on))
		}
		for range 3 {
			id := h.acquire(time.Minute, 1600)
			if on[id] > 0 {
				t.Errorf("1,600 keys share lease %s", name(id))
			}
			on[id] = 1600
			if small := h.acquire(time.Minute, 1); small == id {
				t.Error("another key joined a large set")
			}
		}
	})
}

func TestALargeSetIsNotStarvedBySmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		for range 10 {
			for { // small sets come first each time, and take all there is for them
				if _, ok := h.Acquire(time.Minute, 1); !ok {
					break
				}
			}
			if _, ok := h.Acquire(time.Minute, 400); ok {
				return
			}
			synctest.Wait()
		}
		t.Fatal("the large set never got a lease")
	})
}

func TestAnotherLeaseIsGrantedAheadOfNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Minute, 1)
		for i := range 3000 {
			if _, ok := h.Acquire(time.Minute, 1); !ok {
				t.Fatalf("key %d had to wait for a grant", i)
			}
			synctest.Wait()
		}
	})
}

func TestDurationsDoNotShareLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		a, b := h.acquire(5*time.Second, 1), h.acquire(6*time.Second, 1)
		if a == b {
			t.Fatal("one lease for two durations")
		}
		if w := h.wantValid(b); w.TTL != 6*time.Second {
			t.Errorf("the second lives %s", w.TTL)
		}
		if again := h.acquire(5*time.Second, 1); again != a {
			t.Error("a second lease of the same duration")
		}
	})
}

func TestAnAdoptedLeaseTakesNewKeysOnlyOnceRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		id := h.etcd.lease(time.Minute)
		h.etcd.fault.Store(failing(store.ErrUnavailable))
		h.Adopt(h.remaining(id, time.Minute), 250)
		h.Adopt(h.remaining(id, time.Minute), 250)
		h.run()
		h.wait(5 * time.Second)
		h.wantValid(id) // etcd has said that it lives
		if got, ok := h.Acquire(time.Minute, 1); ok {
			t.Fatalf("key on lease %s before it was renewed", name(got))
		}
		h.etcd.fault.Store(nil)
		h.wait(2 * maxPause)
		h.wantValid(id)
		if h.readies() == 0 {
			t.Error("nothing was reported")
		}
		if got := h.acquire(time.Minute, 50); got != id {
			t.Errorf("50 keys went on lease %s, want the adopted one", name(got))
		}
		if got := h.acquire(time.Minute, 1); got == id {
			t.Error("301 keys on the adopted lease")
		}
	})
}

func TestTheFirstRenewalOfAnAdoptedLeaseIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.Adopt(h.remaining(h.etcd.lease(time.Minute), time.Minute), 1)
		h.run()
		if h.readies() != 1 {
			t.Errorf("reported %d times, want once", h.readies())
		}
		h.wait(10 * time.Minute)
		if h.readies() != 1 {
			t.Errorf("reported %d times, want once", h.readies())
		}
	})
}

func TestReleasedKeysAreReportedToRefusedCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 300)
		synctest.Wait()
		second := h.acquire(time.Minute, 300)
		h.etcd.fault.Store(failing(store.ErrNoSpace, "grant"))
		synctest.Wait()
		for { // what was granted ahead
			if _, ok := h.Acquire(time.Minute, 10); !ok {
				break
			}
		}
		before := h.readies()
		h.Release(second, 5)
		synctest.Wait()
		if h.readies() != before {
			t.Error("called back without free keys")
		}
		h.Release(id, 10)
		synctest.Wait()
		if h.readies() != before+1 {
			t.Error("not called back")
		}
		if got, ok := h.Acquire(time.Minute, 10); !ok || got != id {
			t.Errorf("got lease %s, %v", name(got), ok)
		}
	})
}

func TestAnAdoptedLeaseThatIsGoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.Adopt(h.remaining(7, time.Minute), 1)
		h.run()
		h.wantLost(store.ErrLeaseNotFound, 7)
	})
}

func TestAnAdoptedLeaseThatIsNeverAnsweredIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		id := h.etcd.lease(time.Minute)
		h.etcd.fault.Store(hanging())
		h.Adopt(h.remaining(id, time.Minute), 1)
		h.run()
		h.wait(time.Minute)
		h.wantLost(ErrValidityEnded, id)
	})
}

func TestAKeeperRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		if err := h.Run(t.Context()); !errors.Is(err, ErrRan) {
			t.Errorf("the second Run ended with %v", err)
		}
		h.stop()
		if err := h.Run(t.Context()); !errors.Is(err, ErrRan) {
			t.Errorf("Run after the end ended with %v", err)
		}
	})
}

func TestAKeeperThatIsStoppedBeforeItStartsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.Acquire(time.Minute, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStopped)
		if err := h.Run(ctx); !errors.Is(err, errStopped) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func TestManyAcquireAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		var mu sync.Mutex
		on := map[store.LeaseID]int{}
		var all sync.WaitGroup
		for w := range 16 {
			all.Go(func() {
				for i := range 200 {
					keys := 1 + (w+i)%7
					id, ok := h.Acquire(time.Duration(10+w%3)*time.Second, keys)
					if !ok {
						time.Sleep(time.Millisecond)
						continue
					}
					h.Validity(id)
					if i%3 == 0 {
						h.Release(id, keys)
						continue
					}
					mu.Lock()
					on[id] += keys
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for id, n := range on {
			if n > KeysPerLease {
				t.Errorf("%d keys on lease %s", n, name(id))
			}
			h.wantValid(id)
		}
	})
}
