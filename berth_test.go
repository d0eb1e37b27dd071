package berth_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	embedtest.ManyAtOnce(8, 4)
	embedtest.VerifyTestMain(m)
}

func open(t *testing.T, srv *embed.Server, change ...func(*berth.Options)) *berth.Client {
	t.Helper()
	o := berth.Options{Endpoints: []string{srv.Endpoint()}, Host: "one"}
	for _, f := range change {
		f(&o)
	}
	c, err := berth.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// short makes the grace short that [berth.Client.Close] gives to holders: a sixth of it.
var short = berth.WithLeaseDuration(10 * time.Second)

// closeNow closes a client without waiting for its holders.
func closeNow(t *testing.T, c *berth.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if berth.ErrorCode(c.Err()) != "stopping" {
		t.Errorf("the client ended with %v", c.Err())
	}
	<-c.Done()
}

func TestPoolsAndTheirClaimsAreManaged(t *testing.T) {
	etcd := embedtest.New(t)
	c := open(t, etcd, func(o *berth.Options) { o.Instance = "i" })
	defer closeNow(t, c)
	ctx := t.Context()
	if err := c.SetPool(ctx, "db", 2, berth.WithLeaseDuration(time.Minute), berth.WithReserveAfter(berth.NeverReserve)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetPool(ctx, "gpu", berth.Unlimited); err != nil {
		t.Fatal(err)
	}
	claim, err := c.Claim(ctx, berth.Slots{"db": 2}, berth.WithID("a"), berth.WithRun("etl", "load"), berth.WithPID(7),
		berth.WithLabels(map[string]string{"team": "x"}), berth.WithPriority(5), berth.WithBind("b"))
	if err != nil {
		t.Fatal(err)
	}
	if claim.ID() != "a" || claim.Slots()["db"] != 2 || claim.Bind() != "b" || claim.LeaseDuration() != time.Minute || claim.ClaimedAt().IsZero() {
		t.Errorf("claimed %v", claim)
	}
	if left, grace := claim.ValidFor(); left < 50*time.Second || grace != 10*time.Second {
		t.Errorf("it is valid for %s, with a grace of %s", left, grace)
	}
	waiting, stop := context.WithCancel(ctx)
	var granted sync.WaitGroup
	granted.Go(func() {
		if _, err := c.Claim(waiting, berth.Slots{"db": 1}, berth.WithID("b")); berth.ErrorCode(err) != "claim_canceled" {
			t.Errorf("the claim that waits ended with %v", err)
		}
	})
	var db berth.PoolDetail
	for db.Waiting == 0 {
		if db, err = c.Pool(ctx, "db"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	granted.Wait()
	want := berth.PoolDetail{
		Pool: berth.Pool{Name: "db", Limit: 2, LeaseDuration: time.Minute, ReserveAfter: berth.NeverReserve, Claimed: 2, Waiting: 1},
		Holders: []berth.Holder{{
			Claim: "a", Host: "one", Instance: "i", ClaimedBy: "unauthenticated", Run: "etl", Step: "load", PID: 7, Labels: map[string]string{"team": "x"},
			Slots: berth.Slots{"db": 2}, Priority: 5, Fence: claim.Fence(),
		}},
		Waiters: []berth.Waiter{{
			Holder: berth.Holder{Claim: "b", Host: "one", Instance: "i", ClaimedBy: "unauthenticated", Slots: berth.Slots{"db": 1}}, Position: 1, Reason: "pool 'db' full (2/2 slots)",
		}},
	}
	if d := cmp.Diff(want, db, cmpopts.IgnoreFields(berth.Holder{}, "Since")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if err := errors.Join(c.PausePool(ctx, "gpu"), c.Revoke(ctx, "a", true)); err != nil {
		t.Fatal(err)
	}
	<-claim.Context().Done()
	if code := berth.ErrorCode(claim.Err()); code != "claim_lost" {
		t.Errorf("the revoked claim ended with %s", code)
	}
	if err := errors.Join(c.ResumePool(ctx, "gpu"), c.DeletePool(ctx, "db")); err != nil {
		t.Fatal(err)
	}
	pools, err := c.Pools(ctx)
	if err != nil || len(pools) != 1 || pools[0].Name != "gpu" || pools[0].Paused {
		t.Errorf("pools are %+v, %v", pools, err)
	}

	// Each of these actions is recorded, the newest first.
	backend, err := store.NewClient(store.Config{Endpoints: []string{etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	actions, _, bad, err := audit.Log{Backend: backend, Keys: store.NewKeys("/berth/")}.List(ctx, "", 100)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	var got []string
	for _, a := range actions {
		if a.Who == "" || !strings.HasSuffix(a.From, "@one") || a.Outcome != audit.Done {
			t.Errorf("%+v", a)
		}
		got = append(got, a.Action.Action+" "+a.Object)
	}
	if d := cmp.Diff([]string{"delete-pool db", "resume-pool gpu", "revoke-claim a", "pause-pool gpu", "set-pool gpu", "set-pool db"}, got); d != "" {
		t.Errorf("recorded are (-want +got):\n%s", d)
	}
}

func TestErrorsHaveACodeAndAReason(t *testing.T) {
	c := open(t, embedtest.New(t))
	defer closeNow(t, c)
	if err := c.SetPool(t.Context(), "db", 1, short); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Claim(t.Context(), berth.Slots{"db": 1}, berth.WithID("first")); err != nil {
		t.Fatal(err)
	}
	_, err := c.Claim(t.Context(), berth.Slots{"db": 1}, berth.WithWait(0))
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != "no_capacity" || e.Reason == nil || e.Reason.Pools[0].Holders[0].Claim != "first" {
		t.Errorf("a full pool refused with %+v", err)
	}
	if err := c.SetPool(t.Context(), "db", -7); !errors.As(err, &e) || e.Code != "invalid" || e.Field != "limit" || e.Reason != nil {
		t.Errorf("an invalid limit was refused with %+v", err)
	}
	if _, err := c.Pool(t.Context(), "none"); berth.ErrorCode(err) != "pool_not_found" {
		t.Errorf("an unknown pool: %v", err)
	}
}

func TestTheNextProcessTakesClaimsOver(t *testing.T) {
	srv, dir := embedtest.New(t), t.TempDir()
	fixed := func(o *berth.Options) { o.Instance, o.StateDir = "job", dir }
	first := open(t, srv, fixed)
	if err := first.SetPool(t.Context(), "db", 1, short); err != nil {
		t.Fatal(err)
	}
	claim, err := first.Claim(t.Context(), berth.Slots{"db": 1}, berth.WithID("a"))
	if err != nil {
		t.Fatal(err)
	}
	var waits []string
	_, err = berth.Open(t.Context(), berth.Options{
		Endpoints: []string{srv.Endpoint()}, Host: "one", Instance: "job", StateDir: dir,
		OnWait: func(why error) { waits = append(waits, berth.ErrorCode(why)) },
	})
	if berth.ErrorCode(err) != "host_in_use" {
		t.Errorf("a second process opened the name: %v, after %q", err, waits)
	}
	if err := first.Leave(); err != nil {
		t.Fatal(err)
	}
	second := open(t, srv, fixed)
	defer closeNow(t, second)
	held, err := second.Held(t.Context())
	if err != nil || len(held) != 1 || held[0].ID() != "a" || held[0].Fence() != claim.Fence() {
		t.Errorf("held: %v, %v", held, err)
	}
}

// entries collects the records of a [slog.Logger].
type entries struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (e *entries) Enabled(context.Context, slog.Level) bool { return true }
func (e *entries) WithAttrs(attrs []slog.Attr) slog.Handler { return with{e, attrs} }
func (e *entries) Handle(_ context.Context, r slog.Record) error {
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, text)
	return nil
}

// with is a handler that adds attributes to each record.
type with struct {
	*entries
	attrs []slog.Attr
}

func (w with) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(w.attrs...)
	return w.entries.Handle(ctx, r)
}

func TestTheLogGoesToSlog(t *testing.T) {
	log := &entries{}
	c := open(t, embedtest.New(t), func(o *berth.Options) { o.Logger = slog.New(log) })
	if err := c.SetPool(t.Context(), "db", 1, short); err != nil {
		t.Fatal(err)
	}
	claim, err := c.Claim(t.Context(), berth.Slots{"db": 1}, berth.WithID("a"))
	if err != nil {
		t.Fatal(err)
	}
	closeNow(t, c)
	if berth.ErrorCode(claim.Err()) != "claim_lost" {
		t.Errorf("the claim ended with %v", claim.Err())
	}
	if !slices.ContainsFunc(log.all, func(entry string) bool {
		return strings.HasPrefix(entry, "WARN claim lost claim=a ") && strings.HasSuffix(entry, " logger=pool")
	}) {
		t.Errorf("the log has no lost claim: %q", log.all)
	}
}

func TestASettingOfAPoolIsChangedAloneAndADeletedPoolSaysSo(t *testing.T) {
	c := open(t, embedtest.New(t))
	defer closeNow(t, c)
	ctx := t.Context()
	if err := c.ChangePool(ctx, "db", short); berth.ErrorCode(err) != "pool_not_found" {
		t.Errorf("of a pool that does not exist: %v", err)
	}
	if err := c.SetPool(ctx, "db", 3); err != nil {
		t.Fatal(err)
	}
	if err := c.ChangePool(ctx, "db", short); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Pool(ctx, "db"); err != nil || p.Limit != 3 || p.LeaseDuration != 10*time.Second || p.Deleted {
		t.Errorf("changed: %+v, %v", p, err)
	}
	if _, err := c.Claim(ctx, berth.Slots{"db": 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.DeletePool(ctx, "db"); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Pool(ctx, "db"); err != nil || !p.Deleted {
		t.Errorf("deleted: %+v, %v", p, err)
	}
}
