package server

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

// as is the context of a request of a user.
func as(ctx context.Context, name string) context.Context {
	return access.With(ctx, func() access.Identity { return access.Identity{Kind: access.User, Name: name} })
}

func newTestTurns(total, each, waiting int) *Turns {
	return NewTurns(TurnsConfig{Bound: "reads", What: "large reads", Todo: "try again later", Total: total, Each: each, Waiting: waiting, Patience: 30 * time.Second})
}

func mustEnter(t *testing.T, turns *Turns, name string) (leave func()) {
	t.Helper()
	leave, err := turns.Enter(as(t.Context(), name))
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

func TestNoIdentityWaitsForTheReadsOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTestTurns(3, 2, 64)
		var ends []func()
		for range 2 {
			ends = append(ends, mustEnter(t, turns, "alice"))
		}
		var mu sync.Mutex // guards order
		var order []string
		took := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
		}
		for range 10 {
			go func() {
				leave := mustEnter(t, turns, "alice")
				took("alice")
				leave()
			}()
		}
		synctest.Wait()
		ends = append(ends, mustEnter(t, turns, "bob")) // the ten of alice are before
		go func() {
			leave := mustEnter(t, turns, "bob") // no turn is free
			took("bob")
			leave()
		}()
		synctest.Wait()
		if alice, bob := turns.Of("user:alice"), turns.Of("user:bob"); alice != 2 || bob != 1 {
			t.Errorf("alice has %d turns and bob %d, want 2 and 1", alice, bob)
		}
		ends[2]() // bob's is the identity for which least is done
		synctest.Wait()
		if !slices.Equal(order, []string{"bob"}) {
			t.Errorf("turns came to %v, want bob", order)
		}
		ends[0]()
		ends[1]()
		synctest.Wait()
		if len(order) != 11 || len(turns.doing) != 0 || len(turns.queued) != 0 {
			t.Errorf("turns came to %v; doing %v, waiting %v", order, turns.doing, turns.queued)
		}
	})
}

func TestAReadThatWaitsTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTestTurns(8, 1, 2)
		leave := mustEnter(t, turns, "alice")
		defer leave()
		begun := time.Now()
		refused := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := turns.Enter(as(t.Context(), "alice"))
				refused <- err
			}()
		}
		synctest.Wait()
		if _, err := turns.Enter(as(t.Context(), "alice")); problem.CodeOf(err) != problem.TooManyRequests || time.Since(begun) != 0 {
			t.Errorf("a third read that waits: %v after %s, want too_many_requests immediately", err, time.Since(begun))
		}
		for range 2 {
			if err := <-refused; problem.CodeOf(err) != problem.TooManyRequests || time.Since(begun) != 30*time.Second {
				t.Errorf("%v after %s, want too_many_requests after 30s", err, time.Since(begun))
			}
		}
		ctx, cancel := context.WithCancel(as(t.Context(), "alice"))
		cancel()
		if _, err := turns.Enter(ctx); err != context.Canceled || len(turns.waiting) != 0 {
			t.Errorf("a client that has hung up: %v, and %d wait", err, len(turns.waiting))
		}
	})
}
