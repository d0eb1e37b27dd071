package lease

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// leave leaves a lease as an earlier process did.
func leave(etcd *fakeEtcd, host, instance, token string, d time.Duration) store.LeaseID {
	id := etcd.lease(d)
	etcd.put(testKeys.Lease(host, id), encodeListing(listing{token, instance, span(d), 1}), id)
	return id
}

func TestResumeFindsTheInstancesOwnLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		a := leave(etcd, testHost, testInst, testToken, time.Minute)
		b := leave(etcd, testHost, testInst, testToken, time.Hour)
		leave(etcd, testHost, "worker", "other", time.Minute)
		leave(etcd, testHost, "worker", testToken, time.Minute)
		leave(etcd, "quay-2", testInst, "other", time.Minute)
		leave(etcd, testHost+"0", testInst, "other", time.Minute)
		got, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken)
		want := []Resumable{
			{a, time.Minute, NewWindow(etcd.clock.Now(), time.Minute), 1}, {b, time.Hour, NewWindow(etcd.clock.Now(), time.Hour), 1},
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("(-want +got) %s%v", diff, err)
		}
	})
}

func TestALeaseOfAKeeperIsResumedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run()
		id := h.acquire(time.Minute, 3)
		h.stop()
		time.Sleep(30 * time.Second)
		found, err := Resume(t.Context(), h.etcd, h.clock, testKeys, testHost, testInst, testToken)
		if err != nil || len(found) != 1 || found[0].ID != id {
			t.Fatalf("found %v, %v", found, err)
		}
		cfg := h.cfg
		cfg.Registerer = nil
		h.Keeper = NewKeeper(cfg)
		h.Adopt(found[0], 3)
		h.run()
		h.wantValid(id)
		h.wait(5 * time.Minute)
		h.wantValid(id)
	})
}

func TestForeignLeasesOfTheNameRefuseUntilTheyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		leave(etcd, testHost, testInst, "other", time.Minute)
		leave(etcd, testHost, testInst, "other", 5*time.Minute)
		leave(etcd, testHost, testInst, testToken, time.Hour)
		time.Sleep(10 * time.Second)
		_, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken)
		if problem.CodeOf(err) != problem.HostInUse {
			t.Fatalf("error %v", err)
		}
		for _, part := range []string{"quay-1", "leases (2)", "state directory", "4m51s"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the message %q does not tell %q", err, part)
			}
		}
		var p *problem.Error
		want := InUse{Host: testHost, Instance: testInst, Leases: 2, EndsWithin: "4m51s"}
		if errors.As(err, &p) && !cmp.Equal(p.Detail, want) {
			t.Errorf("detail %+v", p.Detail)
		}
		time.Sleep(4*time.Minute + 51*time.Second)
		if found, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken); err != nil || len(found) != 1 {
			t.Errorf("after their end: %v, %v", found, err)
		}
	})
}

func TestResumeGuessesNothing(t *testing.T) {
	for name, value := range map[string]string{
		"newer":       `{"v":2,"token":"t","instance":"sidecar","duration":"1m0s"}`,
		"no json":     `slot`,
		"no token":    `{"v":1,"token":"","instance":"sidecar","duration":"1m0s"}`,
		"no duration": `{"v":1,"token":"t","instance":"sidecar","duration":"0s"}`,
		"more":        `{"v":1,"token":"t","instance":"sidecar","duration":"1m0s","x":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := newFakeEtcd(newFakeClock())
				id := etcd.lease(time.Minute)
				key := testKeys.Lease(testHost, id)
				etcd.put(key, []byte(value), id)
				_, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken)
				if problem.CodeOf(err) != problem.CorruptValue || !strings.Contains(err.Error(), key) {
					t.Errorf("error %v", err)
				}
				var corrupt *store.CorruptError
				if !errors.As(err, &corrupt) {
					t.Error("the error does not tell the key as data")
				}
			})
		})
	}
}

func TestAnEntryOnAnotherLeaseIsCorrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		id := etcd.lease(time.Minute)
		etcd.put(testKeys.Lease(testHost, id+1), encodeListing(listing{testToken, testInst, span(time.Minute), 1}), id)
		_, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken)
		if problem.CodeOf(err) != problem.CorruptValue {
			t.Errorf("error %v", err)
		}
	})
}

func TestResumeTellsThatEtcdIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFakeEtcd(newFakeClock())
		leave(etcd, testHost, testInst, "other", time.Minute)
		for _, op := range []string{"range", "ttl"} {
			etcd.fault.Store(failing(store.ErrUnavailable, op))
			_, err := Resume(t.Context(), etcd, etcd.clock, testKeys, testHost, testInst, testToken)
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}

// Etcd is cut off right after the start of a process: what it has taken over is valid
// for no longer than from the last renewal of the process before.
func TestAnAdoptedLeaseIsLostBeforeItCanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		leave(h.etcd, testHost, testInst, testToken, 5*time.Minute)
		gone := leave(h.etcd, testHost, testInst, testToken, time.Minute)
		time.Sleep(4 * time.Minute)
		began := h.clock.Now()
		found, err := Resume(t.Context(), h.etcd, h.clock, testKeys, testHost, testInst, testToken)
		if err != nil || len(found) != 1 || found[0].ID == gone {
			t.Fatalf("found %v, %v", found, err)
		}
		id := found[0].ID
		h.etcd.fault.Store(hanging())
		h.Adopt(found[0], 1)
		w, ok := h.Validity(id)
		if left := w.Remaining(began); !ok || left > time.Minute-w.Margin {
			t.Errorf("it is valid for %s, and ends in a minute", left)
		}
		h.run()
		h.wait(2 * time.Minute)
		h.wantLost(ErrValidityEnded, id)
		if after := h.at[0] - began; after > time.Minute-w.Margin+tickEvery {
			t.Errorf("it was lost %s after the start, and could end after a minute", after)
		}
	})
}
