package sidecar_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// TestTheGraceLeavesTimeToRenew is about holders that follow the rules: they
// renew each third of the ttl, and stop when less than the grace is left.
func TestTheGraceLeavesTimeToRenew(t *testing.T) {
	r := single(t)
	r.pool("db", 10, leases(time.Minute))
	for ttl, want := range map[time.Duration]time.Duration{
		time.Second: time.Second / 6, 2 * time.Second: time.Second / 3, 30 * time.Second: 5 * time.Second,
		time.Hour: 10 * time.Second, 0: 10 * time.Second,
	} {
		c := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}, TTL: api.DurationOf(ttl)})
		if got := time.Duration(c.Grace); got != want.Truncate(time.Millisecond) {
			t.Errorf("with a ttl of %s the grace is %s, want %s", ttl, got, want)
		}
		if third := min(ttl, time.Minute) / 3; ttl > 0 && time.Duration(*c.ValidFor-c.Grace) < third {
			t.Errorf("with a ttl of %s it has to stop within %s", ttl, third)
		}
	}
}

func TestWhyTellsOfAHolderWhatItsClaimTells(t *testing.T) {
	srv := embedtest.New(t)
	r := start(t, config(t, srv.Endpoint()))
	r.readDocument()
	r.pool("db", 2, leases(time.Minute))
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(30 * time.Second)})
	get, err := r.client.Get(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the view shows it", func() bool {
		why, err := r.client.Why(t.Context(), "mine")
		return err == nil && why.Claim.ValidFor != nil
	})
	why, err := r.client.Why(t.Context(), "mine")
	if err != nil || *why.Claim.ValidFor <= 0 || why.Claim.TTL == nil || why.Claim.Grace != api.Duration(5*time.Second) {
		t.Fatalf("%+v, %v", why, err)
	}
	if d := cmp.Diff(*get, why.Claim, cmpopts.IgnoreFields(api.Claim{}, "ValidFor", "ValidUntil", "Deadline")); d != "" {
		t.Errorf("why differs (-claim +why):\n%s", d)
	}

	// What another host knows of it says nothing of its validity.
	cfg := config(t, srv.Endpoint())
	cfg.Options.Host = "two"
	other := start(t, cfg)
	other.readDocument()
	eventually(t, "the other host sees it", func() bool {
		_, err := other.client.Get(t.Context(), "mine")
		return err == nil
	})
	for _, path := range []string{"/v1/claims/mine", "/v1/claims/mine/why", "/v1/claims"} {
		got := other.raw(request{method: "GET", path: path})
		var fields any
		if err := json.Unmarshal(got.body, &fields); err != nil || got.status != http.StatusOK || has(fields, "valid_for") {
			t.Errorf("%s: %d %s, %v", path, got.status, got.body, err)
		}
		if got := r.raw(request{method: "GET", path: path}); json.Unmarshal(got.body, &fields) != nil || !has(fields, "valid_for") {
			t.Errorf("its own host: %s: %d %s", path, got.status, got.body)
		}
	}
}

// has reports whether there is a name anywhere in what was read.
func has(v any, name string) bool {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v[name]; ok {
			return true
		}
		for _, one := range v {
			if has(one, name) {
				return true
			}
		}
	case []any:
		for _, one := range v {
			if has(one, name) {
				return true
			}
		}
	}
	return false
}

func TestTheServersOwnWaitCanBeNone(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.Options.ClaimTimeout = -1 })
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	_, err := r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}})
	wantCode(t, err, problem.NoCapacity)
}

func TestAWaitCanLastAYear(t *testing.T) {
	r := single(t)
	r.pool("db", 2)
	for _, wait := range []string{"25h", "8760h"} {
		if got := r.raw(request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1},"wait":"` + wait + `"}`}); got.status != http.StatusCreated {
			t.Errorf("%s: %d %s", wait, got.status, got.body)
		}
	}
}
