package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// listed returns the ids of the claims that an engine lists.
func listed(t *testing.T, e *Engine) (held, waiting []string) {
	t.Helper()
	holders, waiters, err := e.Claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range holders {
		held = append(held, h.Claim)
	}
	for _, w := range waiters {
		waiting = append(waiting, w.Claim)
	}
	return held, waiting
}

// claim claims a slot and fails the test if there is none.
func claim(t *testing.T, e *Engine, r *pool.Request) *pool.Claim {
	t.Helper()
	c, err := e.Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// isPut reports whether a claim waits in etcd.
func isPut(e *entry) bool {
	w, ok := e.claim.Waits()
	return ok && w.Created > 0
}

// waits asks for a claim that has to wait, and returns when it waits in etcd. What it returns has the request end and
// waits for that.
func waits(t *testing.T, e *Engine, r *pool.Request) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := e.Claim(ctx, r); err == nil {
			_ = e.Release(context.WithoutCancel(ctx), c)
		}
	}()
	for {
		if w, err := ask(t.Context(), e, func() bool { en := e.requests.byID[r.ID]; return en != nil && isPut(en) }); err != nil {
			t.Fatal(err)
		} else if w {
			break
		}
	}
	var once bool
	leave = func() {
		if !once {
			once = true
			cancel()
			<-done
		}
	}
	t.Cleanup(leave)
	return leave
}

// spec puts a pool.
func spec(t *testing.T, b store.Backend, keys wire.Keys, name string, limit int) {
	t.Helper()
	s := pool.DefaultSpec()
	s.Limit = limit
	if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Spec(name), wire.EncodeSpec(s, 0), 0)); err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// What an instance has done is in its lists when its caller knows of it: grants, demands that are not in etcd yet, withdrawals
// and releases. Another instance shows it with a revision of it.
func TestListsShowWhatTheCallerHasJustDone(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 1)
	for _, id := range []string{"a", "b", "c"} {
		c := claim(t, engines[0], request(id))
		held, _ := listed(t, engines[0])
		same(t, "held", held, id)
		leave := waits(t, engines[0], request("waits"))
		d, err := engines[0].Pool(t.Context(), "db")
		if err != nil || d.Claimed != 1 || d.Waiting != 1 {
			t.Errorf("%d slots are claimed, %d claims wait: %v", d.Claimed, d.Waiting, err)
		}
		engines[1].Changed(c.Fence.Revision())
		held, _ = listed(t, engines[1])
		same(t, "held, as another host shows it", held, id)
		leave()
		_, waiting := listed(t, engines[0])
		same(t, "waiting", waiting)
		if err := engines[0].Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		held, _ = listed(t, engines[0])
		same(t, "held after the release", held)
	}
	if _, err := engines[0].Why(t.Context(), "none"); problem.CodeOf(err) != problem.ClaimNotFound {
		t.Errorf("an unknown claim: %v", err)
	}
	if _, err := engines[0].Pool(t.Context(), "none"); problem.CodeOf(err) != problem.PoolNotFound {
		t.Errorf("an unknown pool: %v", err)
	}
}

// Claims that wait on two hosts are in one queue, in which the position of each counts those of the other host.
func TestWhyShowsTheQueueOfAllHosts(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 1)
	claim(t, engines[0], request("held"))
	waits(t, engines[0], request("first"))
	waits(t, engines[1], request("second"))
	for _, e := range engines { // each sees the other's when it is in etcd
		for {
			if _, waiting := listed(t, e); len(waiting) == 2 {
				break
			}
		}
	}
	for i, e := range engines {
		y, err := e.Why(pool.Fresh(t.Context()), "host-1/i/second")
		if err != nil || y.Waiter == nil {
			t.Fatalf("host %d: %+v, %v", i, y, err)
		}
		if r := y.Reason; r.Text != "pool 'db' full (1/1 slots)" || r.Waiting != 2 || len(r.Pools) != 1 || len(r.Pools[0].Holders) != 1 || r.Pools[0].Holders[0].Claim != "held" {
			t.Errorf("host %d: %+v", i, r)
		}
	}
}

func TestHeldClaimsAreFoundById(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 9)
	b, a := claim(t, engines[0], request("b")), claim(t, engines[0], request("a"))
	claim(t, engines[1], request("c"))
	held, err := engines[0].Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "held", held, a, b)
	for id, want := range map[string]*pool.Claim{"a": a, "b": b, "c": nil} {
		if c, err := engines[0].Lookup(t.Context(), id); c != want || err != nil {
			t.Errorf("%s: %v, %v", id, c, err)
		}
	}
	if err := engines[0].Release(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if c, err := engines[0].Lookup(t.Context(), "a"); c != nil || err != nil {
		t.Errorf("after its release: %v, %v", c, err)
	}
}

// Prospects count what waits before a request on any host, and the requests before it.
func TestProspects(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 2, 3)
	spec(t, b, keys, "full", 1)
	claim(t, engines[0], request("held"))
	r := request("in-full")
	r.Slots = map[string]int{"full": 1}
	claim(t, engines[1], r)
	of := func(id, name string, n int) *pool.Request {
		return &pool.Request{ID: id, Slots: map[string]int{name: n}}
	}
	asked := []*pool.Request{of("held", "db", 1), of("w", "db", 2), of("x", "db", 1), of("y", "full", 1), of("z", "none", 1)}
	got, err := engines[0].Prospects(pool.Fresh(t.Context()), asked)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "prospects", got, false, true, false, false, false)
	if got, err := engines[0].Prospects(t.Context(), asked[:1]); err != nil || got[0] {
		t.Errorf("of a claim that is granted: %v, %v", got, err)
	}
}

// Whether there is a pool is at most a second old, and true while nothing is known.
func TestHasPool(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 1)
	e := engines[0]
	if !e.HasPool("db") || e.HasPool("new") {
		t.Error("it does not know which pools there are")
	}
	spec(t, b, keys, "new", 1)
	if e.HasPool("new") {
		t.Error("within a second it is read again")
	}
	if e.Changed(1); !e.HasPool("new") {
		t.Error("a new pool is not there")
	}
	silent := newSpecs(unanswered{b}, keys.Keys)
	if !silent.has("none") {
		t.Error("a pool of which nothing is known does not exist")
	}
	silent.note("none", knownSpec{exists: false, at: time.Now().Add(-time.Hour)})
	if silent.has("none") {
		t.Error("what is known is forgotten while etcd is silent")
	}
}

// unanswered is an etcd that does not answer.
type unanswered struct{ store.Backend }

func (unanswered) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return nil, errors.New("no answer")
}

// A question for what is shown ends with its caller, before the engine has started and after it has ended.
func TestQuestionsEnd(t *testing.T) {
	t.Parallel()
	b := storetest.NewManualBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	e := New(Config{Host: "one", Instance: "i", Backend: b})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Held(ctx); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("%v, want %s", err, problem.EtcdUnavailable)
	}
	if _, _, err := e.Claims(ctx); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("%v, want %s", err, problem.EtcdUnavailable)
	}
	_ = e.Run(ctx)
	if _, err := e.Held(t.Context()); problem.CodeOf(err) != problem.Stopping {
		t.Errorf("%v, want %s", err, problem.Stopping)
	}
}

// Etcd is asked when it has not answered for a second, and its silence counts.
func TestAgeIsTheTimeSinceEtcdHasAnswered(t *testing.T) {
	t.Parallel()
	engines, b, _ := hosts(t, 1, 1)
	e := engines[0]
	if d := e.Age(t.Context()); d > askAfter {
		t.Error(d)
	}
	c := &contact{backend: b, keys: e.cfg.Keys, last: time.Now().Add(-time.Hour)}
	if d := c.age(); d < time.Hour || c.latest() != 0 {
		t.Errorf("it was asked %s ago, revision %d", d, c.latest())
	}
	c.ask(t.Context())
	if d := c.age(); d > time.Minute || c.latest() == 0 {
		t.Errorf("it has answered %s ago, revision %d", d, c.latest())
	}
	at := c.latest()
	c.answered(time.Now().Add(-time.Hour), &pb.ResponseHeader{Revision: at - 1}) // an older answer
	if d := c.age(); d > time.Minute || c.latest() != at {
		t.Errorf("it has answered %s ago, revision %d of %d", d, c.latest(), at)
	}
	c = &contact{backend: unanswered{b}, keys: e.cfg.Keys, last: time.Now().Add(-time.Hour)}
	if c.ask(t.Context()); c.age() < time.Hour {
		t.Error("silence is no answer")
	}
}
