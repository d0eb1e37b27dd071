package instance_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

const (
	anOldSpec = `{"v":1,"limit":2,"lease_duration":"5m","reserve_after":"0s"}`
	isOld     = "the data under /berth/ is of the layout before 2: stop every berth process, wait until no claim is held, then run 'berth upgrade'"
)

func put(t *testing.T, srv *embed.Server, key, value string) {
	t.Helper()
	if _, err := embedtest.Client(t, srv).Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}}); err != nil {
		t.Fatal(err)
	}
}

// underBerth returns the keys below the prefix.
func underBerth(t *testing.T, srv *embed.Server) (all []string) {
	t.Helper()
	s, err := store.ReadAll(t.Context(), embedtest.Client(t, srv), store.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range s.KVs {
		all = append(all, string(kv.Key))
	}
	return all
}

func TestDataOfAnotherLayoutIsNotOpened(t *testing.T) {
	keys := store.NewKeys(store.DefaultPrefix)
	for name, tc := range map[string]struct{ key, value, code, want string }{
		"older": {keys.Spec("db"), anOldSpec, "precondition_failed", isOld},
		"newer": {keys.Prefix() + "layout", `{"v":3}`, "corrupt_value", "the data under /berth/ is of the layout 3, and this berth reads layouts up to 2: it is too old, run a newer one"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := embedtest.New(t)
			put(t, srv, tc.key, tc.value)
			for how, err := range refused(t, instance.Options{Endpoints: []string{srv.Endpoint()}, Host: "one"}) {
				if wantCode(t, err, tc.code); err.Error() != tc.want {
					t.Errorf("%s: %v", how, err)
				}
			}
			if all := underBerth(t, srv); len(all) != 1 {
				t.Errorf("it has put %q", all)
			}
		})
	}
}

// A user that may not create pools does not put the version of the layout.
func TestNothingIsPutWhereThereAreNoPools(t *testing.T) {
	srv := withUsers(t)
	b, keys, err := instance.Connect(t.Context(), instance.Options{Endpoints: []string{srv.Endpoint()}, Username: "reader", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := (inspect.Snapshot{Backend: b, Keys: keys}).Read(t.Context()); err != nil || len(r.Pools()) != 0 {
		t.Errorf("read: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// An etcd that is restored from a snapshot of older data ends the processes that use it: they do not keep it from being
// upgraded, and they have granted nothing there.
func TestAClientEndsWhenItsEtcdIsRestoredToOlderData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "older")
	older := embedtest.New(t, func(cfg *embed.Config) { cfg.DataDir, cfg.Token = dir, "older" })
	put(t, older, store.NewKeys(store.DefaultPrefix).Spec("db"), anOldSpec)
	if err := older.Close(); err != nil {
		t.Fatal(err)
	}

	srv := embedtest.New(t)
	c := open(t, srv)
	t.Cleanup(func() { _ = c.Leave() })
	setPool(t, c, "db", 1, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1})
	address := strings.TrimPrefix(srv.Endpoint(), "http://")
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	older = embedtest.New(t, func(cfg *embed.Config) { cfg.DataDir, cfg.ClientListen = dir, address })

	<-claim.Context().Done()
	wantCode(t, claim.Err(), "claim_lost")
	<-c.Done()
	if err := c.Err(); err.Error() != isOld {
		t.Errorf("it has ended with %v", err)
	}
	_, err := c.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithWait(0))
	wantCode(t, err, "stopping")
	for _, key := range underBerth(t, older) {
		if key != "/berth/pools/db/spec" {
			t.Errorf("it has put %s", key)
		}
	}
}
