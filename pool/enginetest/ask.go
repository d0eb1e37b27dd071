package enginetest

import (
	"context"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// slots is so many slots of pool "db".
func slots(n int) map[string]int { return map[string]int{"db": n} }

// request makes a request of pool "db".
func request(id string, need map[string]int, change ...func(*pool.Request)) *pool.Request {
	r := &pool.Request{ID: id, Slots: need, Wait: 10 * time.Minute}
	for _, f := range change {
		f(r)
	}
	return r
}

func wait(d time.Duration) func(*pool.Request) { return func(r *pool.Request) { r.Wait = d } }

func priority(p int) func(*pool.Request) { return func(r *pool.Request) { r.Priority = p } }

// asked is a request that is under way or answered.
type asked struct {
	h      *host
	id     string
	cancel context.CancelFunc
	done   chan struct{} // closed with the answer
	claim  *pool.Claim
	err    error
	took   time.Duration
}

// ask asks for slots and does not wait for the answer.
func (h *host) ask(id string, need map[string]int, change ...func(*pool.Request)) *asked {
	ctx, cancel := context.WithCancel(context.Background())
	a := &asked{h: h, id: id, cancel: cancel, done: make(chan struct{})}
	req := request(id, need, change...)
	go func() {
		defer close(a.done)
		begun := time.Now()
		a.claim, a.err = h.Claim(ctx, req)
		a.took = time.Since(begun)
	}()
	h.w.Cleanup(func() { cancel(); <-a.done })
	return a
}

// queued asks for slots and returns when the claim is in the queue.
func (h *host) queued(id string, need map[string]int, change ...func(*pool.Request)) *asked {
	h.w.Helper()
	h.w.caughtUp()
	a := h.ask(id, need, change...)
	a.waits()
	return a
}

// take claims slots that must be granted without waiting.
func (h *host) take(id string, need map[string]int, change ...func(*pool.Request)) *pool.Claim {
	h.w.Helper()
	c, err := h.Claim(h.w.ctx(), request(id, need, append([]func(*pool.Request){wait(0)}, change...)...))
	if err != nil {
		h.w.Fatalf("%s: %v", id, err)
	}
	return c
}

// refuses checks the refusal of a claim that does not wait.
func (h *host) refuses(code problem.Code, id string, need map[string]int, change ...func(*pool.Request)) *problem.Error {
	h.w.Helper()
	c, err := h.Claim(h.w.ctx(), request(id, need, append([]func(*pool.Request){wait(0)}, change...)...))
	if c != nil {
		h.w.Fatalf("%s was granted, want %s", id, code)
	}
	return h.w.problem(err, code)
}

// release releases claims.
func (h *host) release(all ...*pool.Claim) {
	h.w.Helper()
	for _, c := range all {
		if err := h.Release(h.w.ctx(), c); err != nil {
			h.w.Fatalf("release %s: %v", c.ID, err)
		}
	}
}

// waits waits until the claim is in the queue.
func (a *asked) waits() {
	a.h.w.Helper()
	a.h.w.eventually(a.id+" waits", func() bool {
		if a.answered() {
			a.h.w.Fatalf("%s does not wait: %v", a.id, a.err)
		}
		return slices.Contains(a.h.w.queue(), a.id)
	})
}

func (a *asked) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// still checks that there is no answer.
func (a *asked) still() {
	a.h.w.Helper()
	if a.answered() {
		a.h.w.Fatalf("%s is answered: granted %t, %v", a.id, a.claim != nil, a.err)
	}
}

// got returns the claim when it is granted.
func (a *asked) got() *pool.Claim {
	a.h.w.Helper()
	a.answer()
	if a.err != nil {
		a.h.w.Fatalf("%s: %v", a.id, a.err)
	}
	return a.claim
}

// refused returns why it was refused, when it was.
func (a *asked) refused(code problem.Code) *problem.Error {
	a.h.w.Helper()
	a.answer()
	if a.claim != nil {
		a.h.w.Fatalf("%s was granted, want %s", a.id, code)
	}
	return a.h.w.problem(a.err, code)
}

func (a *asked) answer() {
	a.h.w.Helper()
	select {
	case <-a.done:
	case <-time.After(a.h.w.long()):
		a.h.w.Fatalf("%s is not answered", a.id)
	}
}

// hangUp ends the request as a client does that goes away.
func (a *asked) hangUp() {
	a.h.w.Helper()
	a.cancel()
	a.refused(problem.ClaimCanceled)
}

// ended waits until a claim has ended, and checks why.
func (w world) ended(c *pool.Claim, code problem.Code) {
	w.Helper()
	select {
	case <-c.Context().Done():
	case <-time.After(w.long()):
		w.Fatalf("%s has not ended", c.ID)
	}
	if problem.CodeOf(c.Err()) != code {
		w.Errorf("%s ended with %v, want %s", c.ID, c.Err(), code)
	}
}

// held checks that a claim has not ended.
func (w world) held(all ...*pool.Claim) {
	w.Helper()
	for _, c := range all {
		if c.Context().Err() != nil {
			w.Errorf("%s has ended: %v", c.ID, c.Err())
		}
	}
}
