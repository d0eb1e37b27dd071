package inspect

import (
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// dispatched reads who dispatches after keys were put.
func dispatched(t *testing.T, ops ...*pb.RequestOp) (Dispatch, *Fleet, error) {
	t.Helper()
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	keys := store.NewKeys("/b/")
	r := Reader{Source: Snapshot{Backend: b, Keys: keys}, Runs: run.Store{Backend: b, Keys: keys}, Steps: step.Store{Backend: b, Keys: keys}}
	record := []byte(`{"v":1,"role":"sidecar","version":"1","pid":1,"since":"2026-01-02T03:04:05Z","token":"t"}`)
	ops = append(ops, store.Put(keys.Presence("one", "sidecar"), record, 0))
	if _, err := store.Commit(t.Context(), b, nil, ops...); err != nil {
		t.Fatal(err)
	}
	d, err := r.Dispatch(t.Context())
	f, failed := r.Fleet(t.Context())
	if failed != nil {
		t.Fatal(failed)
	}
	return d, f, err
}

func TestWhoDispatches(t *testing.T) {
	keys := wire.Keys{Keys: store.NewKeys("/b/")}
	since := time.Unix(1000, 0).UTC()
	role := wire.Role{Host: "one", Instance: "sidecar", Kind: wire.Server, Since: since}
	ends := role
	ends.Ends = true
	pending := func(name string) *pb.RequestOp { return store.Put(keys.Pending(name), wire.EncodeEmpty(), 0) }
	put := func(r wire.Role) *pb.RequestOp { return store.Put(keys.Role(), wire.EncodeRole(r), 0) }
	const alone = "claims wait in 2 pools, and no process dispatches: each instance serves its own waiting claims, every few seconds"
	for name, tc := range map[string]struct {
		put     []*pb.RequestOp
		is      bool
		warning string
	}{
		"nobody, and no claim waits": {},
		"nobody":                     {put: []*pb.RequestOp{pending("a"), pending("b")}, warning: alone},
		"one instance":               {put: []*pb.RequestOp{pending("a"), put(role)}, is: true},
		"one that ends":              {put: []*pb.RequestOp{pending("a"), pending("b"), put(ends)}, warning: alone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, f, err := dispatched(t, tc.put...)
				if err != nil || d.Warning() != tc.warning || f.Dispatch.Warning() != tc.warning {
					t.Errorf("%+v, %q, %v", d, d.Warning(), err)
				}
				want := time.Time{}
				if tc.is {
					want = since
					if *d.Dispatcher != (Dispatcher{"one", "sidecar", "server", since}) {
						t.Errorf("%+v", d.Dispatcher)
					}
				} else if d.Dispatcher != nil {
					t.Errorf("%+v", d.Dispatcher)
				}
				if len(f.Hosts) != 1 || !f.Hosts[0].DispatchesSince.Equal(want) {
					t.Errorf("%+v", f.Hosts)
				}
			})
		})
	}
}

// A role that can't be read is among what is unreadable, and hides no host.
func TestARoleThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := wire.Keys{Keys: store.NewKeys("/b/")}
		_, f, err := dispatched(t, store.Put(keys.Role(), []byte("?"), 0))
		if bad, other := Corrupt(err); len(bad) != 1 || other != nil {
			t.Errorf("%v", err)
		}
		if len(f.Hosts) != 1 || len(f.Bad) != 1 {
			t.Errorf("%+v, %v", f.Hosts, f.Bad)
		}
	})
}
