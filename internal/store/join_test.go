package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// drawParts draws parts of which each has keys of its own, and that share a condition.
func drawParts(t *rapid.T) (parts []store.Part) {
	for i := range rapid.IntRange(0, 6).Draw(t, "parts") {
		own := fmt.Sprint("own", i)
		p := store.Part{
			If:   []*pb.Compare{store.CreateEquals(rapid.SampledFrom([]string{"absent", "absent", "absent", "there"}).Draw(t, "absent"), 0)},
			Then: []*pb.RequestOp{store.Get("there"), store.Put(own, []byte("x"), 0)},
		}
		switch rapid.IntRange(0, 3).Draw(t, "also") {
		case 0:
			p.If = append(p.If, store.Present("there"), store.CreateEquals("there", 0))
		case 1:
			p.If, p.Then = nil, append(p.Then, store.Delete(fmt.Sprint("old", i)))
		case 2:
			p.Then = nil
		}
		parts = append(parts, p)
	}
	return parts
}

// state is an etcd in which something is there before.
func state(t *rapid.T) *storetest.Etcd {
	e := storetest.New(storetest.Options{})
	if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put("there", []byte("y"), 0), store.Put("old1", nil, 0)}}); err != nil {
		t.Fatal(err)
	}
	return e
}

// Flat, a transaction does what it does nested if no part fails, and nothing if one does.
func TestATransactionDoesTheSameInBothShapes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := drawParts(t)
		root := func() *pb.TxnRequest {
			r := &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("root", nil, 0)}}
			if rapid.Bool().Draw(t, "held") {
				r.Compare = []*pb.Compare{store.Present("there")}
			}
			return r
		}
		one, other := state(t), state(t)
		nested, flat := store.Join(root(), parts, false), store.Join(root(), parts, true)
		if nested.Flat || !flat.Flat {
			t.Fatalf("flat: %v, %v", nested.Flat, flat.Flat)
		}
		was, err := one.Txn(nested.Txn)
		if err != nil {
			t.Fatal(err)
		}
		before := other.Revision()
		is, err := other.Txn(flat.Txn)
		if err != nil {
			t.Fatal(err)
		}
		answers, failed := nested.Answers(was), 0
		for _, a := range answers {
			if !a.Succeeded {
				failed++
			}
		}
		switch {
		case is.Succeeded != (failed == 0):
			t.Fatalf("%d parts fail, and flat: %v", failed, is.Succeeded)
		case !is.Succeeded && other.Revision() != before:
			t.Fatal("something has happened of a transaction that failed")
		case !is.Succeeded:
			return
		}
		if diff := cmp.Diff(answers, flat.Answers(is), protocmp.Transform(), protocmp.IgnoreMessages(&pb.ResponseHeader{})); diff != "" {
			t.Fatalf("the answers differ:\n%s", diff)
		}
	})
}

func TestATransactionIsFlatWhileItFits(t *testing.T) {
	part := func(ops int) store.Part {
		p := store.Part{If: []*pb.Compare{store.CreateEquals("run", 0)}}
		for range ops {
			p.Then = append(p.Then, store.Get("k"))
		}
		return p
	}
	child := store.Part{Then: []*pb.RequestOp{store.Nest(&pb.TxnRequest{})}}
	for name, c := range map[string]struct {
		parts []store.Part
		want  bool
	}{
		"nothing":                  {nil, true},
		"as much as there may be":  {[]store.Part{part(64), part(63)}, true}, // one is the root's
		"one more":                 {[]store.Part{part(64), part(64)}, false},
		"what has a child":         {[]store.Part{part(1), child}, false},
		"conditions count once":    {slices.Repeat([]store.Part{part(0)}, 200), true},
		"conditions that are many": {many(129), false},
	} {
		t.Run(name, func(t *testing.T) {
			root := &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("root", nil, 0)}}
			own := proto.CloneOf(root)
			j := store.Join(root, c.parts, true)
			if j.Flat != c.want {
				t.Errorf("flat: %v", j.Flat)
			}
			if len(j.Txn.Compare) > 128 {
				t.Errorf("%d conditions", len(j.Txn.Compare))
			}
			if !proto.Equal(j.Txn.Success[0], own.Success[0]) {
				t.Error("what the root does of its own has moved")
			}
		})
	}
}

// many parts, each with a condition of its own.
func many(n int) (all []store.Part) {
	for i := range n {
		all = append(all, store.Part{If: []*pb.Compare{store.CreateEquals(fmt.Sprint("k", i), 0)}})
	}
	return all
}
