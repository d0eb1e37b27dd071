package sidecar

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/server"
)

// behindTheDoor is what a server has there, without a server.
func behindTheDoor(t *testing.T) (*api, *session) {
	t.Helper()
	cfg := &Config{
		Logger:  hclog.NewNullLogger(),
		Options: berth.Options{Endpoints: []string{embedtest.New(t).Endpoint()}, Host: "one", Instance: Instance},
	}
	cfg.fill()
	client, err := berth.Open(t.Context(), cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	procs, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics(nil)
	a, err := newAPI(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	hub := server.NewHub(source(client.Subscribe).relay)
	s := &session{client: client, holders: newHolders(cfg, hub, procs, m), hub: hub}
	a.session.Store(s)
	t.Cleanup(func() {
		hub.Close()
		s.holders.leave()
		if err := procs.close(); err != nil {
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
	a, s := behindTheDoor(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	for what, byFence := range map[string]bool{"by its id": false, "by its fence": true} {
		t.Run(what, func(t *testing.T) {
			w, err := s.want(t.Context(), ClaimRequest{ID: "mine", Pools: Slots{"db": 1}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, wait, err := a.waits.enter(t.Context(), w.ID)
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
				in.Fence = claim.Fence()
			}
			short, cancel := context.WithTimeout(t.Context(), 5*releaseLook)
			defer cancel()
			if _, err := a.releaseClaim(short, in); err == nil {
				t.Error("it is released before it has a holder")
			}
			done := make(chan error, 1)
			go func() {
				_, err := a.releaseClaim(t.Context(), in)
				done <- err
			}()
			s.holders.add(claim, w.bind, nil)
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
	a, _ := behindTheDoor(t)
	_, wait, err := a.waits.enter(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer a.waits.leave(wait)
	if _, err := a.releaseClaim(t.Context(), &releaseInput{ID: "mine", Fence: 7}); err != nil {
		t.Error(err)
	}
	if why := a.waits.ended(wait); why != nil {
		t.Errorf("the later one was ended: %v", why)
	}
}

// A holder that is heard of lives, also if what it says beside that can't be kept.
func TestARenewalThatCannotBeKeptIsOneAllTheSame(t *testing.T) {
	a, s := behindTheDoor(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.holders.files.dir = filepath.Join(file, "binds")
	if _, err := a.claim(t.Context(), nil, ClaimRequest{ID: "mine", Pools: Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	h, err := s.holders.find("mine")
	if err != nil {
		t.Fatal(err)
	}
	was := h.expires
	if _, err := s.holders.renew("mine", RenewRequest{TTL: DurationOf(time.Hour)}, nil); problem.CodeOf(err) != problem.StateUnwritable {
		t.Error(err)
	}
	if h.expires <= was || h.bind != byLease {
		t.Errorf("it ends at %s, as before, bound as %+v", h.expires, h.bind)
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
		case <-time.After(releaseLook):
		case <-t.Context().Done():
			t.Fatal("never seen")
		}
	}
}

// The server finds out by its own clock that a claim is lost. Until etcd has ended the
// lease, or cannot be asked, the pools still show the claim as held.
func TestADeleteOfAClaimThatWasLostSucceedsWhileThePoolsStillShowIt(t *testing.T) {
	a, s := behindTheDoor(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.claim(t.Context(), nil, ClaimRequest{ID: "mine", Pools: Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	h, err := s.holders.find("mine")
	if err != nil {
		t.Fatal(err)
	}
	s.holders.mu.Lock()
	h.why = problem.New(problem.ClaimLost, "the lease has ended")
	s.holders.drop(h)
	s.holders.mu.Unlock()
	for _, fence := range []int64{0, h.claim.Fence()} {
		if _, err := a.releaseClaim(t.Context(), &releaseInput{ID: "mine", Fence: fence}); err != nil {
			t.Errorf("fence %d: %v", fence, err)
		}
	}
}
