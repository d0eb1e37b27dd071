package store_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

func TestGuardsOfInstancesThatAreGoneAreDeletedAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := store.NewKeys("/b/")
		put := func(ops ...*pb.RequestOp) {
			t.Helper()
			if _, err := store.Commit(t.Context(), b, nil, ops...); err != nil {
				t.Fatal(err)
			}
		}
		guard := func(instance string) {
			g := store.NewGuard(keys.Guard("h", instance))
			put(g.Put())
		}
		put(store.Put(keys.Guard("h", "of-before"), []byte(`{"v":1}`), 0))
		guard("killed")
		guard("killed~demands")
		guard("seen")
		guard("seen~demands")
		guard("resumable")
		put(store.Put(keys.Presence("h", "seen"), []byte("{}"), 0))
		put(store.Put(keys.Lease("h", 7), []byte(`{"v":1,"token":"t","instance":"resumable","duration":"5m0s"}`), 0))
		left := func(want ...string) {
			t.Helper()
			s, err := store.ReadAll(t.Context(), b, keys.GuardsAll())
			if err != nil || len(s.KVs) != len(want) {
				t.Fatalf("%d guards are left, want %v, %v", len(s.KVs), want, err)
			}
			for i, kv := range s.KVs {
				if got := string(kv.Key); got != keys.Guard("h", want[i]) {
					t.Errorf("%s is left, want %s", got, want[i])
				}
			}
		}
		sweep := func(want int) {
			t.Helper()
			if n, err := store.SweepGuards(t.Context(), b, keys, "h"); err != nil || n != want {
				t.Errorf("%d guards were swept, want %d, %v", n, want, err)
			}
		}
		sweep(1)
		left("killed", "killed~demands", "resumable", "seen", "seen~demands")
		time.Sleep(59 * time.Minute)
		sweep(0)
		guard("young")
		time.Sleep(2 * time.Minute)
		sweep(2)
		left("resumable", "seen", "seen~demands", "young")

		b.Inject(func(c storetest.Call) storetest.Fault {
			return storetest.Fault{Drop: true, Err: store.ErrUnavailable}
		})
		if n, err := store.SweepGuards(t.Context(), b, keys, "h"); n != 0 || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("without etcd: %d, %v", n, err)
		}
	})
}

func TestASweptGuardLetsNoOlderWriteHappenAndIsPutAgain(t *testing.T) {
	e := storetest.New(storetest.Options{})
	g := store.NewGuard(guardKey)
	fenceWrites(t, e, &g)
	late := guarded(&g, "late")
	do(t, e, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(guardKey)}})
	resp := do(t, e, guarded(&g, "lively"))
	if resp.Succeeded || !g.Foreign(resp) {
		t.Fatal("an instance that lives does not notice that its guard was swept")
	}
	fenceWrites(t, e, &g)
	if !do(t, e, guarded(&g, "again")).Succeeded {
		t.Error("it can't write with its guard put again")
	}
	if do(t, e, late).Succeeded || has(e, "late") {
		t.Error("a write from before the sweep has happened")
	}
}
