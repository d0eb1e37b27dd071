package grace_test

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// TestEveryHolderIsGoneBeforeItsSlotsAreFree holds the times against each other for every
// duration of a lease, in steps of a second up to ten minutes.
func TestEveryHolderIsGoneBeforeItsSlotsAreFree(t *testing.T) {
	if grace.CheckInterval <= 0 || grace.Kill < 2*grace.CheckInterval {
		t.Errorf("a look may come %s late, and a killed process is taken to be gone after %s", grace.CheckInterval, grace.Kill)
	}
	if pool.RevokeGrace != grace.Revoke {
		t.Errorf("the engine frees the slots of a revoked claim after %s", pool.RevokeGrace)
	}
	for ttl := pool.MinLeaseDuration; ttl <= 10*time.Minute; ttl += time.Second {
		stop := lease.StopGrace(ttl)
		if stop > grace.Stop {
			t.Fatalf("a holder on a lease of %s gets %s to stop", ttl, stop)
		}
		// It is notified up to Notice late, killed a check after the grace, and gone then.
		if gone := grace.Notice + stop + grace.Kill; gone > pool.RevokeGrace {
			t.Fatalf("a holder on a lease of %s is gone after %s, and its slots are free after %s", ttl, gone, pool.RevokeGrace)
		}
		// And before its lease ends, if the claim is not requested again.
		if lease.Margin(ttl) < grace.Kill {
			t.Fatalf("a lease of %s leaves %s for a killed process to be gone", ttl, lease.Margin(ttl))
		}
	}
	if lease.StopGrace(pool.MaxLeaseDuration) != grace.Stop {
		t.Error("the longest leases do not leave the longest grace")
	}
}
