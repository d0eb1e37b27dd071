package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestLeasesOfAClusterThatWasReplacedAreVoidImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		a, b := h.acquire(time.Minute, 1), h.acquire(time.Hour, 2)
		h.wantValid(a)
		h.wantValid(b)
		h.etcd.replace() // the restored cluster has the same leases, and would renew them
		for _, id := range []store.LeaseID{a, b} {
			if _, ok := h.Validity(id); ok {
				t.Errorf("lease %s is valid after the change", name(id))
			}
		}
		if id, ok := h.Acquire(time.Minute, 1); ok {
			t.Errorf("lease %s of the cluster before takes new keys", name(id))
		}
		synctest.Wait()
		h.wantLost(store.ErrOtherCluster, a, b)
		h.wait(StopGrace(time.Hour)) // the holders may still run
		if id, ok := h.Acquire(time.Minute, 1); ok {
			t.Errorf("lease %s was granted before the holders have stopped", name(id))
		}
		renewed := len(h.etcd.times("renew", a)) + len(h.etcd.times("renew", b))
		h.wait(2 * time.Minute)
		if n := len(h.etcd.times("renew", a)) + len(h.etcd.times("renew", b)); n != renewed {
			t.Errorf("leases of the cluster before were renewed %d times", n-renewed)
		}
		next := h.acquire(time.Minute, 1)
		if next == a || next == b {
			t.Errorf("lease %s is of the cluster before", name(next))
		}
		h.wait(5 * time.Minute)
		h.wantValid(next)
	})
}

func TestARenewalThatWasUnderWayRenewsNothingInTheNextCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 1)
		replace := func(_ context.Context, op string, _ store.LeaseID) error {
			if op == "renew" {
				h.etcd.fault.Store(nil)
				h.etcd.replace()
			}
			return nil
		}
		h.etcd.late.Store(&replace) // the answer is on its way
		h.wait(30 * time.Second)
		h.wantLost(store.ErrOtherCluster, id)
	})
}

func TestAGrantThatWasUnderWayGivesNoLeaseInTheNextCluster(t *testing.T) {
	for _, op := range []string{"grant", "txn"} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			var of store.LeaseID
			once := false
			replace := func(_ context.Context, at string, id store.LeaseID) error {
				if at == op && !once {
					once = true
					h.etcd.mu.Lock()
					of = h.etcd.nextID
					h.etcd.mu.Unlock()
					h.etcd.replace()
				}
				return nil
			}
			h.etcd.late.Store(&replace)
			h.Acquire(time.Minute, 1)
			h.run()
			h.wait(2 * maxPause) // a grant that could not be listed is tried again
			if id := h.acquire(time.Minute, 1); id == of || !once {
				t.Errorf("lease %s was granted by the cluster before", name(id))
			}
		})
	}
}

// A grant is tried again for as long as etcd is down, and so is under way when another cluster answers.
func TestAGrantThatWasTriedThroughARestoreWaitsForTheHoldersToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Hour, 1)
		h.etcd.fault.Store(failing(store.ErrUnavailable, "grant", "renew"))
		h.Acquire(time.Minute, 1)
		h.wait(time.Minute)
		h.etcd.replace()
		h.etcd.fault.Store(nil)
		h.wait(StopGrace(time.Hour)) // the holders may still run
		if id, ok := h.Acquire(time.Minute, 1); ok {
			t.Errorf("lease %s takes keys before the holders have stopped", name(id))
		}
		h.wait(time.Minute)
		if _, ok := h.Acquire(time.Minute, 1); !ok {
			t.Error("no lease takes keys after the holders have stopped")
		}
	})
}

func TestALeaseThatARestoreHasBroughtBackIsNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Minute, 1)
		h.stop()
		h.etcd.replace()
		found, err := Resume(t.Context(), h.etcd, h.clock, testKeys, testHost, testInst, testToken)
		if err != nil || len(found) > 0 {
			t.Errorf("leases %v of another cluster are resumed, %v", found, err)
		}
	})
}

func TestALeaseThatWasListedBeforeTheChangeIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Minute, 1)
		h.stop()
		found, err := Resume(t.Context(), h.etcd, h.clock, testKeys, testHost, testInst, testToken)
		if err != nil || len(found) != 1 {
			t.Fatalf("found %v, %v", found, err)
		}
		h.etcd.replace()
		cfg := h.cfg
		cfg.Registerer = nil
		h.Keeper = NewKeeper(cfg)
		h.Adopt(found[0], 1)
		h.run()
		h.wantLost(store.ErrOtherCluster, found[0].ID)
		h.Acquire(time.Minute, 1)
		h.wait(StopGrace(time.Minute)) // its holders may still run
		if id, ok := h.Acquire(time.Minute, 1); ok {
			t.Errorf("lease %s takes keys before the holders have stopped", name(id))
		}
	})
}

func TestAHostIsAnnouncedInTheClusterThatReplacesItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		p := newSeen(t, etcd, testToken)
		p.run()
		before := p.wantLease()
		etcd.replace() // with the same key and lease
		synctest.Wait()
		if after := p.wantLease(); after == before {
			t.Errorf("it is announced on lease %s of the cluster before", name(after))
		}
		if n := len(p.changed()); n != 2 {
			t.Errorf("%d leases were reported, want 2", n)
		}
		if err := p.Trouble(); err != nil {
			t.Errorf("the trouble is %v", err)
		}
		p.stop()
	})
}
