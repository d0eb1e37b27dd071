package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// oldData puts data of the layout before 2 into a data directory: a pool with that spec. If it is in use, a process is
// alive and holds a claim, both on a lease of 3 s.
func oldData(t *testing.T, dir, spec string, inUse bool) {
	t.Helper()
	srv := embedtest.New(t, func(cfg *embed.Config) { cfg.DataDir, cfg.Name = filepath.Join(dir, "etcd"), "a" })
	c, err := store.NewClient(store.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	keys := store.NewKeys(store.DefaultPrefix)
	put := []*pb.RequestOp{store.Put(keys.Spec("db"), []byte(spec), 0), store.Put(keys.Pool("db")+"queued", []byte(`{"v":1}`), 0)}
	if inUse {
		id, _, err := c.Grant(t.Context(), 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		put = append(put, store.Put(keys.Presence("one", "sidecar"), []byte(`{"v":1}`), id), store.Put(keys.Slots("db")+"00/00000",
			[]byte(`{"v":1,"n":1,"claim":"nightly","record":{"pools":{"db":1},"holder":{"host":"one","instance":"sidecar"}}}`), id))
	}
	if _, err := c.Txn(t.Context(), &pb.TxnRequest{Success: put}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
}

const oldSpec = `{"v":1,"limit":3,"limit_since":2,"groups":3,"lease_duration":"5m0s","reserve_after":"1m0s","retain":"1s"}`

// isUpgraded checks that a server has the pool, and grants its slots.
func (s *serverProcess) isUpgraded() {
	s.t.Helper()
	if out := s.berth("pools", "list"); !strings.Contains(out, "db    3      0        0        5m     open\n") {
		s.t.Errorf("the pools are\n%s", out)
	}
	s.berth("exec", "--pool", "db", "--", "true")
	s.berth("verify")
}

func TestAServerAloneUpgradesItsData(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	oldData(t, filepath.Join(dir, "data"), oldSpec, true)
	a := startServer(t, dir, "--name", "a").listens()
	a.until("it says why it is not ready", func() bool {
		return strings.Contains(a.notReady(), "the data is of an earlier berth, and is upgraded when it is not in use: "+
			"these processes are alive: one/sidecar; these claims are held: one/sidecar/nightly")
	})
	a.ready()
	a.logs("upgraded the data of an earlier berth: layout=2 pools=1 deleted_keys=1")
	a.isUpgraded()
	a.end(syscall.SIGTERM)
}

// The server of a cluster serves etcd, and leaves the upgrade to an operator. So does one whose data can't be upgraded.
func TestAServerThatDoesNotUpgradeItsDataWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec  string
		flags []string
	}{
		"a cluster":      {oldSpec, []string{"--cluster", fmt.Sprintf("a=http://127.%d.%d.1:7423", 64+rand.IntN(63), rand.IntN(256))}},
		"a corrupt spec": {"nonsense", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			oldData(t, filepath.Join(dir, "data"), tc.spec, false)
			a := startServer(t, dir, append(tc.flags, "--name", "a")...).listens()
			a.until("it says why it is not ready", func() bool {
				return strings.Contains(a.notReady(), "is of the layout before 2: stop every berth process, wait until no claim is held, then run 'berth upgrade'")
			})
			c, err := store.NewClient(store.Config{Endpoints: []string{a.at.Etcd}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			put := store.Put(store.NewKeys(store.DefaultPrefix).Spec("db"), []byte(oldSpec), 0)
			if _, err := c.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{put}}); err != nil {
				t.Fatal(err)
			}
			if out := a.berth("upgrade"); !strings.HasPrefix(out, "the data under /berth/ has the layout 2 now: 1 pool kept, 1 key deleted\n") {
				t.Error(out)
			}
			a.ready()
			a.isUpgraded()
			a.end(syscall.SIGTERM)
		})
	}
}

func TestDevUpgradesItsData(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	oldData(t, dir, oldSpec, true)
	var at addresses
	end := rig{t, []string{"BERTH_ENDPOINTS=", "BERTH_CLUSTER="}}.service(&at, "dev", "--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0", "--data-dir", dir)
	(&serverProcess{t: t, at: at}).isUpgraded()
	end()
}
