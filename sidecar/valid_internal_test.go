package sidecar

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	check := func(what string, left time.Duration, answered int64) {
		t.Helper()
		believed := time.Duration(answered)*time.Millisecond - measured
		if believed > left {
			t.Errorf("%s is valid for %s, and its client believes in it for %s", what, left, believed)
		}
		if believed < left-time.Second {
			t.Errorf("%s is valid for %s, and its client believes in it for %s only", what, left, believed)
		}
	}

	a, s := behindTheDoor(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.claim(t.Context(), nil, api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	h, err := s.holders.Find("mine")
	if err != nil {
		t.Fatal(err)
	}
	v := s.holders.View(h)
	check("a claim", v.Left, *heldClaim(v, v.At.Add(-waited)).TrustedFor)

	of := executor.View{At: v.At, Left: time.Hour}
	check("a run", of.Left, startedRun(of, v.At.Add(-waited)).TrustedFor)
	check("a step instance", of.Left, takenStep(of, v.At.Add(-waited)).TrustedFor)
}

// waitsThenRenews is a server on which a claim and a step instance are waited for, and
// which answers as if that had taken no time.
type waitsThenRenews struct{ renewals atomic.Int64 }

func (s *waitsThenRenews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const body = `{"id":"a","state":"held","pools":{"db":1},"fence":7,"trusted_for":%,"grace_ms":1000,"lease_duration":"30s"}`
	validFor := "30000"
	switch {
	case strings.HasSuffix(r.URL.Path, "/renew"), strings.HasSuffix(r.URL.Path, "/heartbeat"):
		s.renewals.Add(1)
	default:
		<-time.After(longCall)
		validFor = "1"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(strings.Replace(body, "%", validFor, 1)))
}

// What a long wait leaves of an answer's validity is made good at once.
func TestAClientLearnsTheValidityAnewAfterALongWait(t *testing.T) {
	t.Parallel()
	handler := &waitsThenRenews{}
	srv := httptest.NewServer(handler)
	defer srv.Close()
	c, err := Dial(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	claim, err := c.Claim(t.Context(), api.ClaimRequest{ID: "a", Pools: api.Slots{"db": 1}})
	if err != nil {
		t.Fatal(err)
	}
	if left, grace := claim.Trust(); left == 0 || grace != time.Second {
		t.Errorf("a claim is valid for %s, with %s to stop", left, grace)
	}
	taken, err := c.TakeStep(t.Context(), "r", "s", 0, api.StepTake{})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := taken.Trust(); left == 0 {
		t.Error("a step instance is not valid")
	}
	if n := handler.renewals.Load(); n != 2 {
		t.Errorf("%d renewals", n)
	}
}
