package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/revoke"
	"github.com/berthhq/berth/pool/wire"
)

// bubble is engines on one stand-in for etcd, in a bubble of package synctest.
type bubble struct {
	*testing.T
	b       *storetest.Backend
	keys    wire.Keys
	engines []*Engine
	by      []*storetest.Backend // of the engines
	kill    []func()             // them
	revoke.Revoker
}

// withEngines runs f with engines of hosts host-0 and so on, and a pool db of a limit.
func withEngines(t *testing.T, n, limit int, f func(w *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &bubble{T: t, b: storetest.NewBackend(storetest.New(storetest.Options{})), keys: wire.Keys{Keys: store.NewKeys("/b/")}}
		t.Cleanup(w.b.Close)
		w.Revoker = revoke.Revoker{Backend: w.b, Keys: w.keys.Keys}
		spec(t, w.b, w.keys, "db", limit)
		for i := range n {
			w.start(fmt.Sprint("host-", i))
		}
		f(w)
	})
}

// start starts an engine.
func (w *bubble) start(host string) { w.startOn(host, wire.Service, nil) }

// startOn starts an engine of a kind of process, with another backend around its own.
func (w *bubble) startOn(host string, kind wire.Kind, around func(store.Backend) store.Backend) {
	w.Helper()
	by := w.b.Peer()
	var backend store.Backend = by
	if around != nil {
		backend = around(by)
	}
	w.Cleanup(by.Close)
	var leases [2]store.LeaseID
	for k := range leases {
		id, _, err := by.Grant(w.Context(), 24*time.Hour)
		w.must(err)
		leases[k] = id
	}
	e := New(Config{
		Backend: backend, Keys: w.keys.Keys, Host: host, Instance: "i", Kind: kind,
		Leases: lent(leases[0]), WaiterLeases: lent(leases[1]), PollInterval: time.Second,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	kill := func() {
		cancel()
		<-done
	}
	w.Cleanup(kill)
	w.must(e.Ready(w.Context()))
	w.engines, w.by, w.kill = append(w.engines, e), append(w.by, by), append(w.kill, kill)
}

func (w *bubble) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// under returns how many keys have a prefix.
func (w *bubble) under(prefix string) int {
	w.Helper()
	all, err := store.ReadAll(w.Context(), w.b, prefix)
	w.must(err)
	return len(all.KVs)
}

// pass has time pass.
func (w *bubble) pass(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// question is a request that was not answered when it was made.
type question struct {
	w      *bubble
	cancel context.CancelFunc
	claim  *pool.Claim
	err    error
	done   chan struct{}
}

// ask asks for a claim, and returns when nothing happens any longer.
func (w *bubble) ask(e *Engine, r *pool.Request) *question {
	a := &question{w: w, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.Context())
	a.cancel = cancel
	go func() {
		defer close(a.done)
		a.claim, a.err = e.Claim(ctx, r)
	}()
	w.Cleanup(func() {
		cancel()
		<-a.done
	})
	w.pass(100 * time.Millisecond)
	return a
}

// waits checks that the request is not answered yet.
func (a *question) waits() {
	a.w.Helper()
	select {
	case <-a.done:
		a.w.Fatalf("it is answered: %v, %v", a.claim, a.err)
	default:
	}
}

// got returns the claim that was granted.
func (a *question) got() *pool.Claim {
	a.w.Helper()
	<-a.done
	a.w.must(a.err)
	return a.claim
}

// refused checks that the request was refused.
func (a *question) refused(code problem.Code) {
	a.w.Helper()
	<-a.done
	if problem.CodeOf(a.err) != code {
		a.w.Errorf("%v, %v, want %s", a.claim, a.err, code)
	}
}

// ended checks that a claim has ended.
func (w *bubble) ended(c *pool.Claim, code problem.Code) {
	w.Helper()
	<-c.Context().Done()
	if problem.CodeOf(c.Err()) != code {
		w.Errorf("claim %s has ended: %v, want %s", c.ID, c.Err(), code)
	}
}

// held checks that claims are held.
func (w *bubble) held(all ...*pool.Claim) {
	w.Helper()
	for _, c := range all {
		if c.Context().Err() != nil || c.Freed() {
			w.Errorf("claim %s has ended: %v", c.ID, c.Err())
		}
	}
}

// release releases a claim.
func (w *bubble) release(e *Engine, c *pool.Claim) {
	w.Helper()
	w.must(e.Release(w.Context(), c))
}

// empty checks that no claim has left anything.
func (w *bubble) empty() {
	w.Helper()
	w.pass(time.Second)
	for _, prefix := range []string{w.keys.Slots("db"), w.keys.DemandsAll("db"), w.keys.ID(""), w.keys.RevocationsAll()} {
		if n := w.under(prefix); n > 0 {
			w.Errorf("%d keys are left below %s", n, prefix)
		}
	}
}
