package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/server"
)

// asAdmin returns a context of a request of an administrator.
func asAdmin(t *testing.T) context.Context { return accesstest.As(t.Context(), accesstest.Admin) }

// testSession returns the endpoints and a session on an etcd of its own, without a server.
func testSession(t *testing.T) (*apiServer, *session) {
	t.Helper()
	cfg := &Config{
		Logger:  hclog.NewNullLogger(),
		Options: instance.Options{Endpoints: []string{embedtest.New(t).Endpoint()}, Host: "one", Instance: Instance},
	}
	cfg.fill()
	client, err := instance.Open(t.Context(), cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	procs, err := proc.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics(nil)
	a, err := newAPI(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	hub := server.NewHub(source(client.Subscribe).relay, poolSource(client.SubscribePools).relay)
	hs := claims.New(claims.Config{Instance: Instance, Log: cfg.Logger, Procs: procs, Metrics: m.claims, Notify: publish(hub)})
	s := a.newSession(client, hs, procs, hub)
	a.session.Store(s)
	t.Cleanup(func() {
		hub.Close()
		s.holders.Leave()
		s.executors.Leave()
		if err := procs.Close(); err != nil {
			t.Error(err)
		}
		if err := client.Leave(); err != nil {
			t.Error(err)
		}
	})
	return a, s
}

// TestAReleaseFindsAClaimThatWasJustGranted stops a request between its grant and
// the time when its claim has a holder, and releases the claim.
func TestAReleaseFindsAClaimThatWasJustGranted(t *testing.T) {
	a, s := testSession(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	for what, byFence := range map[string]bool{"by its id": false, "by its fence": true} {
		t.Run(what, func(t *testing.T) {
			w, err := s.want(asAdmin(t), api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}}, false)
			if err != nil {
				t.Fatal(err)
			}
			ctx, wait, err := a.waits.enter(t.Context(), w.ID, w)
			if err != nil {
				t.Fatal(err)
			}
			claim, err := a.take(ctx, s, w, wait)
			if err != nil {
				t.Fatal(err)
			}
			seen(t, s, "mine")
			in := &releaseInput{ID: "mine"}
			if byFence {
				in.Fence = int64(claim.Fence())
			}
			short, cancel := context.WithTimeout(t.Context(), 5*releaseCheck)
			defer cancel()
			if _, err := a.releaseClaim(short, s, in); err == nil {
				t.Error("it is released before it has a holder")
			}
			done := make(chan error, 1)
			go func() {
				_, err := a.releaseClaim(asAdmin(t), s, in)
				done <- err
			}()
			s.holders.Add(claim, w.bind, nil)
			a.waits.leave(wait)
			if err := <-done; err != nil {
				t.Errorf("the release: %v", err)
			}
			if again, err := s.client.Lookup(t.Context(), "mine"); err != nil || again != nil {
				t.Errorf("it is held: %v, %v", again, err)
			}
		})
	}
}

// TestALateReleaseDoesNotWaitForALaterClaim is about one that names a fence, while
// another claim of the id waits.
func TestALateReleaseDoesNotWaitForALaterClaim(t *testing.T) {
	a, s := testSession(t)
	_, wait, err := a.waits.enter(t.Context(), "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.waits.leave(wait)
	if _, err := a.releaseClaim(asAdmin(t), s, &releaseInput{ID: "mine", Fence: 7}); err != nil {
		t.Error(err)
	}
	if why := a.waits.ended(wait); why != nil {
		t.Errorf("the later one was ended: %v", why)
	}
}

// seen waits until the view shows a claim as held.
func seen(t *testing.T, s *session, id string) {
	t.Helper()
	for {
		w, err := s.client.Why(t.Context(), id)
		if err == nil && w.Held != nil {
			return
		}
		if err != nil && problem.CodeOf(err) != problem.ClaimNotFound {
			t.Fatal(err)
		}
		select {
		case <-time.After(releaseCheck):
		case <-t.Context().Done():
			t.Fatal("never seen")
		}
	}
}

// The server finds out by its own clock that a claim is lost. Until etcd has ended the
// lease, or cannot be asked, the pools still show the claim as held.
func TestADeleteOfAClaimThatWasLostSucceedsWhileThePoolsStillShowIt(t *testing.T) {
	a, s := testSession(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	claim, err := s.client.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithID("mine")) // of no holder any more
	if err != nil {
		t.Fatal(err)
	}
	seen(t, s, "mine")
	s.hasEnded = func(id string, fence store.Fence) bool { return id == "mine" && fence == claim.Fence() }
	for _, fence := range []store.Fence{0, claim.Fence()} {
		if _, err := a.releaseClaim(asAdmin(t), s, &releaseInput{ID: "mine", Fence: int64(fence)}); err != nil {
			t.Errorf("fence %d: %v", fence, err)
		}
	}
}

func TestAProcessIsBoundByItsOwnUserOnly(t *testing.T) {
	for what, test := range map[string]struct {
		who   server.Peer
		tcp   bool
		owner uint32
		saved uint32
		want  problem.Code
	}{
		"its own user":            {server.Peer{Known: true, UID: 1000}, false, 1000, 1000, ""},
		"who may signal it still": {server.Peer{Known: true, UID: 1000}, false, 1001, 1000, ""},
		"who started it as root":  {server.Peer{Known: true, UID: 1000}, false, 1000, 0, ""},
		"root":                    {server.Peer{Known: true}, false, 1000, 1000, ""},
		"another user":            {server.Peer{Known: true, UID: 1001}, false, 1000, 1000, problem.Forbidden},
		"a user for root's":       {server.Peer{Known: true, UID: 1001}, false, 0, 0, problem.Forbidden},
		"nobody knows":            {server.Peer{}, false, 1000, 1000, problem.Invalid},
		"nobody knows, root's":    {server.Peer{}, false, 0, 0, problem.Invalid},
		"over TCP":                {server.Peer{}, true, 1000, 1000, problem.Invalid},
	} {
		err := checkOwner(test.who, !test.tcp, 12345, proc.Owner{Real: test.owner, Saved: test.saved})
		if (err == nil) != (test.want == "") || err != nil && problem.CodeOf(err) != test.want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The client of a claim without an id of its own does not know the id if it has not read
// the answer.
func TestAnUnreadAnswerWithdrawsAClaimOfAnUnknownID(t *testing.T) {
	a, s := testSession(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	request := func(status int, req api.ClaimRequest) {
		t.Helper()
		req.Pools = api.Slots{"db": 1}
		out, err := a.claim(asAdmin(t), s, &claimInput{async: true}, req)
		if err != nil || out.Status != status {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	a.ifUnread = func(_ context.Context, f func()) { f() }
	for range 10 {
		request(http.StatusCreated, api.ClaimRequest{})
		for s.holders.Count() > 0 {
			<-time.After(releaseCheck)
		}
	}
	request(http.StatusCreated, api.ClaimRequest{ID: "mine"}) // can be found
	for range 10 {
		request(http.StatusAccepted, api.ClaimRequest{})
	}
	a.waits.tasks.Wait()
	if c, err := s.client.Lookup(t.Context(), "mine"); err != nil || c == nil {
		t.Errorf("%v, %v", c, err)
	}
}

// A wait that begins while its id's others are checked was not checked itself.
func TestAReleaseEndsOnlyTheWaitsThatWereChecked(t *testing.T) {
	w := newWaits(nil)
	enter := func(by string) *wait {
		_, one, err := w.enter(t.Context(), "job", &wanted{by: by})
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	mine := enter("user:other")
	var theirs *wait
	caller := claims.Caller{Name: "user:mine", May: func(map[string]int) error {
		theirs = enter("user:theirs")
		w.leave(mine)
		return nil
	}}
	if ended, _, err := w.endID(t.Context(), caller, "job", problem.New(problem.ClaimCanceled, "released")); !ended || err != nil {
		t.Fatal(ended, err)
	}
	if w.ended(mine) == nil || w.ended(theirs) != nil {
		t.Errorf("%v, %v", w.ended(mine), w.ended(theirs))
	}
	w.leave(theirs)
}

func TestTheWaitsWithoutAConnectionAreBounded(t *testing.T) {
	w := newWaits(nil)
	defer w.tasks.Wait()
	end := make(chan struct{})
	defer close(end)
	enter := func(id string) error {
		_, check, _, _, err := w.enterAsync(t.Context(), &wanted{ClaimRequest: api.ClaimRequest{ID: id}}, func(_ context.Context, one *wait) {
			<-end
			w.leave(one)
		})
		if err == nil {
			w.leave(check)
		}
		return err
	}
	for i := range maxAsync / 2 {
		if err := enter(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := enter("more"); problem.CodeOf(err) != problem.TooManyRequests {
		t.Error(err)
	}
	if err := enter("0"); err != nil {
		t.Errorf("a request that is repeated: %v", err)
	}
}

// A claim that waits has a waiter in each of its pools.
func TestAWaitForManyPoolsCountsForEach(t *testing.T) {
	a, s := testSession(t)
	wide := api.Slots{}
	for i := range pool.MaxPools {
		wide[fmt.Sprint("db-", i)] = 1
	}
	for range maxWaiting / 2 / pool.MaxPools {
		if _, err := a.waits.waiting.EnterAs(server.KeyOf(asAdmin(t)), pool.MaxPools); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.claim(asAdmin(t), s, &claimInput{}, api.ClaimRequest{Pools: wide}); problem.CodeOf(err) != problem.TooManyRequests {
		t.Errorf("one more: %v", err)
	}
	w := newWaits(nil)
	defer w.tasks.Wait()
	end := make(chan struct{})
	defer close(end)
	for i := range maxAsync/2/pool.MaxPools + 1 {
		request := &wanted{ClaimRequest: api.ClaimRequest{ID: fmt.Sprint(i), Pools: wide}}
		_, check, _, _, err := w.enterAsync(t.Context(), request, func(_ context.Context, one *wait) {
			<-end
			w.leave(one)
		})
		if err == nil {
			w.leave(check)
		}
		if refused := problem.CodeOf(err) == problem.TooManyRequests; refused != (i == maxAsync/2/pool.MaxPools) {
			t.Fatalf("wait %d: %v", i, err)
		}
	}
}

func TestTheWaitsWithAConnectionAreBounded(t *testing.T) {
	a, s := testSession(t)
	for i := range maxWaiting {
		if _, err := a.waits.waiting.Enter([]string{"a", "b"}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.claim(asAdmin(t), s, &claimInput{}, api.ClaimRequest{Pools: api.Slots{"db": 1}})
	if want := "4096 requests for claims are open, which is the most that is allowed: try again later, or with Prefer: respond-async"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
