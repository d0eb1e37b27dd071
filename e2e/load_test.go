package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
)

// load is many users of several clients who claim and release without pause
// until they are stopped.
type load struct {
	t       testing.TB
	granted answers
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// user says what one user claims in each of its rounds, and how long it holds.
type user func(round int) (slots instance.Slots, hold time.Duration)

// start begins the load of n users a client. Their answers are kept.
func start(t testing.TB, clients []*instance.Client, n int, u user, opts ...instance.ClaimOption) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, stop: cancel}
	for _, c := range clients {
		for i := range n {
			l.wg.Go(func() {
				for round := i; ctx.Err() == nil; round++ {
					slots, hold := u(round)
					l.once(ctx, c, fmt.Sprintf("%s-%d-%d", c.Host(), i, round), slots, hold, opts)
				}
			})
		}
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) once(ctx context.Context, c *instance.Client, id string, slots instance.Slots, hold time.Duration, opts []instance.ClaimOption) {
	cl, err := c.Claim(ctx, slots, append(opts, instance.WithID(id))...)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return
	case instance.ErrorCode(err) == "exceeds_limit": // the limit is lower for now
		pause(ctx, time.Millisecond)
		return
	default:
		l.t.Errorf("claim %s: %v", id, err)
		l.stop()
		return
	}
	l.granted.note(cl)
	select {
	case <-time.After(hold):
	case <-cl.Context().Done():
		l.t.Errorf("%s: %v", cl, cl.Err())
	}
	if err := cl.Release(context.Background()); err != nil {
		l.t.Errorf("release %s: %v", cl, err)
	}
}

// end stops the users and waits until all have released what they held.
func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// more waits until so many more claims were granted.
func (l *load) more(n int) {
	l.t.Helper()
	want := l.granted.count() + n
	for begin := time.Now(); l.granted.count() < want; pause(l.t.Context(), time.Millisecond) {
		if time.Since(begin) > deadline {
			l.t.Fatalf("%d of %d claims within %s", n-(want-l.granted.count()), n, deadline)
		}
	}
}
