package instance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
)

func connect(t *testing.T, srv *embed.Server) inspect.Snapshot {
	t.Helper()
	b, keys, err := instance.Connect(t.Context(), instance.Options{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return inspect.Snapshot{Backend: b, Keys: keys}
}

func closed(t *testing.T, c *instance.Client) {
	t.Helper()
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func claimed(t *testing.T, c *instance.Client, slots instance.Slots, opts ...instance.ClaimOption) *instance.Claim {
	t.Helper()
	claim, err := c.Claim(t.Context(), slots, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func read(t *testing.T, a inspect.Snapshot) *list.State {
	t.Helper()
	r, err := a.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Verify() {
		t.Errorf("%s: %s", v.Key, v.Problem)
	}
	return r
}

func TestAnOperatorChangesPoolsWithoutAnInstance(t *testing.T) {
	srv := embedtest.New(t)
	a := connect(t, srv)
	ctx := t.Context()
	if hosts, err := a.Hosts(ctx); err != nil || len(hosts) != 0 {
		t.Errorf("an operator is seen among the hosts: %v, %v", hosts, err)
	}
	limit, lease := 2, time.Minute
	put, err := a.SetPool(ctx, "db", pool.Change{Limit: &limit, LeaseDuration: &lease})
	if err != nil || !put.Created || put.Spec.Limit != 2 || put.Spec.LeaseDuration != lease {
		t.Errorf("created: %+v, %v", put, err)
	}
	limit = 3
	if put, err = a.ChangePool(ctx, "db", pool.Change{Limit: &limit}); err != nil || put.Created || put.Spec.LeaseDuration != lease {
		t.Errorf("changed: %+v, %v", put, err)
	}
	_, err = a.ChangePool(ctx, "no", pool.Change{Limit: &limit})
	wantCode(t, err, "pool_not_found")
	paused := func() bool {
		d, err := read(t, a).Pool("db")
		if err != nil {
			t.Fatal(err)
		}
		return d.Paused
	}
	if _, err := a.ChangePool(ctx, "db", pool.Change{Paused: new(true)}); err != nil || !paused() {
		t.Errorf("paused: %t, %v", paused(), err)
	}
	if _, err := a.ChangePool(ctx, "db", pool.Change{Paused: new(false)}); err != nil || paused() {
		t.Errorf("resumed: %t, %v", !paused(), err)
	}
	_, err = a.ChangePool(ctx, "no", pool.Change{Paused: new(true)})
	wantCode(t, err, "pool_not_found")
	wantCode(t, a.DeletePool(ctx, "no", nil), "pool_not_found")
	if err := a.DeletePool(ctx, "db", nil); err != nil || len(read(t, a).Pools()) != 0 {
		t.Errorf("deleted: %v", err)
	}
}

func TestAnOperatorSeesWhoIsThereAndForHowLong(t *testing.T) {
	srv := embedtest.New(t)
	a := connect(t, srv)
	ctx := t.Context()
	c := open(t, srv, func(o *instance.Options) {
		o.Instance, o.Role, o.Version, o.Capacity, o.Queues = "w1", "worker", "1.2.3", 8, []string{"gpu", "default"}
	})
	defer closed(t, c)
	for who, hosts := range map[string]func() (int, string){
		"operator": func() (int, string) {
			h, err := a.Hosts(ctx)
			if err != nil || len(h) != 1 {
				t.Fatal(h, err)
			}
			return h[0].Capacity, h[0].Host + "/" + h[0].Instance + " " + h[0].Role + " " + h[0].Version + " " + strings.Join(h[0].Queues, ",")
		},
		"client": func() (int, string) {
			h, err := c.Hosts(ctx)
			if err != nil || len(h) != 1 {
				t.Fatal(h, err)
			}
			return h[0].Capacity, h[0].Host + "/" + h[0].Instance + " " + h[0].Role + " " + h[0].Version + " " + strings.Join(h[0].Queues, ",")
		},
	} {
		if capacity, text := hosts(); capacity != 8 || text != "one/w1 worker 1.2.3 gpu,default" {
			t.Errorf("the %s sees %q with a capacity of %d", who, text, capacity)
		}
	}
	setPool(t, c, "db", 3, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1}, instance.WithLabels(map[string]string{"team": "x"}), instance.WithPID(7))
	holders, _ := read(t, a).Claims()
	if len(holders) != 1 || holders[0].Claim != claim.ID || holders[0].Labels["team"] != "x" || holders[0].PID != 7 || holders[0].Host != "one" {
		t.Fatalf("holders: %+v", holders)
	}
	ids := []store.LeaseID{holders[0].Lease, holders[0].Lease, 12345}
	for _, ends := range []func() (map[store.LeaseID]time.Duration, error){
		func() (map[store.LeaseID]time.Duration, error) { return a.LeaseEnds(ctx, ids) },
		func() (map[store.LeaseID]time.Duration, error) { return c.LeaseEnds(ctx, ids) },
	} {
		got, err := ends()
		if left := got[claim.Lease]; err != nil || len(got) != 2 || got[12345] != 0 || left <= 30*time.Second || left > time.Minute {
			t.Errorf("leases end: %v, %v", got, err)
		}
	}
	if claim.LeaseDuration() != time.Minute {
		t.Errorf("its lease lasts %s", claim.LeaseDuration())
	}
	if err := claim.Release(ctx); err != nil {
		t.Error(err)
	}
	if left, grace := claim.ValidFor(); left != 0 || grace != 0 || claim.LeaseDuration() != 0 {
		t.Errorf("a released claim is valid for %s", left)
	}
}

func TestAnOperatorTakesAClaimBack(t *testing.T) {
	srv := embedtest.New(t)
	a := connect(t, srv)
	ctx := t.Context()
	c := open(t, srv)
	defer closed(t, c)
	setPool(t, c, "db", 2, time.Minute)

	asked := claimed(t, c, instance.Slots{"db": 1}, instance.WithID("asked"))
	r, err := a.Revoke(ctx, "asked", false)
	if err != nil || r.Forced || r.Fence != asked.Fence() || r.Host != "one" {
		t.Errorf("revoked: %+v, %v", r, err)
	}
	<-asked.Context().Done()
	wantCode(t, asked.Err(), "claim_revoked")
	if err := asked.Release(ctx); err != nil { // the holder has stopped
		t.Error(err)
	}

	forced := claimed(t, c, instance.Slots{"db": 2}, instance.WithID("forced"))
	if r, err = c.Revoke(ctx, "forced", true); err != nil || !r.Forced {
		t.Errorf("freed: %+v, %v", r, err)
	}
	<-forced.Context().Done()
	wantCode(t, forced.Err(), "claim_lost")
	if h, w := read(t, a).Claims(); len(h)+len(w) != 0 {
		t.Errorf("left are %v and %v", h, w)
	}
	for _, force := range []bool{true, false} {
		_, err = a.Revoke(ctx, "forced", force)
		wantCode(t, err, "claim_not_found")
	}
}

func TestAClientShowsWhatAnOperatorReads(t *testing.T) {
	srv := embedtest.New(t)
	a := connect(t, srv)
	ctx := t.Context()
	c := open(t, srv)
	defer closed(t, c)
	setPool(t, c, "db", 1, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1}, instance.WithID("a"), instance.WithRun("nightly", "load"))
	_, err := c.Claim(ctx, instance.Slots{"db": 1}, instance.WithID("b"), instance.WithWait(10*time.Millisecond), instance.WithPriority(5))
	wantCode(t, err, "claim_timeout", "pool 'db' full (1/1 slots)")
	if pools, err := c.Pools(ctx); err != nil || len(pools) != 1 || pools[0].Claimed != 1 {
		t.Errorf("pools: %+v, %v", pools, err)
	}
	why, err := c.Why(ctx, "a")
	if err != nil || why.Held == nil || why.Held.Run != "nightly" || why.Held.Step != "load" {
		t.Errorf("why: %+v, %v", why, err)
	}
	if again, err := read(t, a).Why("a"); err != nil || again.Held.Fence != claim.Fence() {
		t.Errorf("why: %+v, %v", again, err)
	}
	if h, _, err := c.Claims(ctx); err != nil || len(h) != 1 {
		t.Errorf("claims: %v, %v", h, err)
	}
	if age := c.Age(ctx); age > 2*time.Second {
		t.Errorf("its view is %s old", age)
	}
	if _, err := c.ChangePool(ctx, "db", pool.Change{Paused: new(true)}); err != nil {
		t.Error(err)
	}
	_, err = c.Claim(ctx, instance.Slots{"db": 1}, instance.WithWait(0)) // it sees its own change
	wantCode(t, err, "no_capacity", "paused")
	if _, err := c.ChangePool(ctx, "db", pool.Change{Paused: new(false)}); err != nil {
		t.Error(err)
	}
	if err := c.DeletePool(ctx, "db", nil); err != nil {
		t.Error(err)
	}
	_, err = c.Claim(ctx, instance.Slots{"db": 1}, instance.WithWait(0))
	wantCode(t, err, "pool_not_found")
	if found, err := c.Lookup(ctx, "a"); err != nil || found.Fence() != claim.Fence() {
		t.Errorf("looked up %v, %v", found, err)
	}
	if found, err := c.Lookup(ctx, "no"); err != nil || found != nil {
		t.Errorf("looked up %v, %v", found, err)
	}
	if err := claim.Release(ctx); err != nil {
		t.Error(err)
	}
}
