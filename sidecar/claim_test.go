package sidecar_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

var noWait = api.DurationOf(0)

func TestAClaimIsGrantedSeenAndReleased(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 3, leases(time.Minute))
	c := r.claim(api.ClaimRequest{
		ID: "mine", Pools: api.Slots{"db": 2}, Priority: 7, RunID: "run-1", StepKey: "load",
		Labels: map[string]string{"team": "blue", "app.kubernetes.io/name": "x"},
	})
	if c.Status != api.ClaimHeld || c.Fence == 0 || c.Host != "one" || c.Instance != "sidecar" {
		t.Errorf("granted: %+v", c)
	}
	if left, grace := c.Remaining(); left < 50*time.Second || left > time.Minute || grace != 10*time.Second {
		t.Errorf("valid for %s with a grace of %s", left, grace)
	}
	if d := time.Until(c.ValidUntil); d < 50*time.Second || d > time.Minute {
		t.Errorf("valid until %s, in %s", c.ValidUntil, d)
	}
	if got := *c.TTL; time.Duration(got) != time.Minute || time.Duration(c.LeaseDuration) != time.Minute {
		t.Errorf("a ttl of %s on a lease of %s", got, c.LeaseDuration)
	}

	p, err := r.client.Pool(t.Context(), "db")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Holders) != 1 || p.Claimed != 2 {
		t.Fatalf("the pool: %+v", p)
	}
	h := p.Holders[0]
	if !strings.HasPrefix(h.ClaimedBy, "user:") || h.ExpiresIn <= 0 || time.Duration(h.ExpiresIn) > time.Minute {
		t.Errorf("it is of %q, and expires in %s", h.ClaimedBy, h.ExpiresIn)
	}
	want := api.Holder{
		Claim: "mine", Host: "one", Instance: "sidecar", ClaimedBy: h.ClaimedBy, RunID: "run-1", StepKey: "load",
		Labels: c.Labels, Slots: 2, Since: c.ClaimedAt, Fence: c.Fence, ExpiresIn: h.ExpiresIn,
	}
	if d := cmp.Diff(want, h); d != "" {
		t.Errorf("the holder (-want +got):\n%s", d)
	}
	for _, path := range []string{"/v1/claims", "/v1/claims/mine", "/v1/claims/mine/why", "/v1/pools", "/v1/pools/db", "/v1/hosts"} {
		if got := r.raw(request{method: "GET", path: path}); got.status != http.StatusOK {
			t.Errorf("GET %s: %d %s", path, got.status, got.body)
		}
	}

	for range 2 { // again is the same
		if got := r.raw(request{method: "DELETE", path: "/v1/claims/mine"}); got.status != http.StatusNoContent || len(got.body) > 0 {
			t.Errorf("released: %d %s", got.status, got.body)
		}
	}
	if n := r.claimed("db"); n != 0 {
		t.Errorf("%d slots are held after the release", n)
	}
	_, err = r.client.Get(t.Context(), "mine")
	wantCode(t, err, problem.ClaimNotFound)
	_, err = r.client.Renew(t.Context(), "mine", api.RenewRequest{})
	wantCode(t, err, problem.ClaimNotFound)
}

func TestTheSameIDFindsTheGrantAndAnotherBodyIsRefused(t *testing.T) {
	r := single(t)
	r.pool("db", 3)
	req := api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(time.Hour)}
	first := r.claim(req)
	second := r.claim(req)
	if first.Fence != second.Fence || r.claimed("db") != 1 {
		t.Errorf("fences %d and %d, %d slots", first.Fence, second.Fence, r.claimed("db"))
	}
	for what, change := range map[string]func(*api.ClaimRequest){
		"other slots":      func(q *api.ClaimRequest) { q.Pools = api.Slots{"db": 2} },
		"another priority": func(q *api.ClaimRequest) { q.Priority = 1 },
		"another ttl":      func(q *api.ClaimRequest) { q.TTL = api.DurationOf(time.Minute) },
		"another run":      func(q *api.ClaimRequest) { q.RunID = "r" },
		"labels":           func(q *api.ClaimRequest) { q.Labels = map[string]string{"a": "b"} },
	} {
		other := req
		change(&other)
		_, err := r.client.Claim(t.Context(), other)
		if problem.CodeOf(err) != problem.IDInUse {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestARefusedClaimTellsWhoIsInTheWay(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 2)
	r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 2}, RunID: "nightly"})
	for want, wait := range map[string]string{"no_capacity": "0s", "claim_timeout": "20ms"} {
		p := r.raw(request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1},"wait":"` + wait + `"}`}).problem(t)
		if p.Code != want || p.Status != http.StatusConflict || p.Reason != "pool 'db' full (2/2 slots)" || p.Position != 1 {
			t.Errorf("%+v", p)
		}
		holders := []api.HolderRef{{Pool: "db", Claim: "first", Host: "one", RunID: "nightly", Slots: 2}}
		if d := cmp.Diff(holders, p.Holders); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]api.Shortage{{Pool: "db", Wanted: 1, Limit: 2, Claimed: 2, Short: 1}}, p.Pools); d != "" {
			t.Error(d)
		}
	}
	_, err := r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, Wait: noWait})
	wantCode(t, err, problem.NoCapacity)
	var p *problem.Error
	if p, _ = err.(*problem.Error); p == nil || p.Detail.(api.Reason).Holders[0].Claim != "first" {
		t.Errorf("the client's error: %#v", err)
	}
}

// waiting begins a claim that has to wait, and returns once it does.
func (r *running) waiting(ctx context.Context, req api.ClaimRequest) <-chan error {
	r.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Claim(ctx, req)
		done <- err
	}()
	eventually(r.t, "claim "+req.ID+" waits", func() bool {
		why, err := r.client.Why(r.t.Context(), req.ID)
		return err == nil && why.Claim.Status == api.ClaimWaiting
	})
	return done
}

func TestAClientThatHangsUpLeavesNoWaiter(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	holder := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	ctx, hangUp := context.WithCancel(t.Context())
	done := r.waiting(ctx, api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}})
	p, err := r.client.Pool(t.Context(), "db")
	if err != nil || len(p.Waiters) != 1 || p.Waiters[0].Claim != "late" || p.Waiters[0].Position != 1 {
		t.Errorf("the line: %+v, %v", p, err)
	}
	if got := r.raw(request{method: "GET", path: "/v1/claims/late/why"}); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
	hangUp()
	if err := <-done; err != context.Canceled {
		t.Errorf("the claim of a client that hung up: %v", err)
	}
	eventually(t, "nobody waits", func() bool {
		p, err := r.client.Pool(t.Context(), "db")
		return err == nil && len(p.Waiters) == 0
	})
	if err := r.client.Release(t.Context(), holder.ID); err != nil {
		t.Fatal(err)
	}
	if n := r.claimed("db"); n != 0 {
		t.Errorf("%d slots are held by nobody", n)
	}
}

func TestAWaitingClaimIsGrantedWhenSlotsAreFreed(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	holder := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(time.Minute)})
	if err := r.client.Release(t.Context(), holder.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// The wait counts: the validity is measured from the sending of the request.
	c, err := r.client.Get(t.Context(), "late")
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := c.Remaining(); left <= 0 || left > time.Minute {
		t.Errorf("valid for %s", left)
	}
}

func TestAReleaseWhoseClientHangsUpIsNoFault(t *testing.T) {
	t.Parallel()
	etcd := embedtest.Cluster(t, 1)
	r := start(t, config(t, etcd.Endpoints()[0]))
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	etcd.Stop(0)
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.client.Release(ctx, "mine") }()
	eventually(t, "it is being released", func() bool {
		c, err := r.client.Get(t.Context(), "mine")
		return err == nil && c.Status == api.ClaimReleasing
	})
	hangUp()
	if err := <-done; err != context.Canceled {
		t.Errorf("the client gets %v", err)
	}
	eventually(t, "the server has answered", func() bool { return strings.Contains(r.log.String(), "method=DELETE path=/v1/claims/mine") })
	if log := r.log.String(); !strings.Contains(log, "status=499") || strings.Contains(log, "[ERROR]") {
		t.Error("it is reported as a fault")
	}
	etcd.Restart(0)
	r.free("db") // it was released all the same
}

func TestAReleaseWithdrawsAClaimThatWaits(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}})
	if err := r.client.Release(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, problem.ClaimCanceled)
}

func TestAnotherHostsClaimIsNobodysToRelease(t *testing.T) {
	srv := embedtest.New(t)
	one := start(t, config(t, srv.Endpoint()))
	cfg := config(t, srv.Endpoint())
	cfg.Options.Host = "two"
	two := start(t, cfg)
	one.readDocument()
	one.pool("db", 2)
	two.sees("db")
	c := two.claim(api.ClaimRequest{ID: "theirs", Pools: api.Slots{"db": 2}})
	eventually(t, "the other host sees it", func() bool {
		got, err := one.client.Get(t.Context(), "theirs")
		return err == nil && got.Host == "two" && got.Fence == c.Fence && got.ValidFor == nil
	})
	wantCode(t, one.client.Release(t.Context(), "theirs"), problem.NotHolder)
	_, err := one.client.Renew(t.Context(), "theirs", api.RenewRequest{})
	wantCode(t, err, problem.NotHolder)
	if got := one.raw(request{method: "DELETE", path: "/v1/claims/theirs"}); got.status != http.StatusForbidden {
		t.Errorf("%d %s", got.status, got.body)
	}
	if one.claimed("db") != 2 {
		t.Error("it was released")
	}

	done, err := one.client.Revoke(t.Context(), "theirs", false)
	if err != nil || done.Host != "two" || done.Forced {
		t.Fatalf("%+v, %v", done, err)
	}
	eventually(t, "its holder is notified", func() bool {
		_, err := two.client.Renew(t.Context(), "theirs", api.RenewRequest{})
		return problem.CodeOf(err) == problem.ClaimRevoked
	})
	_, err = two.client.Get(t.Context(), "theirs")
	wantCode(t, err, problem.ClaimRevoked)
	if err := two.client.Release(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	one.free("db")
	_, err = two.client.Get(t.Context(), "theirs")
	wantCode(t, err, problem.ClaimRevoked)
}

func TestARevocationByForceFreesAtOnce(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	c := r.claim(api.ClaimRequest{ID: "stuck", Pools: api.Slots{"db": 1}})
	got := r.raw(request{method: "POST", path: "/v1/claims/stuck/revoke", body: `{"force":true}`})
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	next := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	if next.Fence <= c.Fence {
		t.Errorf("fence %d after %d", next.Fence, c.Fence)
	}
	eventually(t, "the holder is notified", func() bool {
		_, err := r.client.Renew(t.Context(), "stuck", api.RenewRequest{})
		return problem.CodeOf(err) == problem.ClaimLost
	})
	_, err := r.client.Revoke(t.Context(), "nobody", false)
	wantCode(t, err, problem.ClaimNotFound)
}

func TestTheListOfClaimsIsReadInPages(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 10)
	r.pool("gpu", 1)
	var want []string
	for i := range 7 {
		id := fmt.Sprintf("c%d", i)
		r.claim(api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}})
		want = append(want, id)
	}
	r.claim(api.ClaimRequest{ID: "gpu-0", Pools: api.Slots{"gpu": 1}})
	want = append(want, "gpu-0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, priority := range []int{0, 5, 0} {
		done := r.waiting(ctx, api.ClaimRequest{ID: fmt.Sprintf("w%d", i), Pools: api.Slots{"gpu": 1}, Priority: priority})
		defer func() { <-done }()
	}
	defer cancel()
	want = append(want, "w1", "w0", "w2")

	for _, limit := range []int{1, 2, 3, 100} {
		var got []string
		for next := ""; ; {
			var page api.List[api.Claim]
			decode(t, r.raw(request{method: "GET", path: fmt.Sprintf("/v1/claims?limit=%d&cursor=%s", limit, next)}), &page)
			for _, c := range page.Items {
				got = append(got, c.ID)
			}
			if next = page.Next; next == "" {
				break
			}
			if len(page.Items) != limit {
				t.Errorf("a page of %d has %d items, and there are more", limit, len(page.Items))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v", limit, got)
		}
	}
	for filter, want := range map[client.ClaimFilter]int{
		{}:                               11,
		{Pool: "gpu"}:                    4,
		{Pool: "gpu", Status: "waiting"}: 3,
		{Status: "held"}:                 8,
		{Host: "one"}:                    11,
		{Host: "two"}:                    0,
	} {
		if got, err := r.client.Claims(t.Context(), filter); err != nil || len(got) != want {
			t.Errorf("%+v: %d claims, %v, want %d", filter, len(got), err, want)
		}
	}
}

func TestAnInstanceOfTheSameEtcdIsSeen(t *testing.T) {
	r := single(t)
	c, err := instance.Open(t.Context(), instance.Options{Endpoints: r.cfg.Options.Endpoints, Host: "three", Instance: "job", Role: "exec"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Leave()
	hosts, err := r.client.Hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range hosts {
		got = append(got, h.Host+"/"+h.Instance+" "+h.Role)
	}
	if want := []string{"one/sidecar sidecar", "three/job exec"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
