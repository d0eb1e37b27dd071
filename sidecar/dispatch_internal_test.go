package sidecar

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// Probes read etcd once in a second, and warn when nobody has dispatched for five.
func TestProbesShowWhoDispatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := wire.Keys{Keys: store.NewKeys("/b/")}
		reads := 0
		b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpTxn && len(c.Txn.Compare) == 0 && c.Txn.Success[0].GetRequestRange() != nil {
				reads++
			}
			return storetest.Fault{}
		})
		v := &dispatchView{reader: &inspect.Reader{Runs: run.Store{Backend: b, Keys: keys.Keys}}}
		check := func(is bool, warning string) {
			t.Helper()
			if by, w := v.read(t.Context()); (by != nil) != is || w != warning {
				t.Errorf("%+v, %q", by, w)
			}
		}
		put := func(key string, value []byte) {
			if _, err := store.Commit(t.Context(), b, nil, store.Put(key, value, 0)); err != nil {
				t.Fatal(err)
			}
		}
		const alone = "claims wait in 1 pool, and no process dispatches: each instance serves its own waiting claims, every few seconds"
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, w := v.read(gone); w != "" { // a probe that has left does not spoil it for others
			t.Error(w)
		}
		put(keys.Pending("db"), wire.EncodeEmpty())
		time.Sleep(2 * time.Second)
		for range 49 {
			check(false, "")
			time.Sleep(100 * time.Millisecond)
		}
		check(false, "")
		time.Sleep(200 * time.Millisecond)
		check(false, alone)
		put(keys.Role(), wire.EncodeRole(wire.Role{Host: "one", Instance: "i", Kind: wire.Service, Since: time.Unix(1, 0)}))
		time.Sleep(2 * time.Second)
		check(true, "")
		if n := reads; n > 7 {
			t.Errorf("%d reads", n)
		}
		put(keys.Role(), []byte("?"))
		time.Sleep(2 * time.Second)
		if by, w := v.read(t.Context()); by != nil || w == "" {
			t.Errorf("%+v, %q", by, w)
		}
	})
}
