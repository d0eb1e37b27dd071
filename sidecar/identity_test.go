package sidecar_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
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

func TestClientsWithOneIDDoNotShareAPlaceInTheWaitQueue(t *testing.T) {
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

// A wait can take longer than the token lasts that it was begun with.
func TestAWaitOfATokenThatWasRevokedIsNotGranted(t *testing.T) {
	var tokens atomic.Pointer[func() access.Tokens]
	known := accesstest.Tokens("ci", "secret", "claim", "view")
	tokens.Store(&known)
	r := single(t, func(c *sidecar.Config) {
		c.Policy = access.Policy{}
		c.Tokens = func() access.Tokens { return (*tokens.Load())() }
	})
	admin := r.client // over the socket
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "holder", Pools: api.Slots{"db": 1}})
	over, err := client.Dial(r.base, "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	refused := make(chan error, 1)
	go func() {
		_, err := over.Claim(t.Context(), api.ClaimRequest{ID: "waits", Pools: api.Slots{"db": 1}})
		refused <- err
	}()
	q, err := http.NewRequestWithContext(t.Context(), "POST", r.base+"/v1/claims", strings.NewReader(`{"id":"async","pools":{"db":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer secret")
	q.Header.Set("Prefer", "respond-async")
	got := r.roundTrip(&http.Transport{DisableKeepAlives: true}, q)
	if got.status != http.StatusAccepted {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, id := range []string{"waits", "async"} {
		eventually(t, id+" waits", func() bool {
			c, err := admin.Get(t.Context(), id)
			return err == nil && c.Status == api.ClaimWaiting
		})
	}
	none := accesstest.Tokens("other", "another", "view")
	tokens.Store(&none)
	if err := admin.Release(t.Context(), "holder"); err != nil {
		t.Fatal(err)
	}
	err = <-refused
	if wantCode(t, err, problem.Unauthorized); !strings.Contains(err.Error(), "the token is not one that this server knows") {
		t.Errorf("it does not say why: %v", err)
	}
	eventually(t, "the other is refused", func() bool {
		_, err := admin.Get(t.Context(), "async")
		return problem.CodeOf(err) == problem.Unauthorized
	})
	if _, err := admin.Claim(t.Context(), api.ClaimRequest{ID: "next", Pools: api.Slots{"db": 1}}); err != nil {
		t.Error(err)
	}
}
