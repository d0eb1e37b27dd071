package sidecar_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// follow collects the events of a stream, from its hello on.
func (r *running) follow(claim, pool string) <-chan api.Event {
	r.t.Helper()
	return r.followAs(r.client, claim, pool)
}

// followAs is follow for the caller behind a client.
func (r *running) followAs(by *client.Client, claim, pool string) <-chan api.Event {
	r.t.Helper()
	events := make(chan api.Event, 100)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(events)
		_ = by.Events(ctx, claim, pool, func(ev api.Event) error { // the channel reports the end
			events <- ev
			return nil
		})
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	hello := next(r.t, events, api.EventHello)
	if hello.Host != "one" || hello.Instance != "sidecar" || hello.Claim != claim {
		r.t.Errorf("hello: %+v", hello)
	}
	return events
}

// next returns the next event of a type, and passes over others; without a type, the next event.
func next(t testing.TB, events <-chan api.Event, kind string) api.Event {
	t.Helper()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				t.Fatalf("the stream ended without %s", kind)
			}
			if kind == "" || ev.Type == kind {
				return ev
			}
		case <-time.After(patience):
			t.Fatalf("no %s comes", kind)
		}
	}
}

func TestAStreamTellsWhatBecomesOfClaimsAndPools(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.pool("gpu", 1)
	all, db, gpu, mine := r.follow("", ""), r.follow("", "db"), r.follow("", "gpu"), r.follow("mine", "")
	r.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 1}})
	if ev := next(t, all, api.EventClaimGranted); ev.Claim != "first" || !slices.Equal(ev.Pools, []string{"db"}) {
		t.Errorf("%+v", ev)
	}
	next(t, db, api.EventPoolChanged)
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	if ev := next(t, mine, api.EventClaimWaiting); ev.Claim != "mine" || ev.Reason == "" {
		t.Errorf("%+v", ev)
	}
	if err := r.client.Release(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, all, api.EventClaimReleased); ev.Claim != "first" {
		t.Errorf("%+v", ev)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	next(t, mine, api.EventClaimGranted)
	if _, err := r.client.Revoke(t.Context(), "mine", false); err != nil {
		t.Fatal(err)
	}
	for _, events := range []<-chan api.Event{mine, all} {
		if ev := next(t, events, api.EventClaimEnded); ev.Claim != "mine" || ev.Code != string(problem.ClaimRevoked) || ev.Reason == "" {
			t.Errorf("%+v", ev)
		}
	}
	if err := r.client.Release(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	next(t, mine, api.EventClaimReleased)

	r.pool("gpu", 2)
	if ev := next(t, gpu, api.EventPoolChanged); !slices.Contains(ev.Pools, "gpu") { // with others, if all were read again
		t.Errorf("of another pool: %+v", ev)
	}
	late := r.follow("mine", "")
	if ev := next(t, late, api.EventClaimEnded); ev.Code != string(problem.ClaimRevoked) {
		t.Errorf("notified late: %+v", ev)
	}
}

// Two identities may use the same id, one after the other. The pools show whose claim an event is about.
func TestAStreamShowsNothingOfTheClaimOfAnotherWithTheSameID(t *testing.T) {
	var tokens access.Tokens
	for name, roles := range map[string][]string{"claims": {"claim"}, "views": {"claim", "view"}, "other": {"claim"}, "watches": {"view"}} {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r := single(t, func(c *sidecar.Config) {
		c.Policy, c.Tokens = access.Policy{}, func() access.Tokens { return tokens }
	})
	as := func(name string) *client.Client {
		c, err := client.Dial(r.base, name+"-secret")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	other, watches := as("other"), as("watches")
	for _, name := range []string{"own", "others"} {
		r.pool(name, 2)
	}
	turn := func(c *client.Client, id, pool string) {
		t.Helper()
		if _, err := c.Claim(t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{pool: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Release(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"claims", "views"} {
		t.Run(name, func(t *testing.T) {
			c, id := as(name), "job-of-"+name
			if _, err := c.Claim(t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{"own": 1}}); err != nil {
				t.Fatal(err)
			}
			mine, all := r.followAs(c, id, ""), r.followAs(watches, id, "")
			if err := c.Release(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			turn(other, id, "others")
			turn(c, id, "own")
			var seen []string
			for released := 0; released < 2; {
				ev := next(t, mine, "")
				if seen = append(seen, ev.Type+" "+strings.Join(ev.Pools, " ")); ev.Type == api.EventClaimReleased && ev.Pools[0] == "own" {
					released++
				}
			}
			want := []string{api.EventClaimReleased + " own", api.EventClaimGranted + " own", api.EventClaimReleased + " own"}
			if !slices.Equal(seen, want) {
				t.Errorf("its stream shows %q, want %q", seen, want)
			}
			// Who may view, and has no claim with the id, sees all of them.
			for _, pool := range []string{"own", "others", "own"} {
				if ev := next(t, all, api.EventClaimReleased); !slices.Equal(ev.Pools, []string{pool}) {
					t.Errorf("who may view sees %+v, want the release in pool %s", ev, pool)
				}
			}
		})
	}
}

func TestAWatchEndsWithItsClaim(t *testing.T) {
	r := single(t)
	r.pool("db", 3)
	watch := func(id string) <-chan error {
		done := make(chan error, 1)
		go func() { done <- r.client.Watch(t.Context(), id) }()
		return done
	}
	for _, id := range []string{"released", "revoked", "kept"} {
		r.claim(api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}})
	}
	released, revoked := watch("released"), watch("revoked")
	if err := r.client.Release(t.Context(), "released"); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil && problem.CodeOf(err) != problem.ClaimNotFound { // if it came late
		t.Error(err)
	}
	if _, err := r.client.Revoke(t.Context(), "revoked", true); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-revoked, problem.ClaimLost)
	wantCode(t, <-watch("nobody"), problem.ClaimNotFound)
	wantCode(t, <-watch("no id"), problem.Invalid)

	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- r.client.Watch(ctx, "kept") }()
	r = r.restarted()
	if _, err := r.client.Get(t.Context(), "kept"); err != nil {
		t.Error(err)
	}
	select {
	case err := <-kept:
		t.Errorf("the watch ended with the server: %v", err)
	default:
	}
	if _, err := r.client.Revoke(t.Context(), "kept", true); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-kept, problem.ClaimLost)
	cancel()
}

func TestAStreamIsAStreamOfEvents(t *testing.T) {
	r := single(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.base+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Error(got)
	}
	r.pool("db", 1)
	epoch := make([]byte, len("id: ")+8)
	if _, err := io.ReadFull(resp.Body, epoch); err != nil {
		t.Fatal(err)
	}
	want := "-0\nevent: hello\ndata: {\"type\":\"hello\",\"host\":\"one\",\"instance\":\"sidecar\"}\n\n" +
		string(epoch) + "-1\nevent: PoolChanged\ndata: {\"type\":\"PoolChanged\",\"pools\":[\"db\"]}\n\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	r.server.Stop(sidecar.Leave)
	rest, err := io.ReadAll(resp.Body)
	if want := "event: stopping\ndata: {\"type\":\"stopping\"}\n\n"; err != nil || string(rest) != want {
		t.Errorf("%q, %v", rest, err)
	}
}

// readStream returns what a stream begins with, up to a text.
func (r *running) readStream(path, lastEventID, until string) string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "GET", r.base+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	got := ""
	for b := make([]byte, 1); !strings.HasSuffix(got, until); got += string(b) {
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			r.t.Fatalf("%q: %v", got, err)
		}
	}
	return got
}

func TestAStreamGoesOnWhereItBroke(t *testing.T) {
	r := single(t)
	r.pool("db", 2)
	begin := r.readStream("/v1/events?claim=mine", "", "\n\n")
	id, _, _ := strings.Cut(strings.TrimPrefix(begin, "id: "), "\n")
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	r.claim(api.ClaimRequest{ID: "other", Pools: api.Slots{"db": 1}})
	if _, err := r.client.Revoke(t.Context(), "mine", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool {
		_, err := r.client.Get(t.Context(), "mine")
		return problem.CodeOf(err) == problem.ClaimLost
	})
	var types []string
	for line := range strings.Lines(r.readStream("/v1/events?claim=mine", id, "\"code\"")) {
		if kind, ok := strings.CutPrefix(strings.TrimSpace(line), "event: "); ok {
			types = append(types, kind)
		}
	}
	if want := []string{api.EventHello, api.EventClaimGranted, api.EventClaimEnded}; !slices.Equal(types, want) {
		t.Errorf("%v, want %v", types, want)
	}
	r = r.restarted()
	if got := r.readStream("/v1/events", id, "\"type\":\"lagged\""); strings.Contains(got, "PoolChanged") {
		t.Errorf("of another process: %q", got)
	}
}
