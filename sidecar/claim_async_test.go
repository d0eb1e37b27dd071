package sidecar_test

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
)

// postAsync requests a claim without waiting for it.
func (r *running) postAsync(body string) answer {
	r.t.Helper()
	return r.raw(request{method: "POST", path: "/v1/claims", body: body, change: func(q *http.Request) {
		q.Header.Set("Prefer", "respond-async")
	}})
}

// waits requests a claim that has to wait.
func (r *running) waits(body string) api.Claim {
	r.t.Helper()
	got := r.postAsync(body)
	if got.status != http.StatusAccepted {
		r.t.Fatalf("%d %s", got.status, got.body)
	}
	var c api.Claim
	decode(r.t, got, &c)
	return c
}

// noWaiters waits until no claim waits for a pool.
func (r *running) noWaiters(name string) {
	r.t.Helper()
	eventually(r.t, "none waits for "+name, func() bool {
		p, err := r.client.Pool(r.t.Context(), name)
		return err == nil && len(p.Waiters) == 0
	})
}

func TestAClaimWaitsWithoutAConnection(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	got := r.postAsync(`{"id":"first","pools":{"db":1}}`)
	var first api.Claim
	decode(t, got, &first)
	if got.status != http.StatusCreated || first.Status != api.ClaimHeld || first.ValidFor == nil || *first.ValidFor <= 0 || got.header.Get("Location") != "/v1/claims/first" {
		t.Errorf("at once: %d %s %v", got.status, got.body, got.header)
	}

	const body = `{"id":"second","pools":{"db":1},"ttl":"1h","labels":{"team":"blue"}}`
	for _, prefer := range [][]string{{"respond-async"}, {"handling=strict, Respond-Async; x=y"}, {"wait=1", "respond-async"}} {
		got := r.raw(request{method: "POST", path: "/v1/claims", body: body, change: func(q *http.Request) { q.Header["Prefer"] = prefer }})
		var c api.Claim
		decode(t, got, &c)
		if got.status != http.StatusAccepted || got.header.Get("Location") != "/v1/claims/second" || got.header.Get("Preference-Applied") != "respond-async" {
			t.Errorf("%q: %d %s %v", prefer, got.status, got.body, got.header)
		}
		if c.ID != "second" || c.Status != api.ClaimWaiting || c.Position != 1 || c.Reason == "" || c.Host != "one" || c.ValidFor != nil || c.QueuedAt.IsZero() {
			t.Errorf("%q: %+v", prefer, c)
		}
	}
	if p := r.postAsync(`{"id":"second","pools":{"db":1}}`).problem(t); p.Code != string(problem.IDInUse) {
		t.Errorf("another body: %+v", p)
	}
	if c, err := r.client.Get(t.Context(), "second"); err != nil || c.Status != api.ClaimWaiting || c.Position != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	all, err := r.client.Pool(t.Context(), "db")
	if err != nil || len(all.Waiters) != 1 {
		t.Errorf("%+v, %v", all, err)
	}

	events := r.follow("second", "")
	if err := r.client.Release(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	next(t, events, api.EventClaimGranted)
	c, err := r.client.Get(t.Context(), "second")
	if err != nil || c.Status != api.ClaimHeld || c.ValidFor == nil || *c.ValidFor <= 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	again := r.postAsync(body)
	var same api.Claim
	decode(t, again, &same)
	if again.status != http.StatusCreated || same.Fence != c.Fence {
		t.Errorf("again: %d %s", again.status, again.body)
	}
	if c := r.claim(api.ClaimRequest{ID: "second", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(time.Hour), Labels: c.Labels}); c.Fence != same.Fence {
		t.Errorf("a request that waits finds %+v", c)
	}
	if err := r.client.Release(t.Context(), "second"); err != nil || r.claimed("db") != 0 {
		t.Error(err)
	}
}

func TestAStreamOfAClaimThatWaitsSaysSo(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	r.waits(`{"id":"mine","pools":{"db":1}}`)
	var hello api.Event
	if err := r.client.Events(t.Context(), "mine", "", func(ev api.Event) error {
		hello = ev
		return http.ErrAbortHandler
	}); err != http.ErrAbortHandler || hello.Status != api.ClaimWaiting {
		t.Errorf("%+v, %v", hello, err)
	}
}

func TestAWaitWithoutAConnectionEndsAndSaysWhy(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 1}})
	events := r.follow("mine", "")
	r.waits(`{"id":"mine","pools":{"db":1},"wait":"100ms"}`)
	if ev := next(t, events, api.EventClaimEnded); ev.Code != string(problem.ClaimTimeout) || ev.Reason == "" {
		t.Errorf("%+v", ev)
	}
	for range 2 {
		p := r.raw(request{method: "GET", path: "/v1/claims/mine"}).problem(t)
		if p.Status != http.StatusConflict || p.Code != string(problem.ClaimTimeout) || len(p.Holders) != 1 {
			t.Errorf("%+v", p)
		}
	}
	r.noWaiters("db")
	r.waits(`{"id":"mine","pools":{"db":1}}`)
	if c, err := r.client.Get(t.Context(), "mine"); err != nil || c.Status != api.ClaimWaiting {
		t.Errorf("requested again: %+v, %v", c, err)
	}

	if got := r.raw(request{method: "DELETE", path: "/v1/claims/mine"}); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	next(t, events, api.EventClaimReleased)
	_, err := r.client.Get(t.Context(), "mine")
	wantCode(t, err, problem.ClaimNotFound)
	r.noWaiters("db")

	for body, want := range map[string]problem.Code{
		`{"id":"a","pools":{"nil":1}}`:            problem.PoolNotFound,
		`{"id":"b","pools":{"db":2}}`:             problem.ExceedsLimit,
		`{"id":"c","pools":{"db":1},"wait":"0s"}`: problem.NoCapacity,
		`{"id":"d","pools":{"db":1},"ttl":"0s"}`:  problem.Invalid,
		`{"pools":{"db":1},"ttl":"0s"}`:           problem.Invalid,
		`{"id":"first","pools":{"db":1}}`:         "",
	} {
		got := r.postAsync(body)
		if want == "" {
			if got.status != http.StatusCreated {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		} else if p := got.problem(t); p.Code != string(want) {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func TestARefusalWithoutAConnectionSaysNothingAboutAnotherWaitOfItsID(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 1}})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if c, err := r.client.Claim(t.Context(), api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}}); err != nil || c.ID != "mine" {
			t.Errorf("%+v, %v", c, err)
		}
	})
	eventually(t, "it waits", func() bool {
		c, err := r.client.Get(t.Context(), "mine")
		return err == nil && c.Status == api.ClaimWaiting
	})
	if p := r.postAsync(`{"id":"mine","pools":{"db":1},"priority":7}`).problem(t); p.Code != string(problem.IDInUse) {
		t.Errorf("%+v", p)
	}
	if c, err := r.client.Get(t.Context(), "mine"); err != nil || c.Status != api.ClaimWaiting {
		t.Errorf("%+v, %v", c, err)
	}
	if err := r.client.Release(t.Context(), "first"); err != nil {
		t.Error(err)
	}
	waiting.Wait()
}

// Its client never comes back.
func TestAClaimThatNoClientFollowsEndsWithItsTTL(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	first := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	c := r.waits(`{"pools":{"db":1},"ttl":"1s"}`)
	events := r.follow(c.ID, "")
	if err := r.client.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	next(t, events, api.EventClaimGranted)
	if ev := next(t, events, api.EventClaimEnded); ev.Code != string(problem.ClaimLost) {
		t.Errorf("%+v", ev)
	}
	r.free("db")
}

func TestAReleaseAtTheMomentOfTheGrantLeavesNothing(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	for range 30 {
		r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 1}})
		r.waits(`{"id":"mine","pools":{"db":1}}`)
		var both sync.WaitGroup
		for _, id := range []string{"first", "mine"} {
			both.Go(func() {
				if err := r.client.Release(t.Context(), id); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			})
		}
		both.Wait()
		r.noWaiters("db")
		r.free("db")
	}
}

func TestRequestsAtOnceFindOneClaim(t *testing.T) {
	r := single(t)
	r.pool("db", 9)
	for _, full := range []bool{false, true} {
		if full {
			r.claim(api.ClaimRequest{ID: "rest", Pools: api.Slots{"db": 9}})
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if i == 7 { // withdraws some of them
					if err := r.client.Release(t.Context(), "mine"); err != nil {
						t.Error(err)
					}
					return
				}
				got := r.postAsync(`{"id":"mine","pools":{"db":1}}`)
				if got.status >= http.StatusBadRequest && got.problem(t).Code != string(problem.ClaimCanceled) {
					t.Errorf("%d %s", got.status, got.body)
				}
			})
		}
		all.Wait()
		if got := r.postAsync(`{"id":"mine","pools":{"db":1}}`); got.status >= http.StatusBadRequest {
			t.Errorf("%d %s", got.status, got.body)
		}
		if !full && r.claimed("db") != 1 {
			t.Errorf("%d slots are held", r.claimed("db"))
		}
		if err := r.client.Release(t.Context(), "mine"); err != nil {
			t.Fatal(err)
		}
		r.noWaiters("db")
		eventually(t, "nothing is left", func() bool { return slices.Contains([]int{0, 9}, r.claimed("db")) })
	}
}

func TestAWaitWithoutAConnectionEndsWithTheServer(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 1}})
	r.waits(`{"id":"mine","pools":{"db":1}}`)
	r = r.restarted()
	_, err := r.client.Get(t.Context(), "mine")
	wantCode(t, err, problem.ClaimNotFound)
	r.noWaiters("db")
	if err := r.client.Release(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if n := r.claimed("db"); n != 0 {
		t.Errorf("%d slots are held", n)
	}
}

func TestAClaimWaitsForEtcdWithoutAConnection(t *testing.T) {
	t.Parallel()
	etcd := embedtest.Cluster(t, 1)
	r := start(t, config(t, etcd.Endpoints()[0]))
	r.pool("db", 1)
	etcd.Stop(0)
	c := r.waits(`{"id":"mine","pools":{"db":1}}`)
	if c.Status != api.ClaimWaiting {
		t.Errorf("%+v", c)
	}
	etcd.Restart(0)
	eventually(t, "it is granted", func() bool {
		c, err := r.client.Get(t.Context(), "mine")
		return err == nil && c.Status == api.ClaimHeld
	})
}

// A release ends all of a request, also its check whether the claim is granted at once.
func TestARequestAfterAReleaseKeepsItsClaim(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	const body = `{"id":"mine","pools":{"db":1}}`
	for range 300 {
		var both sync.WaitGroup
		both.Go(func() { r.postAsync(body) })
		if err := r.client.Release(t.Context(), "mine"); err != nil {
			t.Fatal(err)
		}
		c, err := r.client.Claim(t.Context(), api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
		both.Wait()
		if err == nil {
			if got, err := r.client.Get(t.Context(), "mine"); err != nil || got.Fence != c.Fence || r.claimed("db") != 1 {
				t.Fatalf("%+v was granted, and is %+v, %v", c, got, err)
			}
		} else if problem.CodeOf(err) != problem.ClaimCanceled {
			t.Fatal(err)
		}
		if err := r.client.Release(t.Context(), "mine"); err != nil {
			t.Fatal(err)
		}
	}
}
