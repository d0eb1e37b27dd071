package pool_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// twice has two hosts hold claims of one id, as after two grants at the same
// moment: the one of host "two" is put without its engine.
func twice(t *testing.T) (c *cluster, one stoppable, a *pool.Claim, foreign string) {
	t.Helper()
	c = newCluster(t)
	c.pool("db", 5)
	one = c.stoppable("one")
	a = c.claim(one.Engine, "a", db(2))
	lease, _, err := c.client.Grant(c.ctx(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for g := range 5 {
		foreign = c.keys.Slot("db", g, 0)
		if c.keysUnder(foreign) == 0 {
			break
		}
	}
	c.txn(store.Put(foreign, fmt.Appendf(nil,
		`{"v":1,"n":1,"claim":"a","record":{"pools":{"db":1},"holder":{"host":"two","instance":"test"},"since":"2026-01-01T00:00:00Z"}}`), lease))
	c.caughtUp()
	return c, one, a, foreign
}

func TestARestartKeepsAClaimWhoseIDAnotherHostHoldsToo(t *testing.T) {
	c, before, a, foreign := twice(t)
	before.stop()
	c.adopt = []store.LeaseID{a.Lease}
	now := c.engine("one", func(cfg *pool.Config) { cfg.Leases = before.leases })
	claims, err := now.Adopted(c.ctx())
	if err != nil || len(claims) != 1 || claims[0].Fence != a.Fence || claims[0].Keys != a.Keys {
		t.Fatalf("taken over are %v, %v, want claim a at fence %d", claims, err, a.Fence)
	}
	c.sound()
	c.release(now, claims...)
	if c.keysUnder(foreign) != 1 {
		t.Error("the release of one claim has freed the other of its id")
	}
}

func TestARevocationOfAnIDThatTwoHostsHoldNeedsTheHost(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("force %v", force), func(t *testing.T) {
			c, _, a, foreign := twice(t)
			if _, err := c.revoker.Revoke(c.ctx(), "a", force); problem.CodeOf(err) != problem.Invalid {
				t.Errorf("revoked by the id alone: %v", err)
			}
			if _, err := c.revoker.Revoke(c.ctx(), "three/test/a", force); problem.CodeOf(err) != problem.ClaimNotFound {
				t.Errorf("revoked of a host that does not have it: %v", err)
			}
			r, err := c.revoker.Revoke(c.ctx(), "one/test/a", force)
			if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence, Forced: force}); err != nil || r != want {
				t.Errorf("revoked: %+v, %v, want %+v", r, err, want)
			}
			<-a.Context().Done()
			if c.keysUnder(foreign) != 1 {
				t.Error("the claim of the other host is gone, too")
			}
		})
	}
}

func TestVerifyFindsNothingWrongWithTwoClaimsOfOneID(t *testing.T) {
	c, _, _, _ := twice(t)
	c.sound()
	held, _ := c.read().Claims()
	if len(held) != 2 || held[0].Host == held[1].Host {
		t.Errorf("held are %+v", held)
	}
}
