package sidecar

import (
	"context"
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// stillClock is a clock that a test moves.
type stillClock struct{ now time.Duration }

func (c *stillClock) Now() time.Duration { return c.now }

func TestAClaimOfWhichNobodyKnowsIsReleased(t *testing.T) {
	a, s := behindTheDoor(t)
	clock := &stillClock{now: time.Hour}
	s.holders.clock = clock
	limit := 10
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	untimed := DurationOf(0)
	type goneKey struct{}
	gone := context.WithValue(t.Context(), goneKey{}, true)
	a.ifUnread = func(ctx context.Context, f func()) {
		if ctx.Value(goneKey{}) != nil {
			f()
		}
	}
	ask := func(ctx context.Context, r ClaimRequest) {
		t.Helper()
		r.Pools = Slots{"db": 1}
		if _, err := a.claim(ctx, nil, r); err != nil {
			t.Fatal(err)
		}
	}
	released := func(ids ...string) {
		t.Helper()
		s.holders.look()
		s.holders.tasks.Wait()
		held := map[string]bool{}
		for id := range s.holders.byID {
			held[id] = true
		}
		for _, id := range ids {
			if held[id] {
				t.Errorf("%s is held after %s", id, clock.now-time.Hour)
			}
		}
		if want := 5 - len(ids); len(held) != want {
			t.Errorf("after %s %d are held, want %d: %v", clock.now-time.Hour, len(held), want, held)
		}
	}
	ask(gone, ClaimRequest{TTL: DurationOf(time.Hour)}) // without an id: it goes at once
	for _, id := range []string{"forgotten", "repeated", "renewed", "twice"} {
		ask(gone, ClaimRequest{ID: id, TTL: untimed})
	}
	ask(t.Context(), ClaimRequest{ID: "known", TTL: untimed})
	ask(gone, ClaimRequest{ID: "known", TTL: untimed}) // the holder knows it, though
	released()
	clock.now += keepUnheard - time.Second
	released()
	ask(t.Context(), ClaimRequest{ID: "repeated", TTL: untimed})
	ask(gone, ClaimRequest{ID: "twice", TTL: untimed})
	if _, err := s.holders.renew("renewed", RenewRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	clock.now += time.Second
	released("forgotten")
	clock.now += keepUnheard
	released("forgotten", "twice")
	clock.now += time.Hour
	released("forgotten", "twice")
}
