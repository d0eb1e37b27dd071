package pool_test

import (
	"context"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestAnEngineTakesAClaimOver(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	one, two := c.engine("one"), c.engine("two")
	kept := c.claim(one, "a", db(2), func(r *pool.Request) { r.Bridge = true })
	got, err := two.TakeOver(c.ctx(), pool.TakeOver{ID: "a", Slots: kept.Slots, Fence: kept.Fence, Holder: pool.Holder{Run: "nightly"}})
	if err != nil {
		t.Fatal(err)
	}
	<-kept.Context().Done()
	held, _ := c.read().Claims()
	if len(held) != 1 || held[0].Host != "two" || held[0].Run != "nightly" || held[0].Fence != got.Fence || held[0].Lease != got.Lease {
		t.Errorf("%+v, want %+v", held, got)
	}
	c.seen(got.Fence.Revision())
	space, err := one.Space(c.ctx())
	if err != nil || space.Fits(db(2)) || !space.Fits(db(1)) {
		t.Errorf("%+v, %v", space, err)
	}
	_, err = one.TakeOver(c.ctx(), pool.TakeOver{ID: "a", Slots: kept.Slots, Fence: kept.Fence})
	wantProblem(t, problem.Precondition, nil, err)
	c.release(two, got)
	c.empty()
}

// A canceled request takes nothing over.
func TestATakeOverEndsWithItsRequest(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	one, two := c.engine("one"), c.engine("two")
	kept := c.claim(one, "a", db(1), func(r *pool.Request) { r.Bridge = true })
	ctx, cancel := context.WithCancel(c.ctx())
	done := make(chan error, 1)
	go func() {
		_, err := two.TakeOver(ctx, pool.TakeOver{ID: "a", Slots: kept.Slots, Fence: kept.Fence + 1<<40}) // never seen
		done <- err
	}()
	cancel()
	wantProblem(t, problem.ClaimCanceled, nil, <-done)
	c.release(one, kept)
	c.empty()
}
