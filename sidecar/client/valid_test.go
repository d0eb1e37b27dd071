package client

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/sidecar/api"
)

// waitsThenRenews is a server on which a claim and a step instance are waited for, and
// which answers as if that had taken no time.
type waitsThenRenews struct{ renewals atomic.Int64 }

func (s *waitsThenRenews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const body = `{"id":"a","status":"held","pools":{"db":1},"fence":7,"valid_for":"%","grace":"1s","lease_duration":"30s"}`
	validFor := "30s"
	switch {
	case strings.HasSuffix(r.URL.Path, "/renew"), strings.HasSuffix(r.URL.Path, "/heartbeat"):
		s.renewals.Add(1)
	default:
		<-time.After(longCall + 10*time.Millisecond) // the boot clock may be late by 1 ms
		validFor = "1ms"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(strings.Replace(body, "%", validFor, 1)))
}

// What a long wait leaves of an answer's validity is made good at once.
func TestAClientReadsTheValidityAgainAfterALongWait(t *testing.T) {
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
	if left, grace := claim.Remaining(); left == 0 || grace != time.Second {
		t.Errorf("a claim is valid for %s, with %s to stop", left, grace)
	}
	taken, err := c.TakeStep(t.Context(), "r", "s", 0, api.StepTake{})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := taken.Remaining(); left == 0 {
		t.Error("a step instance is not valid")
	}
	if n := handler.renewals.Load(); n != 2 {
		t.Errorf("%d renewals", n)
	}
}
