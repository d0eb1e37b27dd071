package store_test

import (
	"errors"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

const guardKey = "/b/guards/h/i"

// guarded is a write of something under a guard.
func guarded(g *store.Guard, what string) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{g.Compare()},
		Success: []*pb.RequestOp{store.Put(what, []byte("x"), 0), g.Put()},
		Failure: []*pb.RequestOp{g.Get()},
	}
}

// txner is a testing.T or a rapid.T.
type txner interface {
	Helper()
	Fatal(args ...any)
}

func do(t txner, e *storetest.Etcd, req *pb.TxnRequest) *pb.TxnResponse {
	t.Helper()
	resp, err := e.Txn(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// fenceWrites fences earlier writes as an instance does, and returns in how many tries.
func fenceWrites(t txner, e *storetest.Etcd, g *store.Guard) (tries int) {
	t.Helper()
	for tries = 1; tries < 10; tries++ {
		if g.Answer(do(t, e, g.FenceTxn())) {
			return tries
		}
	}
	t.Fatal("earlier writes can't be fenced")
	return 0
}

func has(e *storetest.Etcd, key string) bool {
	for range e.All(key) {
		return true
	}
	return false
}

func TestNoEarlierWriteHappensAfterTheFence(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	if tries := fenceWrites(t, e, &g); tries != 1 {
		t.Errorf("a new instance fenced in try %d", tries)
	}
	late := guarded(&g, "late")
	fenceWrites(t, e, &g)
	resp := do(t, e, late)
	if resp.Succeeded || has(e, "late") {
		t.Fatal("a write from before the fence has happened")
	}
	now := do(t, e, guarded(&g, "now"))
	if !now.Succeeded || !has(e, "now") {
		t.Fatal("a write from after the fence has not happened")
	}
}

func TestAFenceFindsAWriteWhoseResponseWasLost(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	fenceWrites(t, e, &g)
	do(t, e, guarded(&g, "unheard")) // its answer is lost
	if tries := fenceWrites(t, e, &g); tries != 2 {
		t.Errorf("fenced in try %d, want the first to find the write", tries)
	}
	if !do(t, e, guarded(&g, "next")).Succeeded {
		t.Error("the next write has not happened")
	}
}

func TestEachWriteEndsTheOnesBefore(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	fenceWrites(t, e, &g)
	first := guarded(&g, "first")
	second := do(t, e, guarded(&g, "second"))
	g.Committed(second.Header.Revision)
	if do(t, e, first).Succeeded {
		t.Error("a write has happened after a later one")
	}
	if !do(t, e, guarded(&g, "third")).Succeeded {
		t.Error("the write after one that was answered has not happened")
	}
}

func TestAnInstanceFindsTheGuardOfItsEarlierLife(t *testing.T) {
	e := storetest.New(storetest.Options{})
	before := store.NewGuard(guardKey)
	fenceWrites(t, e, &before)
	late := guarded(&before, "late")
	now := store.NewGuard(guardKey)
	if tries := fenceWrites(t, e, &now); tries != 2 {
		t.Errorf("fenced in try %d, want the first to find the guard", tries)
	}
	if do(t, e, late).Succeeded {
		t.Error("a write of the earlier life has happened")
	}
}

func TestAGuardThatAnotherProcessTookIsForeign(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	fenceWrites(t, e, &g)
	other := guarded(&g, "a")
	other.Compare = append(other.Compare, store.Present("missing"))
	if resp := do(t, e, other); resp.Succeeded || g.Foreign(resp) {
		t.Errorf("another compare failed, and the guard counts as foreign: %v", resp)
	}
	do(t, e, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(guardKey)}}) // a sweeper
	if resp := do(t, e, guarded(&g, "b")); resp.Succeeded || !g.Foreign(resp) {
		t.Errorf("the guard is gone, and does not count as foreign: %v", resp)
	}
	fenceWrites(t, e, &g)
	if resp := do(t, e, guarded(&g, "c")); !resp.Succeeded {
		t.Error("the write after the second fence has not happened")
	}
}

func TestAFullEtcdIsFencedByADelete(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	e.SetSpace(storetest.SpaceFull)
	if !g.Answer(do(t, e, g.DeleteFenceTxn())) || g.Placed() {
		t.Fatal("an instance without a guard is not fenced, or has put one")
	}
	e.SetSpace(storetest.SpaceFree)
	fenceWrites(t, e, &g)
	if !g.Placed() {
		t.Error("a fence has put no guard")
	}
	late := guarded(&g, "late")
	e.SetSpace(storetest.SpaceFull)
	if _, err := e.Txn(g.FenceTxn()); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("a full etcd takes a put: %v", err)
	}
	if !g.Answer(do(t, e, g.DeleteFenceTxn())) {
		t.Fatal("earlier writes are not fenced")
	}
	if has(e, guardKey) {
		t.Error("the guard is still there")
	}
	e.SetSpace(storetest.SpaceFree)
	if do(t, e, late).Succeeded {
		t.Error("a write from before the fence has happened")
	}
	fenceWrites(t, e, &g)
	if !do(t, e, guarded(&g, "now")).Succeeded {
		t.Error("a write from after the fence has not happened")
	}
}

// flight is a write in flight, and whether a later fence has succeeded.
type flight struct {
	what     string
	txn      *pb.TxnRequest
	resolved bool
}

// TestNoInterleavingLetsASettledWriteHappen draws lives of an instance on an
// etcd that is full now and then, whose writes arrive late or never, and whose
// answers are lost.
func TestNoInterleavingLetsAResolvedWriteHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := storetest.New(storetest.Options{})
		g := store.NewGuard(guardKey)
		open := true // nothing may be sent before the fence succeeds
		full := false
		var flights []*flight
		var n int
		arrive := func(f *flight) (*pb.TxnResponse, error) {
			resp, err := e.Txn(f.txn)
			if err == nil && resp.Succeeded && f.resolved {
				t.Fatalf("%s has happened after it was resolved", f.what)
			}
			return resp, err
		}
		resolve := func() {
			fence := g.FenceTxn()
			if full {
				fence = g.DeleteFenceTxn()
			}
			if rapid.IntRange(0, 3).Draw(t, "fence is lost") == 0 {
				flights = append(flights, &flight{what: "fence", txn: fence})
				return // it is tried again
			}
			if resp, err := e.Txn(fence); err == nil && g.Answer(resp) {
				open = false
				for _, f := range flights {
					// A fence of ours that comes late fences nothing, and does no harm.
					f.resolved = f.what != "fence"
				}
			}
		}
		send := func() {
			n++
			f := &flight{what: fmt.Sprint("write ", n), txn: guarded(&g, fmt.Sprint("w", n))}
			if rapid.Bool().Draw(t, "under way") {
				flights = append(flights, f)
				open = true
				return
			}
			switch resp, err := arrive(f); {
			case err != nil: // outcome unknown: a full etcd may have carried it out
				open = true
			case resp.Succeeded:
				g.Committed(resp.Header.Revision)
			default:
				open = g.Foreign(resp)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"act": func(*rapid.T) {
				if open || !g.Placed() {
					resolve()
				} else {
					send()
				}
			},
			"arrive": func(t *rapid.T) {
				if len(flights) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "which")
				f := flights[i]
				flights = append(flights[:i], flights[i+1:]...)
				_, _ = arrive(f) // the answer does not matter
			},
			"space": func(t *rapid.T) {
				s := storetest.Space(rapid.IntRange(0, 2).Draw(t, "space"))
				full = s != storetest.SpaceFree
				e.SetSpace(s)
			},
			"sweep": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					do(t, e, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(guardKey)}})
				}
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					g, open = store.NewGuard(guardKey), true
				}
			},
		})
	})
}
