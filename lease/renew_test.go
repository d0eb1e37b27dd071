package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestRenewalsComeEachThird(t *testing.T) {
	for _, ttl := range []time.Duration{5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.run()
				id := h.acquire(ttl, 1)
				last := h.wantValid(id).Sent
				h.wait(4 * ttl)
				sent := h.etcd.times("renew", id)
				if len(sent) < 11 {
					t.Fatalf("%d renewals in four times to live", len(sent))
				}
				for _, at := range sent {
					if gap := at - last; gap > ttl/3 || gap < ttl/3-2*tickEvery {
						t.Errorf("a renewal after %s", gap)
					}
					last = at
				}
				if w := h.wantValid(id); w.Sent != last {
					t.Errorf("the window counts from %s, the last renewal was sent at %s", w.Sent, last)
				}
			})
		})
	}
}

func TestASlowSuccessDoesNotExtendValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		const ttl, latency = 10 * time.Second, 1500 * time.Millisecond
		id := h.acquire(ttl, 1)
		slow := hook(func(context.Context, string, store.LeaseID) error { time.Sleep(latency); return nil })
		h.etcd.late.Store(&slow)
		h.wait(ttl / 2)
		sent := h.etcd.times("renew", id)
		if w := h.wantValid(id); w.Sent != sent[0] || w.Until() != sent[0]+ttl-500*time.Millisecond {
			t.Errorf("window %+v of a renewal sent at %s", w, sent[0])
		}
	})
}

func TestValidityEndsInTimeWhenEtcdIsAway(t *testing.T) {
	for name, fault := range map[string]*hook{"refusing": failing(store.ErrUnavailable), "hanging": hanging()} {
		for _, ttl := range []time.Duration{5 * time.Second, time.Minute} {
			t.Run(fmt.Sprint(name, " ", ttl), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.run()
					id := h.acquire(ttl, 1)
					h.wait(ttl) // some renewals
					w := h.wantValid(id)
					h.etcd.fault.Store(fault)
					h.wait(w.Until() - 1 - h.clock.Now())
					h.wantValid(id)
					h.wait(1)
					if _, ok := h.Validity(id); ok {
						t.Error("trusted at its end")
					}
					h.wait(tickEvery)
					h.wantLost(ErrValidityEnded, id)
					if late := h.at[0] - w.Until(); late > tickEvery {
						t.Errorf("reported %s late", late)
					}
					h.etcd.fault.Store(nil)
					h.wait(ttl)
					h.wantLost(ErrValidityEnded, id)
				})
			})
		}
	}
}

func TestAnAbsenceThatIsSurvivedLosesNothing(t *testing.T) {
	faults := []*hook{failing(store.ErrUnavailable), hanging()}
	for _, ttl := range []time.Duration{5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.run()
				id := h.acquire(ttl, 1)
				slack := max(tryTimeout(ttl), retryPause(ttl)) + tickEvery
				away := Survives(ttl, StopGrace(ttl)) - slack
				for i := range 40 {
					h.wait(2*ttl/3 + time.Duration(i)*ttl/117)
					h.etcd.fault.Store(faults[i%2])
					h.wait(away)
					h.etcd.fault.Store(nil)
					h.wait(slack)
					if w := h.wantValid(id); h.clock.Now() >= w.StopAt() {
						t.Fatalf("absence %d: holders were to stop", i)
					}
				}
				h.wantLost(nil)
			})
		})
	}
}

func TestASuspendLongerThanTheWindowLosesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		short, long := h.acquire(10*time.Second, 1), h.acquire(5*time.Minute, 1)
		h.wait(time.Second)
		h.clock.jump(20 * time.Second)
		if _, ok := h.Validity(short); ok {
			t.Error("trusted after a suspend")
		}
		h.wait(tickEvery)
		h.wantLost(ErrValidityEnded, short)
		h.wantValid(long)
	})
}

func TestAnAnswerFromBeforeASuspendDoesNotSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(10*time.Second, 1)
		suspend := hook(func(_ context.Context, op string, _ store.LeaseID) error {
			if op == "renew" {
				h.clock.jump(time.Hour) // the answer waits in the socket
			}
			return nil
		})
		h.etcd.late.Store(&suspend)
		h.wait(4 * time.Second)
		h.wantLost(ErrValidityEnded, id)
	})
}

func TestAMissingLeaseIsLostAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 1)
		other := h.acquire(time.Hour, 1)
		h.etcd.kill(id)
		h.wait(20 * time.Second) // the next renewal
		h.wantLost(store.ErrLeaseNotFound, id)
		h.wantValid(other)
		if again := h.acquire(time.Minute, 1); again == id {
			t.Error("the lost lease was handed out")
		}
		h.Release(id, 1) // a late one is no fault
	})
}

func TestASuspectLeaseTakesNoKeysUntilItIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		dead, good := h.acquire(time.Minute, 1), h.acquire(time.Hour, 1)
		h.etcd.kill(dead)
		h.Suspect(dead, good, 99)
		for _, d := range []time.Duration{time.Minute, time.Hour} {
			if id, ok := h.Acquire(d, 1); ok {
				t.Errorf("suspect lease %s was handed out", name(id))
			}
		}
		h.wantValid(good)
		synctest.Wait()
		h.wantLost(store.ErrLeaseNotFound, dead)
		if h.readies() < 2 {
			t.Error("no callback was called")
		}
		if id := h.acquire(time.Hour, 1); id != good {
			t.Errorf("got lease %s, want the cleared one", name(id))
		}
	})
}

func TestARenewalSentBeforeTheSuspicionDoesNotClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 1)
		slow := hook(func(_ context.Context, op string, _ store.LeaseID) error {
			if op == "renew" {
				time.Sleep(time.Second)
			}
			return nil
		})
		h.etcd.late.Store(&slow)
		h.wait(20 * time.Second) // a renewal is under way
		before := len(h.etcd.times("renew", id))
		h.Suspect(id)
		h.etcd.kill(id)
		h.wait(time.Second)
		if after := len(h.etcd.times("renew", id)); after != before+1 {
			t.Errorf("%d renewals followed the suspicion, want 1", after-before)
		}
		h.wantLost(store.ErrLeaseNotFound, id)
	})
}

func TestAHangingRenewalHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		var ids []store.LeaseID
		for i := range 20 {
			ids = append(ids, h.acquire(time.Duration(30+i)*time.Second, 1))
		}
		stuck := hook(func(ctx context.Context, op string, id store.LeaseID) error {
			if op == "renew" && id == ids[0] {
				<-ctx.Done()
				return store.ErrUnavailable
			}
			return nil
		})
		h.etcd.fault.Store(&stuck)
		h.wait(2 * time.Minute)
		h.wantLost(ErrValidityEnded, ids[0])
		for _, id := range ids[1:] {
			h.wantValid(id)
		}
	})
}
