package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// bench is engines on a stand-in for etcd, each with a client of its own, and a pool of a limit.
type bench struct {
	*testing.T
	engines  []*Engine
	backends []*storetest.Backend
	keys     wire.Keys
	sent     []atomic.Int64 // transactions and reads of each
}

// onStandIn runs a test with so many engines in a bubble.
func onStandIn(t *testing.T, n, limit int, test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, keys: wire.Keys{Keys: store.NewKeys("/b/")}, sent: make([]atomic.Int64, n)}
		etcd := storetest.NewBackend(storetest.New(storetest.Options{ClusterID: 1}))
		defer etcd.Close()
		s := pool.DefaultSpec()
		s.Limit = limit
		if _, err := store.Commit(t.Context(), etcd, nil, store.Put(b.keys.Spec("db"), wire.EncodeSpec(s, 0), 0)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range n {
			var leases [2]store.LeaseID
			for k := range leases {
				leases[k], _, _ = etcd.Grant(t.Context(), 24*time.Hour)
			}
			own := etcd.Peer()
			e := New(Config{
				Backend: own, Keys: b.keys.Keys, Host: fmt.Sprint("host-", i), Instance: "i", Kind: wire.Service,
				Leases: lent(leases[0]), WaiterLeases: lent(leases[1]), PollInterval: time.Second,
			})
			b.engines, b.backends = append(b.engines, e), append(b.backends, own)
			b.fault(i, nil)
			go e.Run(ctx)
			defer func() {
				cancel()
				<-e.stopped
				own.Close()
			}()
			if err := e.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		test(b)
	})
}

// fault has faults happen to what an engine sends, and counts that.
func (b *bench) fault(i int, f func(storetest.Call) storetest.Fault) {
	b.backends[i].Inject(func(c storetest.Call) storetest.Fault {
		b.sent[i].Add(1)
		if f == nil {
			return storetest.Fault{}
		}
		return f(c)
	})
}

func (b *bench) space(s storetest.Space) { b.backends[0].Do(func(e *storetest.Etcd) { e.SetSpace(s) }) }

// take claims a slot.
func (b *bench) take(i int, id string) *pool.Claim {
	b.Helper()
	r := request(id)
	r.Wait = time.Hour
	c, err := b.engines[i].Claim(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bench) release(i int, c *pool.Claim) {
	b.Helper()
	if err := b.engines[i].Release(b.Context(), c); err != nil {
		b.Fatal(err)
	}
}

// waits claims a slot that is not free yet.
func (b *bench) waits(i int, id string) <-chan *pool.Claim {
	took := make(chan *pool.Claim, 1)
	go func() {
		r := request(id)
		r.Wait = time.Hour
		if c, err := b.engines[i].Claim(b.Context(), r); err == nil {
			took <- c
		}
	}()
	time.Sleep(200 * time.Millisecond) // its demand is put
	return took
}

// within waits for a claim so long.
func (b *bench) within(d time.Duration, c <-chan *pool.Claim) *pool.Claim {
	b.Helper()
	select {
	case cl := <-c:
		return cl
	case <-time.After(d):
		b.Fatalf("it is not granted within %s", d)
		return nil
	}
}

// hurried claims a slot without waiting, and returns the error.
func (b *bench) hurried(i int, id string) error {
	r := request(id)
	r.Wait = 0
	_, err := b.engines[i].Claim(b.Context(), r)
	return err
}

// In a full etcd claims are released, one that does not wait fails and says why, others wait, and all goes on when there is
// space again. Only then there is no trouble.
func TestAFullEtcdIsSurvived(t *testing.T) {
	for _, filling := range []bool{false, true} {
		t.Run(fmt.Sprint(filling), func(t *testing.T) {
			onStandIn(t, 2, 3, func(b *bench) {
				a, second, other := b.take(0, "a"), b.take(0, "b"), b.take(1, "c")
				queued := b.waits(1, "queued")
				if filling {
					b.space(storetest.SpaceFilling)
					b.release(0, second) // carried out, and refused
				}
				b.space(storetest.SpaceFull)
				waits := b.waits(0, "waits")
				if err := b.hurried(0, "hurried"); problem.CodeOf(err) != problem.EtcdFull {
					t.Errorf("a claim that does not wait: %v", err)
				}
				if err := b.engines[0].Trouble(); problem.CodeOf(err) != problem.EtcdFull {
					t.Errorf("trouble: %v", err)
				}
				b.release(0, a)
				b.release(1, other)
				time.Sleep(time.Minute)
				b.sent[0].Store(0)
				time.Sleep(time.Minute)
				if n := b.sent[0].Load(); n > 180 { // three a second
					t.Errorf("%d requests in a minute", n)
				}
				b.space(storetest.SpaceFree)
				synctest.Wait()
				time.Sleep(20 * time.Second)
				for name, c := range map[string]<-chan *pool.Claim{"queued": queued, "waits": waits} {
					select {
					case <-c:
					default:
						t.Errorf("claim %s still waits", name)
					}
				}
				for i, e := range b.engines {
					if err := e.Trouble(); err != nil {
						t.Errorf("host %d: %v", i, err)
					}
				}
			})
		})
	}
}

// A wait that ends while etcd is full ends with that.
func TestTroubleEndsAWait(t *testing.T) {
	for name, tc := range map[string]struct {
		fault storetest.Fault
		code  problem.Code
		text  string
	}{
		"full":    {storetest.Fault{Drop: true, Err: store.ErrNoSpace}, problem.EtcdFull, "etcd is full"},
		"away":    {storetest.Fault{Drop: true, Err: store.ErrUnavailable}, problem.EtcdUnavailable, "etcd"},
		"silent":  {storetest.Fault{Drop: true}, problem.EtcdUnavailable, "etcd"},
		"denied":  {storetest.Fault{Drop: true, Err: fmt.Errorf("%w: /b/guards/", store.ErrDenied)}, problem.EtcdDenied, "/b/guards/"},
		"no user": {storetest.Fault{Drop: true, Err: store.ErrNoLogin}, problem.EtcdUnavailable, "login"},
	} {
		t.Run(name, func(t *testing.T) {
			onStandIn(t, 1, 3, func(b *bench) {
				b.release(0, b.take(0, "a"))
				b.fault(0, func(c storetest.Call) storetest.Fault {
					if c.Op == storetest.OpTxn && (name != "full" || putsAnything(c)) {
						return tc.fault
					}
					return storetest.Fault{}
				})
				r := request("b")
				r.Wait = 20 * time.Second
				if _, err := b.engines[0].Claim(b.Context(), r); problem.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("a claim that waits: %v, want %s", err, tc.code)
				}
				if err := b.hurried(0, "c"); problem.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("a claim that does not wait: %v, want %s", err, tc.code)
				}
				b.fault(0, nil)
				time.Sleep(20 * time.Second)
				b.release(0, b.take(0, "d"))
				if err := b.engines[0].Trouble(); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// A claim that waits because no lease can be made for it says so.
func TestAClaimWithoutALeaseSaysWhyItWaits(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one := r.start("one")
		one.by.Inject(func(c storetest.Call) (f storetest.Fault) {
			if c.Op == storetest.OpGrant {
				f = storetest.Fault{Drop: true, Err: store.ErrDenied}
			}
			return f
		})
		a := one.ask("a", 1)
		why, err := one.Why(r.Context(), "a")
		r.must(nil, err)
		if !strings.HasPrefix(why.Reason.Text, "no lease could be made: ") {
			t.Errorf("it says %q", why.Reason.Text)
		}
		one.by.Inject(nil)
		one.release(a.got())
	})
}

func putsAnything(c storetest.Call) bool { return strings.Contains(c.Txn.String(), "request_put") }

// What etcd refuses again and again, or does not answer, is not sent in a tight loop: neither by a host with claims that
// wait, nor by the one that dispatches.
func TestADeadEtcdIsNotHammered(t *testing.T) {
	for name, err := range map[string]error{"away": store.ErrUnavailable, "denied": store.ErrDenied, "full": store.ErrNoSpace, "expired": store.ErrTokenExpired, "other": errors.New("unknown")} {
		t.Run(name, func(t *testing.T) {
			onStandIn(t, 2, 1, func(b *bench) {
				b.take(0, "a")
				b.waits(0, "b")
				b.waits(1, "c")
				for i := range b.engines {
					b.fault(i, func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: true, Err: err} })
				}
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				go b.engines[0].Claim(ctx, request("d"))
				time.Sleep(10 * time.Second)
				for i := range b.sent {
					b.sent[i].Store(0)
				}
				time.Sleep(time.Minute)
				for i := range b.sent {
					n := b.sent[i].Load()
					if t.Logf("host %d: %d requests in a minute", i, n); n > 180 { // three a second
						t.Errorf("host %d: %d requests in a minute", i, n)
					}
				}
			})
		})
	}
}

// A claim is granted also to a host whose watch is silent: it polls.
func TestASilentWatchDelaysAClaimByOnePoll(t *testing.T) {
	onStandIn(t, 2, 1, func(b *bench) {
		a := b.take(0, "a")
		first := b.waits(0, "first") // its host dispatches
		second := b.waits(1, "second")
		time.Sleep(2 * time.Second)
		b.backends[1].Freeze()
		b.release(0, a)
		held := b.within(5*time.Second, first)
		if _, err := store.Commit(b.Context(), b.backends[0], nil, store.DeleteAll(b.keys.DemandsAll("db"))); err != nil {
			b.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		b.release(0, held)
		b.within(6*time.Second, second)
	})
}

// A dispatcher whose watch is silent goes on when watches deliver again.
func TestADispatcherWithASilentWatchGoesOn(t *testing.T) {
	onStandIn(t, 2, 1, func(b *bench) {
		a := b.take(1, "a")
		second := b.waits(0, "second") // its host dispatches
		time.Sleep(2 * time.Second)
		b.backends[0].Freeze()
		b.release(1, a)
		time.Sleep(3 * time.Second)
		b.backends[0].Thaw()
		b.within(3*time.Second, second)
	})
}

// A real etcd that is full.
func TestARealEtcdThatIsFull(t *testing.T) {
	t.Parallel()
	s := embedtest.New(t)
	engines, b, keys := hostsOn(t, s, 2, 2)
	first, err := engines[0].Claim(t.Context(), request("first"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := engines[1].Claim(t.Context(), request("second"))
	if err != nil {
		t.Fatal(err)
	}
	embedtest.SetFull(t, s, true)
	r := request("hurried")
	r.Wait = 0
	if _, err := engines[0].Claim(t.Context(), r); problem.CodeOf(err) != problem.NoCapacity && problem.CodeOf(err) != problem.EtcdFull {
		t.Errorf("%v", err)
	}
	for i, c := range []*pool.Claim{first, second} {
		if err := engines[i].Release(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
	all, err := store.ReadAll(t.Context(), b, keys.Slots("db"))
	if err != nil || len(all.KVs) != 0 {
		t.Errorf("%d slots are held: %v", len(all.KVs), err)
	}
	r.ID = "hurried-2"
	if _, err := engines[1].Claim(t.Context(), r); problem.CodeOf(err) != problem.EtcdFull {
		t.Errorf("%v", err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := engines[0].Claim(t.Context(), request("third"))
		granted <- err
	}()
	embedtest.SetFull(t, s, false)
	if err := <-granted; err != nil {
		t.Error(err)
	}
}
