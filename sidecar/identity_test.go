package sidecar_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/client"
)

// overTCP returns a client that the server knows nothing of.
func (r *running) overTCP() *client.Client {
	r.t.Helper()
	c, err := client.Dial(r.base, "")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func TestOneIDIsOfOneClientOnly(t *testing.T) {
	r := single(t)
	r.pool("db", 2)
	ask := func(r *running, clientToken string) (*api.Claim, error) {
		return r.overTCP().Claim(t.Context(), api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}, ClientToken: clientToken})
	}
	first, err := ask(r, "a")
	if err != nil {
		t.Fatal(err)
	}
	check := func(r *running) {
		t.Helper()
		if again, err := ask(r, "a"); err != nil || again.Fence != first.Fence {
			t.Errorf("the same client gets %+v, %v", again, err)
		}
		for _, other := range []string{"b", "", "A"} {
			_, err := ask(r, other)
			wantCode(t, err, problem.IDInUse)
		}
		if n := r.claimed("db"); n != 1 {
			t.Errorf("%d slots are held", n)
		}
	}
	check(r)
	p := spawn(t, sleeper)
	if _, err := r.client.Renew(t.Context(), "job", api.RenewRequest{PID: p.pid()}); err != nil {
		t.Fatal(err)
	}
	check(r)
	check(r.restarted())
}

func TestAskersOfOneIDDoNotShareAPlaceInLine(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "holder", Pools: api.Slots{"db": 1}})
	req := api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}, ClientToken: "a"}
	first := r.waiting(t.Context(), req)
	req.ClientToken = "b"
	_, err := r.overTCP().Claim(t.Context(), req)
	wantCode(t, err, problem.IDInUse)
	if err := r.client.Release(t.Context(), "holder"); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Errorf("who waited first gets %v", err)
	}
}

// TestAFenceMeansOneClaim has the holder of an earlier claim come late.
func TestAFenceMeansOneClaim(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	req := api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}
	early := r.claim(req)
	if _, err := r.client.Renew(t.Context(), "job", api.RenewRequest{Fence: early.Fence}); err != nil {
		t.Errorf("its own holder renews it: %v", err)
	}
	if err := r.client.ReleaseFence(t.Context(), "job", early.Fence); err != nil || r.claimed("db") != 0 {
		t.Errorf("its own holder releases it: %v, %d slots are held", err, r.claimed("db"))
	}
	late := r.claim(req)
	p := spawn(t, sleeper)
	for what, renewal := range map[string]api.RenewRequest{
		"a renewal":   {Fence: early.Fence},
		"a new ttl":   {Fence: early.Fence, TTL: api.DurationOf(claims.MinTTL)},
		"a new bind":  {Fence: early.Fence, PID: p.pid()},
		"of no claim": {Fence: late.Fence + 1},
	} {
		_, err := r.client.Renew(t.Context(), "job", renewal)
		if problem.CodeOf(err) != problem.ClaimLost {
			t.Errorf("%s: %v", what, err)
		}
	}
	path := fmt.Sprintf("/v1/claims/job?fence=%d", early.Fence)
	if got := r.raw(request{method: "DELETE", path: path}); got.status != http.StatusNoContent {
		t.Errorf("a late release: %d %s", got.status, got.body)
	}
	c, err := r.client.Get(t.Context(), "job")
	if err != nil || c.Fence != late.Fence || c.Status != api.ClaimHeld || c.PID != 0 || *c.TTL != *late.TTL {
		t.Errorf("the later claim is %+v, %v", c, err)
	}
	if err := r.client.ReleaseFence(t.Context(), "job", late.Fence); err != nil {
		t.Fatal(err)
	}
	r.free("db")
}

func TestALateReleaseLeavesAClaimThatWaitsInLine(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	req := api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}
	early := r.claim(req)
	if err := r.client.Release(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	r.claim(api.ClaimRequest{ID: "holder", Pools: api.Slots{"db": 1}})
	late := r.waiting(t.Context(), req)
	if err := r.client.ReleaseFence(t.Context(), "job", early.Fence); err != nil {
		t.Errorf("a late release: %v", err)
	}
	if err := r.client.Release(t.Context(), "holder"); err != nil {
		t.Fatal(err)
	}
	if err := <-late; err != nil {
		t.Errorf("who waits gets %v", err)
	}
}
