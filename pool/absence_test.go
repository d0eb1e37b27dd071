package pool_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// bubble is a stand-in for etcd with engines on it, each through a client of its
// own, on a fake clock.
type bubble struct {
	t    *testing.T
	root *storetest.Backend
	keys store.Keys
	// wrap, if not nil, makes the backends of further engines.
	wrap func(store.Backend) store.Backend
}

// guest is an engine in a bubble.
type guest struct {
	*pool.Engine
	b      *bubble
	by     *storetest.Backend
	leases *plainLeases
}

func inBubble(t *testing.T, f func(t *testing.T, b *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, root: storetest.NewBackend(storetest.New(storetest.Options{})), keys: store.NewKeys("/b/")}
		t.Cleanup(b.root.Close)
		f(t, b)
	})
}

func (b *bubble) pool(limit int) {
	b.t.Helper()
	reg := registry.Registry{Backend: b.root, Keys: b.keys}
	if _, err := reg.Set(b.t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// engine starts an engine, and waits until it is ready if it can be.
func (b *bubble) engine(host string, prepare ...func(*storetest.Backend)) *guest {
	b.t.Helper()
	by := b.root.Peer()
	for _, f := range prepare {
		f(by)
	}
	leases := &plainLeases{t: b.t, b: b.root, by: map[time.Duration]store.LeaseID{}}
	var backend store.Backend = by
	if b.wrap != nil {
		backend = b.wrap(by)
	}
	e := pool.New(pool.Config{
		Backend: backend, Keys: b.keys, Host: host, Instance: "test",
		Leases: leases, WaiterLeases: forWaiters(b.t, b.root),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	b.t.Cleanup(func() { cancel(); <-done; by.Close() })
	synctest.Wait()
	return &guest{e, b, by, leases}
}

// ask claims in a goroutine of its own.
func (g *guest) ask(id string, n int, wait time.Duration) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		begin := time.Now()
		claim, err := g.Claim(context.Background(), &pool.Request{ID: id, Slots: db(n), Wait: wait})
		done <- answer{claim, err, time.Since(begin)}
	}()
	synctest.Wait()
	return done
}

type answer struct {
	claim *pool.Claim
	err   error
	took  time.Duration
}

func (b *bubble) got(a answer) *pool.Claim {
	b.t.Helper()
	if a.err != nil {
		b.t.Fatal(a.err)
	}
	return a.claim
}

func (b *bubble) release(g *guest, cl *pool.Claim) {
	b.t.Helper()
	if err := g.Release(b.t.Context(), cl); err != nil {
		b.t.Fatal(err)
	}
}

// keysUnder is how many keys there are.
func (b *bubble) keysUnder(prefix string) (n int) {
	b.root.Do(func(e *storetest.Etcd) {
		for range e.All(prefix) {
			n++
		}
	})
	return n
}

// sound checks the invariants, and that so many slots are held.
func (b *bubble) sound(held int) {
	b.t.Helper()
	r, err := pool.Read(b.t.Context(), b.root, b.keys)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, v := range r.Verify() {
		b.t.Errorf("%s: %s", v.Key, v.Problem)
	}
	if s := r.Pools(); len(s) != 1 || s[0].Claimed != held {
		b.t.Errorf("the pools are %+v, want %d slots held", s, held)
	}
}

func TestAnEngineIsReadyWhenEtcdIs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		e := b.engine("one", (*storetest.Backend).Down)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ready: %v", err)
		}
		if _, err := e.Pools(ctx); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("pools: %v", err)
		}
		a := <-e.ask("a", 1, 0)
		if problem.CodeOf(a.err) != problem.EtcdUnavailable {
			t.Errorf("a claim: %v", a.err)
		}
		e.by.Up()
		begin := time.Now()
		if err := e.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("ready %s after etcd", took)
		}
	})
}

func TestWhileEtcdIsAwayNothingIsLostAndWaitersWait(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		one, two := b.engine("one"), b.engine("two")
		held := b.got(<-one.ask("held", 1, 0))
		waits := two.ask("waits", 1, time.Hour)
		one.by.Down()
		two.by.Down()
		hasty := <-two.ask("hasty", 1, 0)
		if problem.CodeOf(hasty.err) == problem.EtcdUnavailable && hasty.took > 6*time.Second {
			t.Errorf("it took %s to say that etcd is away", hasty.took)
		}
		time.Sleep(3 * time.Second)
		hasty = <-two.ask("hastier", 1, 0)
		if problem.CodeOf(hasty.err) != problem.EtcdUnavailable || hasty.took < 4*time.Second || hasty.took > 6*time.Second {
			t.Errorf("after %s: %v", hasty.took, hasty.err)
		}
		released := make(chan error, 1)
		go func() { released <- one.Release(t.Context(), held) }()
		time.Sleep(time.Minute)
		if age, err := two.Age(t.Context()); err != nil || age < time.Minute {
			t.Errorf("its view is %s old, %v", age, err)
		}
		if len(waits)+len(released) > 0 {
			t.Fatal("something was answered without etcd")
		}
		one.by.Up()
		two.by.Up()
		if err := <-released; err != nil {
			t.Error(err)
		}
		a := <-waits
		b.got(a)
		if a.took > 75*time.Second {
			t.Errorf("it was served after %s", a.took)
		}
		b.sound(1)
	})
}

// fullReads counts the reads of all pools from now on.
func (g *guest) fullReads() *atomic.Int64 {
	var n atomic.Int64
	g.by.Inject(func(c storetest.Call) storetest.Fault {
		if c.Range != nil && string(c.Range.Key) == g.b.keys.Pools() && len(c.Range.RangeEnd) > 0 {
			n.Add(1)
		}
		return storetest.Fault{}
	})
	return &n
}

func TestAViewThatIsTooOldGrantsNothingAndCatchesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		one, two := b.engine("one"), b.engine("two")
		held := b.got(<-one.ask("held", 1, 0))
		waits := two.ask("waits", 1, time.Hour)
		time.Sleep(10 * time.Second) // the watches have delivered something by now
		reads := two.fullReads()
		two.by.Freeze()
		b.release(one, held)
		time.Sleep(10 * time.Second)
		if len(waits) > 0 {
			t.Error("it was answered from a view that knows nothing of the release")
		}
		two.by.Thaw()
		begin := time.Now()
		claim := b.got(<-waits)
		if took := time.Since(begin); took > store.StaleAfter {
			t.Errorf("the wake-up was made good after %s", took)
		}
		if n := reads.Load(); n != 0 {
			t.Errorf("all pools were read again %d times", n)
		}
		b.release(two, claim)
		b.sound(0)
	})
}

func TestAnEngineThatIsSlowForSecondsDoesNotReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(2)
		slow, busy := b.engine("slow"), b.engine("busy")
		slow.leases.slow.Store(int64(2500 * time.Millisecond))
		reads := slow.fullReads()
		for i := range 10 {
			id := fmt.Sprint(i)
			mine := slow.ask(id, 1, time.Minute)
			for range 5 { // of which its watch delivers while it is held up
				b.release(busy, b.got(<-busy.ask("busy"+id, 1, 0)))
				time.Sleep(500 * time.Millisecond)
			}
			b.release(slow, b.got(<-mine))
			time.Sleep(3 * time.Second)
		}
		if n := reads.Load(); n != 0 {
			t.Errorf("all pools were read again %d times", n)
		}
		b.sound(0)
	})
}

// grants reports whether a transaction has a put below the pools.
func (b *bubble) grants(c storetest.Call) bool {
	if c.Txn == nil {
		return false
	}
	return putsSlots(b.keys.Slots("db"), c.Txn)
}

func putsSlots(prefix string, t *pb.TxnRequest) bool {
	for _, op := range t.Success {
		if n := op.GetRequestTxn(); n != nil && putsSlots(prefix, n) {
			return true
		}
		if p := op.GetRequestPut(); p != nil && len(p.Key) > len(prefix) && string(p.Key[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

func TestAnAnswerThatIsLostIsNoClaimLost(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"the request is lost":                       {Drop: true},
		"the request is lost, and that is reported": {Drop: true, Err: store.ErrUnavailable},
		"the answer is lost":                        {LoseAnswer: true},
		"the answer is lost, and that is reported":  {LoseAnswer: true, Err: store.ErrUnavailable},
		"the request comes after it was given up":   {Delay: 3 * time.Second},
		"the request comes when all is resolved":    {Delay: time.Minute},
		"the answer says full, and it was done":     {LoseAnswer: true, Err: store.ErrNoSpace},
		"the answer says full, and it was not done": {Drop: true, Err: store.ErrNoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.pool(3)
				one, two := b.engine("one"), b.engine("two")
				var hit atomic.Bool
				one.by.Inject(func(c storetest.Call) storetest.Fault {
					if b.grants(c) && hit.CompareAndSwap(false, true) {
						return fault
					}
					return storetest.Fault{}
				})
				claim := b.got(<-one.ask("a", 2, time.Hour))
				other := b.got(<-two.ask("b", 1, time.Hour))
				b.sound(3)
				time.Sleep(2 * time.Minute) // whatever is late has come
				b.sound(3)
				if claim.Context().Err() != nil {
					t.Errorf("the holder got %v", claim.Err())
				}
				why, err := two.Why(t.Context(), "a")
				if err != nil || why.Held == nil || why.Held.Fence != claim.Fence {
					t.Errorf("etcd has %+v, %v, the holder fence %d", why.Held, err, claim.Fence)
				}
				b.release(one, claim)
				b.release(two, other)
				b.sound(0)
			})
		})
	}
}

func TestAReleaseWhoseAnswerIsLostIsDoneOnce(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"lost on its way":       {Drop: true},
		"lost on the way back":  {LoseAnswer: true},
		"late":                  {Delay: 5 * time.Second},
		"refused by a full one": {Drop: true, Err: store.ErrNoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.pool(1)
				one, two := b.engine("one"), b.engine("two")
				claim := b.got(<-one.ask("a", 1, 0))
				waits := two.ask("b", 1, time.Hour)
				var hit atomic.Bool
				one.by.Inject(func(c storetest.Call) storetest.Fault {
					if c.Op == storetest.OpTxn && hit.CompareAndSwap(false, true) {
						return fault
					}
					return storetest.Fault{}
				})
				b.release(one, claim)
				next := b.got(<-waits)
				time.Sleep(time.Minute)
				b.sound(1) // a late release touches nobody else's slot
				if next.Context().Err() != nil {
					t.Errorf("the next holder got %v", next.Err())
				}
				if claim.Err() != nil {
					t.Errorf("a release counts as a loss: %v", claim.Err())
				}
			})
		})
	}
}

func TestAClientThatHangsUpWhileEtcdIsAwayLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		e := b.engine("one")
		e.by.Inject(func(c storetest.Call) storetest.Fault {
			return storetest.Fault{LoseAnswer: b.grants(c)}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		claim, err := e.Claim(ctx, &pool.Request{ID: "a", Slots: db(1), Wait: time.Minute})
		if claim != nil || problem.CodeOf(err) != problem.ClaimCanceled {
			t.Errorf("%v, %v", claim, err)
		}
		time.Sleep(10 * time.Second) // it was granted, and is given back
		b.sound(0)
	})
}

func TestALeaseThatCanNotBeHadIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		e := pool.New(pool.Config{Backend: b.root, Keys: b.keys, Host: "one", Instance: "test", Leases: noLeases{}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = e.Run(ctx) }()
		defer func() { cancel(); <-done }()
		g := &guest{Engine: e, b: b, by: b.root}
		a := <-g.ask("a", 1, time.Minute)
		if problem.CodeOf(a.err) != problem.EtcdUnavailable || a.took != time.Minute || !errors.Is(a.err, errNoLease) {
			t.Errorf("after %s: %v", a.took, a.err)
		}
		b.sound(0)
	})
}

// noLeases has no leases to give.
type noLeases struct{}

var errNoLease = errors.New("grants are not what they were")

func (noLeases) Keeps(store.LeaseID) bool                         { return false }
func (noLeases) Acquire(time.Duration, int) (store.LeaseID, bool) { return 0, false }
func (noLeases) Release(store.LeaseID, int)                       {}
func (noLeases) Valid(store.LeaseID) bool                         { return false }
func (noLeases) Suspect(...store.LeaseID)                         {}
func (noLeases) Trouble() error                                   { return errNoLease }

// A client that creates a pool, or raises its limit, on one host may claim of it on
// another at once, though nothing of it was delivered there yet.
func TestARefusalWaitsForAViewThatKnowsThePools(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		e := b.engine("one")
		e.by.Freeze()
		b.pool(1)
		made := e.ask("a", 1, 0)
		e.by.Thaw()
		b.release(e, b.got(<-made))

		e.by.Freeze()
		b.pool(5)
		raised := e.ask("b", 5, 0)
		e.by.Thaw()
		b.release(e, b.got(<-raised))

		if a := <-e.ask("c", 6, 0); problem.CodeOf(a.err) != problem.ExceedsLimit {
			t.Errorf("more than the limit: %v", a.err)
		}
		b.sound(0)
	})
}

// A pool that is not there is refused at once, however old the view is.
func TestAnUnknownPoolIsRefusedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		e := b.engine("one")
		e.by.Freeze()
		a := <-e.ask("a", 1, time.Minute)
		if problem.CodeOf(a.err) != problem.PoolNotFound || a.took > time.Second {
			t.Errorf("%v after %s", a.err, a.took)
		}
		e.by.Thaw()
	})
}
