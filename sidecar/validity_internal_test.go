package sidecar

import (
	"testing"
	"time"

	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/executor"
)

// TestAnAnswerAfterALongWaitIsNoLongerValidForAClientWithASlowClock is about a client
// on another machine whose clock is 2 % slow: while the server measures ten minutes of
// waiting, the client measures twelve seconds less.
func TestAnAnswerAfterALongWaitIsNoLongerValidForAClientWithASlowClock(t *testing.T) {
	const waited = 10 * time.Minute
	const measured = waited - waited/50
	check := func(what string, left time.Duration, answered api.Duration) {
		t.Helper()
		believed := time.Duration(answered) - measured
		if believed > left {
			t.Errorf("%s is valid for %s, and its client believes in it for %s", what, left, believed)
		}
		if believed < left-time.Second {
			t.Errorf("%s is valid for %s, and its client believes in it for %s only", what, left, believed)
		}
	}

	a, s := testSession(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.claim(asAdmin(t), s, &claimInput{}, api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	h := s.holders.Fenced("mine", 0)
	v := s.holders.View(h)
	check("a claim", v.Left, *heldClaim(v, v.At.Add(-waited)).ValidFor)

	if valid, left := validFor(v.At, v.At, time.Second), time.Second-2*lease.ReadingAge; time.Duration(valid) > left {
		t.Errorf("it is valid for %s with clocks that were read a while ago, want %s at most", time.Duration(valid), left)
	}
	if valid := validFor(v.At, v.At, lease.ReadingAge); valid != 0 {
		t.Errorf("it is valid for %s, want 0", time.Duration(valid))
	}

	of := executor.View{At: v.At, Left: time.Hour}
	check("a run", of.Left, startedRun(of, v.At.Add(-waited)).ValidFor)
	check("a step instance", of.Left, takenStep(of, v.At.Add(-waited)).ValidFor)
}
