package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// rig is instances with their leases on a stand-in for etcd, in a bubble.
type rig struct {
	*testing.T
	root *storetest.Backend
	keys wire.Keys
}

// inBubble runs a test in a bubble, with a pool of a limit.
func inBubble(t *testing.T, limit int, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, root: storetest.NewBackend(storetest.New(storetest.Options{})), keys: wire.Keys{Keys: store.NewKeys("/b/")}}
		t.Cleanup(r.root.Close)
		s := pool.DefaultSpec()
		s.Limit = limit
		r.must(store.Commit(t.Context(), r.root, nil, store.Put(r.keys.Spec("db"), wire.EncodeSpec(s, 0), 0)))
		f(r)
	})
}

func (r *rig) must(_ any, err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// left returns how many keys there are below a prefix.
func (r *rig) left(prefix string) int {
	r.Helper()
	all, err := store.ReadAll(r.Context(), r.root, prefix)
	r.must(nil, err)
	return len(all.KVs)
}

// instance is an engine with its leases.
type instance struct {
	*Engine
	r       *rig
	by      *storetest.Backend
	keeper  *lease.Keeper
	waiters *lease.Keeper
	stopRun func() // ends Run
	end     func() // ends all of it, as a process that is killed
}

// clock is the time of the bubble.
type clock struct{ start time.Time }

func (c clock) Now() time.Duration { return time.Since(c.start) }

// start starts an instance, or the next process of one that has ended.
func (r *rig) start(host string) *instance {
	r.Helper()
	i := &instance{r: r, by: r.root.Peer()}
	at := clock{time.Now()}
	config := func() lease.Config {
		return lease.Config{
			Backend: i.by, Keys: r.keys.Keys, Host: host, Instance: "i", Token: "t", Clock: at,
			OnReady:   func() { i.LeasesReady() },
			OnLost:    func(id store.LeaseID, cause error) { i.LeaseLost(id, cause) },
			OnRenewed: func(id store.LeaseID, again bool) { i.LeaseRenewed(id, again) },
		}
	}
	presence := config()
	presence.Token = ""
	i.keeper, i.waiters = lease.NewKeeper(config()), lease.NewKeeper(presence)
	i.Engine = New(Config{
		Backend: i.by, Keys: r.keys.Keys, Host: host, Instance: "i", Kind: wire.Service,
		Leases: i.keeper, WaiterLeases: i.waiters, PollInterval: time.Second,
	})
	ctx, cancel := context.WithCancel(context.Background())
	of, stopRun := context.WithCancel(ctx)
	var parts, engine sync.WaitGroup
	i.stopRun = func() { stopRun(); engine.Wait() }
	i.end = sync.OnceFunc(func() {
		cancel()
		engine.Wait()
		parts.Wait()
		i.by.Close()
	})
	r.Cleanup(i.end)
	left, err := lease.Resume(r.Context(), i.by, at, r.keys.Keys, host, "i", "t")
	r.must(nil, err)
	for _, l := range left {
		i.Adopt(l.ID)
	}
	engine.Go(func() { _ = i.Run(of) })
	r.must(nil, i.Ready(r.Context()))
	claims, err := i.Adopted(r.Context())
	r.must(nil, err)
	on := map[store.LeaseID]int{}
	for _, c := range claims {
		on[c.Lease] += c.Keys
	}
	for _, l := range left {
		i.keeper.Adopt(l, on[l.ID])
	}
	parts.Go(func() { _ = i.keeper.Run(ctx) })
	parts.Go(func() { _ = i.waiters.Run(ctx) })
	return i
}

// take claims slots that are free.
func (i *instance) take(id string, n int) *pool.Claim {
	i.r.Helper()
	req := request(id)
	req.Slots["db"] = n
	c, err := i.Claim(i.r.Context(), req)
	i.r.must(nil, err)
	return c
}

// asked is a claim that is asked for.
type asked struct {
	r      *rig
	result chan outcome
}

// ask asks for a claim that has to wait.
func (i *instance) ask(id string, n int) *asked {
	i.r.Helper()
	a := &asked{i.r, make(chan outcome, 1)}
	req := request(id)
	req.Slots["db"], req.Wait = n, time.Hour
	go func() {
		c, err := i.Claim(context.Background(), req)
		a.result <- outcome{c, err}
	}()
	time.Sleep(time.Second)
	return a
}

// got returns the claim.
func (a *asked) got() *pool.Claim {
	a.r.Helper()
	o := <-a.result
	a.r.must(nil, o.err)
	return o.claim
}

// waits checks that it is not answered yet.
func (a *asked) waits() {
	a.r.Helper()
	select {
	case o := <-a.result:
		a.r.Fatalf("it is answered: %v, %v", o.claim, o.err)
	default:
	}
}

// refused checks that it is refused.
func (a *asked) refused(code problem.Code) {
	a.r.Helper()
	if o := <-a.result; problem.CodeOf(o.err) != code {
		a.r.Errorf("%v, want %s", o.err, code)
	}
}

// isLost checks that a claim has ended against the will of its holder.
func (r *rig) isLost(c *pool.Claim) {
	r.Helper()
	if problem.CodeOf(c.Err()) != problem.ClaimLost {
		r.Errorf("claim %q has ended with: %v", c.ID, c.Err())
	}
}

// isHeld checks that claims are held.
func (r *rig) isHeld(all ...*pool.Claim) {
	r.Helper()
	for _, c := range all {
		if c.Context().Err() != nil {
			r.Errorf("claim %q has ended: %v", c.ID, c.Err())
		}
	}
}

func (i *instance) release(all ...*pool.Claim) {
	i.r.Helper()
	for _, c := range all {
		i.r.must(nil, i.Release(i.r.Context(), c))
	}
}

// slowWrites delays the transactions of the instance from now on.
func (i *instance) slowWrites(d time.Duration) {
	i.by.Inject(func(c storetest.Call) (f storetest.Fault) {
		if c.Op == storetest.OpTxn {
			f.Delay = d
		}
		return f
	})
}

// nothingLeft checks that nothing of claims is left.
func (r *rig) nothingLeft() {
	r.Helper()
	time.Sleep(time.Second)
	if slots, demands := r.left(r.keys.Slots("db")), r.left(r.keys.DemandsAll("db")); slots+demands > 0 {
		r.Errorf("%d keys of slots and %d of demands are left", slots, demands)
	}
}
