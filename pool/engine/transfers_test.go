package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// A claim that another instance takes over keeps its slots, on a lease of that instance and with a larger fencing token.
func TestAClaimIsTakenOver(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 2, 1)
	r := request("bridge")
	r.Bridge = true
	bridge := claim(t, engines[0], r)
	h := pool.TakeOver{ID: "bridge", Fence: bridge.Fence, Slots: r.Slots, Holder: pool.Holder{Run: "r"}}
	h.Extra.Then = []*pb.RequestOp{store.Put("/b/with", []byte("{}"), 0)}
	c, err := engines[1].TakeOver(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if c.Fence <= bridge.Fence || c.Lease == bridge.Lease || c.Holder.Host != "host-1" || c.Holder.Run != "r" || len(c.Extra) != 1 {
		t.Errorf("%+v after %+v", c, bridge)
	}
	if _, err := engines[1].TakeOver(t.Context(), h); problem.CodeOf(err) != problem.IDInUse {
		t.Errorf("again: %v", err)
	}
	h.ID = "other"
	if _, err := engines[1].TakeOver(t.Context(), h); problem.CodeOf(err) != problem.Precondition {
		t.Errorf("a claim that is not there: %v", err)
	}
	release(t, engines[1], c)
	isEmpty(t, b, keys.Slots("db"))
}

// A combined release happens with its writes, or not at all.
func TestACombinedReleaseHappensWithItsWrites(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 1)
	e := engines[0]
	c := claim(t, e, request("one"))
	x := store.Extra{If: []*pb.Compare{store.CreateEquals("/b/absent", 1)}, Then: []*pb.RequestOp{store.Put("/b/with", []byte("{}"), 0)}}
	asked := false
	if _, err := e.ReleaseWith(t.Context(), c, x, nil, func() { asked = true }); !errors.Is(err, store.ErrChanged) || !asked || c.Err() != nil || c.Freed() {
		t.Errorf("a condition that does not hold: %v, asked %v, ended %v, freed %v", err, asked, c.Err(), c.Freed())
	}
	x.If[0] = store.CreateEquals("/b/absent", 0)
	places := pool.NewPlaces(1)
	place := places.New()
	place.Take()
	rev, err := e.ReleaseWith(t.Context(), c, x, place, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := store.ReadAll(t.Context(), b, "/b/with")
	if err != nil || len(all.KVs) != 1 || all.KVs[0].ModRevision != rev {
		t.Errorf("released in revision %d: %+v, %v", rev, all.KVs, err)
	}
	if !c.Freed() || places.Free() != 1 {
		t.Errorf("freed %v, %d places free", c.Freed(), places.Free())
	}
	isEmpty(t, b, keys.Slots("db"))
	if _, err := e.ReleaseWith(t.Context(), c, x, nil, nil); !errors.Is(err, pool.ErrNotCombined) {
		t.Errorf("a claim that has ended: %v", err)
	}
	x.Leased = x.Then
	if _, err := e.ReleaseWith(t.Context(), c, x, nil, nil); problem.CodeOf(err) != problem.Internal {
		t.Errorf("a write on a lease: %v", err)
	}
}

// A claim that is released by itself while a combined release is under way is released in any case.
func TestAReleaseFollowsACombinedOneThatFails(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 1)
	e := engines[0]
	c := claim(t, e, request("one"))
	released := make(chan error, 1)
	x := store.Extra{If: []*pb.Compare{store.CreateEquals("/b/absent", 1)}}
	if _, err := e.ReleaseWith(t.Context(), c, x, nil, func() { go func() { released <- e.Release(t.Context(), c) }() }); !errors.Is(err, store.ErrChanged) {
		t.Error(err)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
	isEmpty(t, b, keys.Slots("db"))
}

// The end of a step, the release of its slots and the take of the next step, which is asked for when the release is queued, are
// one transaction, though the worker has several goroutines on the way and a place for one step only.
func TestAStepEndsAndTheNextBeginsInOneTransaction(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 1)
	e := engines[0]
	places := pool.NewPlaces(1)
	step := func(n int) *pool.Request {
		r := request(fmt.Sprint("step-", n))
		r.Wait, r.Place = time.Minute, places.New()
		return r
	}
	r := step(0)
	held := claim(t, e, r)
	together := 0
	const steps = 50
	for n := range steps {
		next, hop := step(n+1), make(chan struct{})
		claimed := make(chan *pool.Claim, 1)
		rev, err := e.ReleaseWith(t.Context(), held, store.Extra{Then: []*pb.RequestOp{store.Put("/b/end", nil, 0)}}, r.Place, func() {
			go func() { close(hop) }()
			go func() {
				<-hop
				c, err := e.Claim(t.Context(), next)
				if err != nil {
					t.Error(err)
				}
				claimed <- c
			}()
		})
		if err != nil {
			t.Fatal(err)
		}
		if held, r = <-claimed, next; held.Fence.Revision() == rev {
			together++
		}
	}
	if places.Free() != 0 {
		t.Error("the last step has no place")
	}
	if t.Logf("%d of %d", together, steps); together == 0 { // all of them on a machine that is not busy
		t.Error("no step began in the transaction in which the one before has ended")
	}
	release(t, e, held)
	isEmpty(t, b, keys.Slots("db"))
}
