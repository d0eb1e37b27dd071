package instance_test

import (
	"context"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
)

func open(t *testing.T, srv *embed.Server, change ...func(*instance.Options)) *instance.Client {
	t.Helper()
	o := instance.Options{Endpoints: []string{srv.Endpoint()}, Host: "one"}
	for _, f := range change {
		f(&o)
	}
	c, err := instance.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setPool(t *testing.T, c *instance.Client, name string, limit int, lease time.Duration) {
	t.Helper()
	if _, err := c.SetPool(t.Context(), name, pool.Change{Limit: &limit, LeaseDuration: &lease}); err != nil {
		t.Fatal(err)
	}
}

func TestAClaimIsHeldAndReleased(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 3, time.Minute)

	claim, err := c.Claim(t.Context(), instance.Slots{"db": 2})
	if err != nil {
		t.Fatal(err)
	}
	if left, grace := claim.ValidFor(); left < 50*time.Second || grace != 10*time.Second {
		t.Errorf("it is valid for %s, with a grace of %s", left, grace)
	}
	if _, err := c.Claim(t.Context(), instance.Slots{"db": 2}, instance.WithWait(0)); instance.ErrorCode(err) != "no_capacity" {
		t.Errorf("a claim that does not fit: %v", err)
	}
	d, err := c.Pool(t.Context(), "db")
	if err != nil || d.Claimed != 2 || len(d.Holders) != 1 {
		t.Errorf("the pool is %+v, %v", d, err)
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if claim.Context().Err() == nil {
		t.Error("a released claim still has its context")
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheNextProcessOfAnInstanceTakesItsClaimsOver(t *testing.T) {
	srv := embedtest.New(t)
	dir := t.TempDir()
	fixed := func(o *instance.Options) { o.Instance, o.StateDir = "sidecar", dir }
	first := open(t, srv, fixed)
	setPool(t, first, "db", 3, time.Minute)
	claim, err := first.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithID("mine"), instance.WithBind("pid 1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Leave(); err != nil {
		t.Fatal(err)
	}
	second := open(t, srv, fixed)
	held, err := second.Held(t.Context())
	if err != nil || len(held) != 1 {
		t.Fatalf("held: %v, %v", held, err)
	}
	if held[0].Fence() != claim.Fence() || held[0].Bind() != "pid 1" || held[0].ID != "mine" {
		t.Errorf("taken over: %+v", held[0].Claim)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not drain
	if err := second.Close(ctx); err != nil {
		t.Error(err)
	}
}
