package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// lent is a lease that a test keeps.
type lent store.LeaseID

func (l lent) Acquire(time.Duration, int) (store.LeaseID, bool) { return store.LeaseID(l), true }
func (lent) Release(store.LeaseID, int)                         {}
func (lent) Valid(store.LeaseID) bool                           { return true }
func (lent) Suspect(...store.LeaseID)                           {}
func (lent) Trouble() error                                     { return nil }

// hosts starts engines on an etcd with a pool of a limit.
func hosts(t *testing.T, n, limit int) (engines []*Engine, b store.Backend, keys wire.Keys) {
	t.Helper()
	return hostsOn(t, embedtest.New(t), n, limit)
}

// hostsOn starts engines on a server, each with a backend around that of all.
func hostsOn(t *testing.T, server *embed.Server, n, limit int, around ...func(i int, b store.Backend) store.Backend) (engines []*Engine, b store.Backend, keys wire.Keys) {
	t.Helper()
	c := embedtest.Client(t, server)
	keys = wire.Keys{Keys: store.NewKeys("/b/")}
	s := pool.DefaultSpec()
	s.Limit = limit
	if _, err := store.Commit(t.Context(), c, nil, store.Put(keys.Spec("db"), wire.EncodeSpec(s, 0), 0)); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		var leases [2]store.LeaseID
		for k := range leases {
			id, _, err := c.Grant(t.Context(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			leases[k] = id
		}
		var own store.Backend = c
		for _, f := range around {
			own = f(i, own)
		}
		e := New(Config{
			Backend: own, Keys: keys.Keys, Host: fmt.Sprint("host-", i), Instance: "i", Kind: wire.Service,
			Leases: lent(leases[0]), WaiterLeases: lent(leases[1]), PollInterval: time.Second,
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = e.Run(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		if err := e.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	return engines, c, keys
}

func request(id string) *pool.Request {
	return &pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute}
}

// Clients of several hosts share a pool that is much too small: all get their turns, and never more than there are slots.
func TestHostsShareAFullPool(t *testing.T) {
	t.Parallel()
	const limit, clients, turns = 3, 6, 10
	engines, b, keys := hosts(t, 3, limit)
	var held, most atomic.Int64
	var g errgroup.Group
	for i, e := range engines {
		for k := range clients {
			g.Go(func() error {
				for n := range turns {
					c, err := e.Claim(t.Context(), request(fmt.Sprintf("c-%d-%d-%d", i, k, n)))
					if err != nil {
						return err
					}
					now := held.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					held.Add(-1)
					if err := e.Release(t.Context(), c); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := most.Load(); n > limit {
		t.Errorf("%d claims at a time hold slots of a pool of %d", n, limit)
	}
	for _, prefix := range []string{keys.Slots("db"), keys.DemandsAll("db")} {
		isEmpty(t, b, prefix)
	}
}

// isEmpty waits until nothing is left below a prefix: what was answered may be followed by the deletion of a demands key.
func isEmpty(t *testing.T, b store.Backend, prefix string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w := b.Watch(ctx, store.Prefix(prefix), 0)
	<-w.Started()
	for {
		all, err := store.ReadAll(ctx, b, prefix)
		if err != nil {
			t.Fatal(err)
		}
		if len(all.KVs) == 0 {
			return
		}
		if m := <-w.Messages(); m.Err != nil || ctx.Err() != nil {
			t.Fatalf("%d keys are left below %s", len(all.KVs), prefix)
		}
	}
}

// A claim that waits is granted when a slot of another host becomes free, without a poll.
func TestAWaitingClaimIsGrantedWhenAnotherHostReleases(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 1)
	first, err := engines[0].Claim(t.Context(), request("first"))
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() {
		c, err := engines[1].Claim(t.Context(), request("second"))
		if err == nil && c.Fence <= first.Fence {
			err = fmt.Errorf("fence %d after %d", c.Fence, first.Fence)
		}
		granted <- err
	}()
	if err := engines[0].Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if first.Err() != nil || !first.Freed() {
		t.Errorf("a released claim: %v, freed %v", first.Err(), first.Freed())
	}
}

// A claim that is given up leaves nothing in etcd, and the next one is granted.
func TestAClaimThatIsGivenUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 2, 1)
	first, err := engines[0].Claim(t.Context(), request("first"))
	if err != nil {
		t.Fatal(err)
	}
	r := request("second")
	r.Wait = 50 * time.Millisecond
	if _, err := engines[1].Claim(t.Context(), r); problem.CodeOf(err) != problem.ClaimTimeout {
		t.Errorf("%v, want %s", err, problem.ClaimTimeout)
	}
	isEmpty(t, b, keys.DemandsAll("db"))
	if err := engines[0].Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := engines[1].Claim(t.Context(), request("third")); err != nil {
		t.Error(err)
	}
}

// A claim of a pool that does not exist is refused, and so is one that can never be granted.
func TestImpossibleClaimsAreRefused(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 1, 2)
	for name, tc := range map[string]struct {
		slots map[string]int
		code  problem.Code
	}{
		"no such pool":   {map[string]int{"gpu": 1}, problem.PoolNotFound},
		"too many slots": {map[string]int{"db": 3}, problem.ExceedsLimit},
	} {
		r := request("one")
		r.Slots = tc.slots
		if _, err := engines[0].Claim(t.Context(), r); problem.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
}
