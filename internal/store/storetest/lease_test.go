package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestGrantsAreRoundedUp(t *testing.T) {
	for _, c := range []struct{ min, ask, want time.Duration }{
		{0, 0, 2 * time.Second},
		{0, -time.Hour, 2 * time.Second},
		{0, 2*time.Second + 1, 3 * time.Second},
		{time.Second, 1, time.Second},
		{1500 * time.Millisecond, 0, 2 * time.Second},
		{0, maxTTL, maxTTL},
	} {
		_, got, err := New(Options{MinTTL: c.min}).Grant(c.ask)
		if err != nil || got != c.want {
			t.Errorf("grant of %s with at least %s: %s, %v; want %s", c.ask, c.min, got, err, c.want)
		}
	}
	if _, _, err := New(Options{}).Grant(maxTTL + 1); err == nil {
		t.Error("a lease longer than etcd's longest was granted")
	}
}

func TestALeaseEndsWithItsTimeAndTakesItsKeys(t *testing.T) {
	e := New(Options{})
	short, _, _ := e.Grant(2 * time.Second)
	long, _, _ := e.Grant(3 * time.Second)
	same, _, _ := e.Grant(3 * time.Second)
	write(t, e, putOn("b", int64(short)), putOn("a", int64(short)), putOn("d", int64(same)), putOn("c", int64(long)), put("e"))

	e.Advance(2*time.Second - 1)
	if left, err := e.TimeToLive(short); err != nil || left != 0 {
		t.Errorf("left: %s, %v", left, err)
	}
	if e.Revision() != 2 {
		t.Fatal("a lease ended early")
	}
	e.Advance(10 * time.Second)
	want := "3: del a@3 del b@3\n4: del c@4\n5: del d@5"
	if got := describeEvents(e.from(3), 0); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if e.Now() != 12*time.Second-1 {
		t.Errorf("it is %s", e.Now())
	}
	if left := e.Leases(); len(left) != 0 {
		t.Errorf("leases are left: %v", left)
	}
}

func TestARenewalStartsTheTimeAgain(t *testing.T) {
	e := New(Options{})
	id, _, _ := e.Grant(4 * time.Second)
	e.Advance(3 * time.Second)
	if ttl, err := e.Renew(id); err != nil || ttl != 4*time.Second {
		t.Errorf("renew: %s, %v", ttl, err)
	}
	if end, ok := e.NextExpiry(); !ok || end != 7*time.Second {
		t.Errorf("it ends at %s, %t", end, ok)
	}
	e.Advance(4*time.Second - 1)
	if !slices.Equal(e.Leases(), []store.LeaseID{id}) {
		t.Error("it ended in spite of the renewal")
	}
	e.Advance(1)
	for name, err := range map[string]error{"renew": renew(e, id), "revoke": e.Revoke(id), "read": ttl(e, id)} {
		if !errors.Is(err, store.ErrLeaseNotFound) {
			t.Errorf("%s after the end: %v", name, err)
		}
	}
}

func renew(e *Etcd, id store.LeaseID) error { _, err := e.Renew(id); return err }
func ttl(e *Etcd, id store.LeaseID) error   { _, err := e.TimeToLive(id); return err }

func TestALaggingLeaseKeepsItsKeysAndCanNotBeRenewed(t *testing.T) {
	e := New(Options{ExpiryLag: time.Second})
	id, _, _ := e.Grant(2 * time.Second)
	write(t, e, putOn("a", int64(id)))
	e.Advance(2 * time.Second)
	if err := renew(e, id); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("renew: %v", err)
	}
	if err := ttl(e, id); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("read: %v", err)
	}
	write(t, e, putOn("b", int64(id))) // etcd takes it as long as the keys are there
	e.Advance(time.Second)
	if got := describeEvents(e.from(4), 0); got != "4: del a@4 del b@4" {
		t.Errorf("got %s", got)
	}
}

func TestOnlyTheKeysOnALeaseGoWithIt(t *testing.T) {
	e := New(Options{})
	one, _, _ := e.Grant(0)
	two, _, _ := e.Grant(0)
	id := int64(one)
	write(t, e, putOn("moved", id), putOn("freed", id), putOn("kept", id), putOn("deleted", id))
	write(t, e, putOn("moved", int64(two)), put("freed"), del("deleted"))
	write(t, e, put("deleted"))
	must(t, e.Revoke(one))
	if got := describeEvents(e.from(5), 0); got != "5: del kept@5" {
		t.Errorf("got %s", got)
	}
}

func TestARestartedEtcdGivesEveryLeaseItsFullTime(t *testing.T) {
	e := New(Options{})
	id, _, _ := e.Grant(5 * time.Second)
	e.Advance(4 * time.Second)
	e.RestartLeases(time.Second)
	if left, err := e.TimeToLive(id); err != nil || left != 6*time.Second {
		t.Errorf("left: %s, %v", left, err)
	}
	e.Advance(6 * time.Second)
	if len(e.Leases()) != 0 {
		t.Error("it did not end")
	}
}

func TestNumbersOfLeasesAreNotUsedAgain(t *testing.T) {
	e := New(Options{})
	one, _, _ := e.Grant(0)
	must(t, e.Revoke(one))
	if two, _, _ := e.Grant(0); two == one {
		t.Error("the number of a revoked lease came again")
	}
	if _, err := e.grant(e.lastLease, 0); err == nil {
		t.Error("a number was granted twice")
	}
}

func TestTimeDoesNotRunOver(t *testing.T) {
	e := New(Options{ExpiryLag: time.Hour})
	e.Advance(never - 1)
	id, _, err := e.Grant(maxTTL)
	must(t, err)
	e.Advance(1)
	e.Advance(never)
	if e.Now() != never || len(e.Leases()) > 1 {
		t.Errorf("it is %s, lease %d", e.Now(), id)
	}
}
