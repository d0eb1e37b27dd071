package registry_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// operators change the same pools at the same time: one does something within each request of another. Some answers are
// lost.
type operators struct {
	*rand.Rand
	store.Backend
	etcd   *storetest.Etcd
	keys   wire.Keys
	mutate func(*pb.TxnRequest)
	left   int            // changes that are still to be made
	by     []*pool.Change // what is being changed, the last within the one before; nil is a deletion
	made   int
	errs   []string
}

func newOperators(seed uint64, mutate func(*pb.TxnRequest)) *operators {
	etcd := storetest.New(storetest.Options{})
	o := &operators{
		Rand: rand.New(rand.NewPCG(seed, 2)), Backend: storetest.NewManualBackend(etcd), etcd: etcd,
		keys: wire.Keys{Keys: store.NewKeys("/b/")}, mutate: mutate, left: 25,
	}
	etcd.OnCommit(o.committed)
	return o
}

func (o *operators) errorf(format string, args ...any) {
	o.errs = append(o.errs, fmt.Sprintf(format, args...))
}

func (o *operators) happen() {
	for o.left > 0 && o.IntN(3) == 0 {
		o.operate()
	}
}

func (o *operators) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	o.happen()
	return o.Backend.Range(ctx, req)
}

func (o *operators) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	o.happen()
	if req = proto.CloneOf(req); o.mutate != nil {
		o.mutate(req)
	}
	resp, err := o.Backend.Txn(ctx, req)
	if o.IntN(15) == 0 {
		return nil, store.ErrUnavailable
	}
	return resp, err
}

// operate changes a pool, or has a claim wait for it.
func (o *operators) operate() {
	o.left--
	name, ch := []string{"a", "b"}[o.IntN(2)], &pool.Change{}
	switch x := o.IntN(10); {
	case x < 1:
		ch = nil
	case x < 4:
		ch.Limit = new([]int{-1, 0, 1, 2, 3}[o.IntN(5)])
	case x < 6:
		ch.Paused = new(o.IntN(2) == 0)
	case x < 7:
		ch.Limit, ch.Replace = new(o.IntN(3)), true
	case x < 8:
		ch.Limit, ch.ReserveAfter = new(o.IntN(3)), new(pool.NeverReserve)
	default:
		o.by = append(o.by, &pool.Change{})
		_, _ = o.Backend.Txn(context.Background(), &pb.TxnRequest{Success: []*pb.RequestOp{
			store.Put(o.keys.Demand(wire.DemandKey{Pool: name, Host: "one", Instance: "i", Name: o.IntN(3)}), nil, 0), store.Put(o.keys.Pending(name), nil, 0),
		}})
		o.by = o.by[:len(o.by)-1]
		return
	}
	o.by = append(o.by, ch)
	defer func() { o.by = o.by[:len(o.by)-1] }()
	if reg := (registry.Registry{Backend: o, Keys: o.keys.Keys}); ch == nil {
		_, _ = reg.Delete(context.Background(), name, nil)
	} else if _, err := reg.Set(context.Background(), name, *ch); err == nil {
		o.made++
	}
}

// committed checks what a change has made of the spec that was there.
func (o *operators) committed(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
	for _, ev := range events {
		name, is := strings.CutSuffix(strings.TrimPrefix(string(ev.Kv.Key), o.keys.Pools()), "/spec")
		switch ch := o.by[len(o.by)-1]; {
		case !is:
		case ch == nil && ev.Type == mvccpb.DELETE:
			for kv := range o.etcd.All(o.keys.Prefix()) {
				if key := string(kv.Key); key == o.keys.Pending(name) || strings.HasPrefix(key, o.keys.Pool(name)) {
					o.errorf("%d: %s is left of the deleted pool", rev, key)
				}
			}
		case ch == nil || ev.Type == mvccpb.DELETE:
			o.errorf("%d: %s is %s after %+v", rev, ev.Kv.Key, ev.Kv.Value, ch)
		default:
			o.changed(rev, ev, ch)
		}
	}
}

func (o *operators) changed(rev int64, ev *mvccpb.Event, ch *pool.Change) {
	was, counted, since := pool.DefaultSpec(), slots.Spec{}, rev
	if ev.PrevKv != nil {
		was, counted, _ = wire.DecodeSpec("k", ev.PrevKv.Value, ev.PrevKv.ModRevision)
	}
	base := was
	if ch.Replace {
		base = pool.DefaultSpec()
	}
	want := ch.Apply(base)
	if ev.PrevKv != nil && want.Limit == was.Limit {
		since = counted.Since
	}
	got, after, err := wire.DecodeSpec("k", ev.Kv.Value, rev)
	if err != nil || got != want || after.Since != since {
		o.errorf("%d: %+v is %+v with the limit of %d, want %+v of %d, %v", rev, was, got, after.Since, want, since, err)
	}
}

func (o *operators) run() *operators {
	for o.left > 0 {
		o.operate()
	}
	return o
}

func TestOperatorsChangeWhatOthersHaveMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		for seed := range uint64(600) {
			o := newOperators(seed, nil).run()
			if made += o.made; len(o.errs) > 0 {
				t.Fatalf("seed %d: %s", seed, strings.Join(o.errs, "\n"))
			}
		}
		if made < 3000 {
			t.Errorf("only %d changes were made", made)
		}
	})
}

// since changes the revision since which the limits hold that are put.
func since(f func(int64) int64) func(*pb.TxnRequest) {
	return func(t *pb.TxnRequest) {
		for _, op := range t.Success {
			if put := op.GetRequestPut(); put != nil {
				if s, counted, err := wire.DecodeSpec("k", put.Value, 1<<40); err == nil {
					put.Value = wire.EncodeSpec(s, f(counted.Since%(1<<40)))
				}
			}
		}
	}
}

func TestEveryPartOfAChangeIsNeeded(t *testing.T) {
	keeps := func(part string) func(*pb.TxnRequest) {
		return func(t *pb.TxnRequest) {
			t.Success = slices.DeleteFunc(t.Success, func(op *pb.RequestOp) bool {
				return strings.Contains(string(op.GetRequestDeleteRange().GetKey()), part)
			})
		}
	}
	for name, mutate := range map[string]func(*pb.TxnRequest){
		"the spec is as it was read":     func(t *pb.TxnRequest) { t.Compare = nil },
		"the limit holds since it was":   since(func(int64) int64 { return 0 }),
		"another limit holds since then": since(func(at int64) int64 { return max(at, 1) }),
		"demands are deleted":            keeps("/demands/"),
		"the pool is no longer pending":  keeps("/pending/"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for seed := range uint64(600) {
					if o := newOperators(seed, mutate).run(); len(o.errs) > 0 {
						t.Logf("seed %d: %s", seed, o.errs[0])
						return
					}
				}
				t.Error("no schedule has noticed it")
			})
		})
	}
}
