package pool_test

import (
	"testing"

	"github.com/berthhq/berth/pool"
)

func TestARenewalIsPublishedOncePerClaimAndAfterAGap(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 10)
	e := c.engine("one")
	events, err := e.SubscribeRuns(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	of := func(run string) func(*pool.Request) {
		return func(r *pool.Request) { r.Holder.Run, r.Holder.Step = run, "s" }
	}
	next := func(want pool.EventType, claim, reason string) {
		t.Helper()
		if ev := <-events; ev.Type != want || ev.Claim != claim || ev.Reason != reason || ev.Run != "r" || ev.Step != "s" {
			t.Errorf("%+v, want %s of %s, %q", ev, want, claim, reason)
		}
	}
	a := c.claim(e, "a", db(1), of("r"))
	c.claim(e, "of-none", db(1))
	next(pool.ClaimGranted, "a", "")
	e.LeaseRenewed(a.Lease, false)
	e.LeaseRenewed(a.Lease, false)
	e.LeaseRenewed(a.Lease+1, true) // another lease
	next(pool.ClaimRenewed, "a", "")
	b := c.claim(e, "b", db(1), of("r"))
	next(pool.ClaimGranted, "b", "")
	if b.Lease != a.Lease {
		t.Fatal("they are on leases of their own")
	}
	e.LeaseRenewed(a.Lease, false)
	next(pool.ClaimRenewed, "b", "")
	e.LeaseRenewed(a.Lease, true)
	next(pool.ClaimRenewed, "a", "its lease could be renewed again")
	next(pool.ClaimRenewed, "b", "its lease could be renewed again")
	c.release(e, a)
	next(pool.ClaimReleased, "a", "")
	e.LeaseRenewed(a.Lease, true)
	next(pool.ClaimRenewed, "b", "its lease could be renewed again")
}
