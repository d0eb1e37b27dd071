package sidecar_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool/wire"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// A restore of etcd brings claims back that were released: no client holds them here, and
// their lease is renewed for others.
func TestADeleteThatAnswers204HasFreedTheSlots(t *testing.T) {
	srv := embedtest.New(t)
	r := start(t, config(t, srv.Endpoint()))
	etcd := embedtest.Client(t, srv)
	keys := store.NewKeys(store.DefaultPrefix)
	r.pool("db", 10)
	r.claim(api.ClaimRequest{ID: "kept", Pools: api.Slots{"db": 1}})
	found, err := store.ReadAll(t.Context(), etcd, keys.Slots("db"))
	if err != nil || len(found.KVs) != 1 {
		t.Fatal(found, err)
	}
	value := fmt.Appendf(nil, `{"v":2,"claim":"old","record":{"pools":{"db":1},"holder":{"host":"one","instance":"sidecar"},"since":"2026-01-01T00:00:00Z"}}`)
	lease := store.LeaseID(found.KVs[0].Lease)
	for g := range 10 {
		key := wire.Keys{Keys: keys}.Number("db", g)
		if _, err := etcd.Txn(t.Context(), &pb.TxnRequest{
			Compare: []*pb.Compare{store.CreateEquals(key, 0)}, Success: []*pb.RequestOp{store.Put(key, value, lease)},
		}); err != nil {
			t.Fatal(err)
		}
		if r.claimed("db") > 1 {
			break
		}
	}
	eventually(t, "the claim is seen", func() bool { return r.claimed("db") > 1 })
	if got := r.raw(request{method: "DELETE", path: "/v1/claims/old"}); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	after, err := store.ReadAll(t.Context(), etcd, keys.Slots("db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range after.KVs {
		if kv.ModRevision > found.Revision {
			t.Errorf("the DELETE answered, and %s is held still", kv.Key)
		}
	}
	if len(after.KVs) == 0 {
		t.Error("the claim that is held is gone, too")
	}
}

// bindFilesOf are the names of the files that record what claims are bound to.
func bindFilesOf(r *running) (names []string) {
	r.t.Helper()
	all, err := filepath.Glob(filepath.Join(r.cfg.Options.StateDir, "sidecar", "binds", "*.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, path := range all {
		names = append(names, filepath.Base(path))
	}
	return names
}

func TestTheProcessOfAClaimThatWasRevokedWhileNoServerRanIsStopped(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 3)
	procs := map[string]*child{}
	for _, id := range []string{"revoked", "kept", "released"} {
		procs[id] = spawn(t, sleeper)
		r.claim(api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}, PID: procs[id].pid()})
	}
	if err := r.client.Release(t.Context(), "released"); err != nil {
		t.Fatal(err)
	}
	r.server.Stop(sidecar.Leave)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	b, keys, err := instance.Connect(t.Context(), instance.Options{Endpoints: r.cfg.Options.Endpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := (inspect.Snapshot{Backend: b, Keys: keys}).Revoke(t.Context(), "revoked", true); err != nil {
		t.Fatal(err)
	}
	r.cfg.Logger = nil
	r = start(t, r.cfg)
	if got := procs["revoked"].endedBy(); got != syscall.SIGTERM {
		t.Errorf("the process ended by %s", got)
	}
	eventually(t, "the binding is forgotten", func() bool { return slices.Equal(bindFilesOf(r), []string{"kept.json"}) })
	for _, id := range []string{"kept", "released"} {
		if !procs[id].lives() {
			t.Errorf("the process of %s was stopped", id)
		}
	}
	if n := r.claimed("db"); n != 1 {
		t.Errorf("%d slots are held", n)
	}
}

// The next server must not take a claim that was released for one that was lost.
func TestTheBindingOfAClaimIsForgottenBeforeItsSlotsAreFree(t *testing.T) {
	etcd := embedtest.Cluster(t, 1)
	r := start(t, config(t, etcd.Endpoints()[0]))
	r.pool("db", 1)
	p := spawn(t, sleeper)
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}, PID: p.pid()})
	etcd.Stop(0)
	released := make(chan error, 1)
	go func() { released <- r.client.Release(t.Context(), "mine") }()
	eventually(t, "the binding is forgotten", func() bool { return len(bindFilesOf(r)) == 0 })
	etcd.Restart(0)
	if err := <-released; err != nil {
		t.Error(err)
	}
	r.free("db")
	if !p.lives() {
		t.Error("the process was stopped")
	}
}
