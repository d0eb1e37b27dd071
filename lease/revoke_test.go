package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestLeasesWithoutKeysAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		var ids []store.LeaseID
		for range 10 {
			ids = append(ids, h.acquire(time.Minute, 300))
		}
		busy := h.acquire(time.Hour, 7)
		for _, id := range ids {
			h.Release(id, 300)
		}
		h.wait(surplusAfter + time.Second)
		if n := len(h.etcd.alive()); n != 2 {
			t.Errorf("%d leases are left, want one per duration", n)
		}
		h.wait(idleAfter)
		if left := h.etcd.alive(); len(left) != 1 || left[0] != busy {
			t.Errorf("leases %v are left, want the one with keys", left)
		}
		h.Release(busy, 7)
		h.wait(2 * idleAfter)
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v were kept", left)
		}
		h.wantLost(nil)
	})
}

func TestALeaseThatWasMiscountedIsNeverGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 2)
		h.Release(id, 3)
		h.wait(2 * idleAfter)
		h.wantValid(id)
	})
}

func TestRevokeAllEndsEveryLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		for i := range 40 {
			h.acquire(time.Duration(10+i)*time.Second, 1)
		}
		if err := h.RevokeAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v are left", left)
		}
		if _, ok := h.Acquire(time.Minute, 1); ok {
			t.Error("a lease after the end")
		}
		h.Adopt(h.remaining(5, time.Minute), 1)
		h.wait(time.Hour)
		h.wantLost(nil)
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v were made after the end", left)
		}
	})
}

func TestRevokeAllTakesGrantsThatAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		slow := hook(func(context.Context, string, store.LeaseID) error { time.Sleep(300 * time.Millisecond); return nil })
		h.etcd.late.Store(&slow)
		h.Acquire(time.Minute, 1)
		synctest.Wait()
		if err := h.RevokeAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.wait(2 * time.Second)
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v are left", left)
		}
	})
}

func TestRevokeAllAfterRunFindsHalfMadeLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		stuck := hook(func(ctx context.Context, op string, _ store.LeaseID) error {
			if op == "txn" {
				<-ctx.Done()
				return store.ErrUnavailable
			}
			return nil
		})
		h.etcd.late.Store(&stuck)
		h.Acquire(time.Minute, 1)
		synctest.Wait()
		h.stop()
		if len(h.etcd.alive()) == 0 {
			t.Fatal("the test made no lease")
		}
		if err := h.RevokeAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v are left", left)
		}
	})
}

func TestRevokeAllNamesWhatItCouldNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Minute, 1)
		h.etcd.fault.Store(hanging())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.RevokeAll(ctx); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	})
}

func TestRevokeAllTriesUntilEtcdAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		h.acquire(time.Minute, 1)
		refusals := 3
		refuse := hook(func(context.Context, string, store.LeaseID) error {
			if refusals--; refusals >= 0 {
				return store.ErrUnavailable
			}
			return nil
		})
		h.etcd.fault.Store(&refuse)
		if err := h.RevokeAll(t.Context()); err != nil {
			t.Error(err)
		}
		if left := h.etcd.alive(); len(left) > 0 {
			t.Errorf("leases %v are left", left)
		}
	})
}

func TestStoppingKeepsLeasesForALaterProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 1)
		h.etcd.fault.Store(hanging())
		h.wait(21 * time.Second) // a renewal hangs
		h.stop()
		if left := h.etcd.alive(); len(left) != 1 || left[0] != id {
			t.Errorf("leases %v are left, want %s", left, name(id))
		}
		h.wantValid(id)
		h.wantLost(nil)
	})
}
