package instance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool/wire"
)

// left returns the keys that are in an etcd, specs of pools and the version of the layout left out.
func left(t *testing.T, srv *embed.Server) []string {
	t.Helper()
	s, err := store.ReadAll(t.Context(), embedtest.Client(t, srv), "/")
	if err != nil {
		t.Fatal(err)
	}
	keys := wire.Keys{Keys: store.NewKeys(store.DefaultPrefix)}
	var all []string
	for _, kv := range s.KVs {
		if key := string(kv.Key); key != keys.Layout() && !(strings.HasPrefix(key, keys.Pools()) && strings.HasSuffix(key, "/spec")) {
			all = append(all, key)
		}
	}
	return all
}

// closing closes a client in the background.
func closing(c *instance.Client, ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Close(ctx) }()
	return done
}

// refusesClaims waits until a client takes no new claims.
func refusesClaims(t *testing.T, c *instance.Client) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		claim, err := c.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithWait(0))
		switch {
		case instance.ErrorCode(err) == "stopping":
			return
		case err == nil:
			if err := claim.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatal("it takes claims")
		}
	}
}

func TestCloseWaitsForTheHolders(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 3, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1})
	done := closing(c, t.Context())
	refusesClaims(t, c)
	if claim.Context().Err() != nil || len(done) != 0 {
		t.Errorf("its holder got %v, or it is closed", claim.Err())
	}
	if validity, _ := claim.ValidFor(); validity == 0 {
		t.Error("its lease is not trusted while it drains")
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-c.Done()
	wantCode(t, c.Err(), "stopping")
	if keys := left(t, srv); len(keys) != 0 {
		t.Errorf("left are %q", keys)
	}
	_, err := c.Claim(t.Context(), instance.Slots{"db": 1})
	wantCode(t, err, "stopping")
	_, err = c.Pools(t.Context())
	wantCode(t, err, "stopping")
}

func TestCloseTellsHoldersToStopWhenItsContextEnds(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 3, time.Minute) // a grace of 10 s
	claim := claimed(t, c, instance.Slots{"db": 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := closing(c, ctx)
	refusesClaims(t, c)
	cancel()
	begin := time.Now()
	<-claim.Context().Done()
	wantCode(t, claim.Err(), "claim_lost", "shutting down")
	if err := claim.Release(t.Context()); err != nil { // the holder has stopped
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s, though the holder has stopped", took)
	}
	if keys := left(t, srv); len(keys) != 0 {
		t.Errorf("left are %q", keys)
	}
}

func TestCloseFreesTheSlotsOfHoldersThatDoNotStop(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 3, 5*time.Second) // a grace of a sixth
	claim := claimed(t, c, instance.Slots{"db": 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took < 800*time.Millisecond {
		t.Errorf("the holder was given %s to stop", took)
	}
	wantCode(t, claim.Err(), "claim_lost")
	if keys := left(t, srv); len(keys) != 0 {
		t.Errorf("left are %q", keys)
	}
}

func TestAStopWithoutEtcdSaysInOneLineWhatStaysHeld(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dir  string
		says string
	}{
		"with a state directory": {t.TempDir(), "stays held until its leases end, or the next process with its state directory takes it over: "},
		"without one":            {"", "stays held until its leases end: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := embedtest.New(t)
			c := open(t, srv, func(o *instance.Options) { o.StateDir, o.Instance = tc.dir, "it" })
			setPool(t, c, "db", 3, 5*time.Second)
			setPool(t, c, "gpu", 3, 6*time.Second)
			claimed(t, c, instance.Slots{"db": 1})
			claimed(t, c, instance.Slots{"gpu": 1})
			if err := srv.Kill(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := c.Close(ctx)
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %v", err)
			}
			wantCode(t, err, "etcd_unavailable")
		})
	}
}

// A process may have become another user's, or hang in the kernel.
func TestCloseKeepsTheSlotsOfProcessesThatAreSeenToRun(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 3, 5*time.Second)
	setPool(t, c, "gpu", 3, 6*time.Second)
	runs := claimed(t, c, instance.Slots{"db": 1})
	runs.Supervise(true)
	claimed(t, c, instance.Slots{"gpu": 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if h, _ := read(t, connect(t, srv)).Claims(); len(h) != 1 || h[0].Claim != runs.ID {
		t.Errorf("held are %v", h)
	}
}

func TestLeaveEndsTheContextsAndKeepsTheSlots(t *testing.T) {
	srv := embedtest.New(t)
	dir := t.TempDir()
	c := open(t, srv, func(o *instance.Options) { o.Instance, o.StateDir = "sidecar", dir })
	setPool(t, c, "db", 3, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1})
	if err := c.Leave(); err != nil {
		t.Error(err)
	}
	wantCode(t, claim.Err(), "claim_lost")
	<-c.Done()
	if h, _ := read(t, connect(t, srv)).Claims(); len(h) != 1 {
		t.Errorf("held are %v", h)
	}
}

// TestAClientThatLosesItsNameEnds has another process take the name while the
// client can't renew its own.
func TestAClientThatLosesItsNameEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits 12 s for the other to end")
	}
	t.Parallel()
	srv := embedtest.New(t)
	c := open(t, srv, func(o *instance.Options) { o.Instance = "worker" })
	setPool(t, c, "db", 1, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1})
	backend, keys := embedtest.Client(t, srv), store.NewKeys(store.DefaultPrefix)
	key := keys.Presence("one", "worker")
	resp, err := backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	if err := backend.Revoke(t.Context(), store.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	taken := []byte(`{"v":1,"role":"worker","version":"","pid":1,"capacity":0,"since":"2026-01-01T00:00:00Z","token":"another"}`)
	if _, err := backend.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, taken, 0)}}); err != nil {
		t.Fatal(err)
	}
	if c.Err() != nil {
		t.Errorf("it has ended already: %v", c.Err())
	}
	<-c.Done()
	wantCode(t, c.Err(), "host_in_use", "one/worker")
	<-claim.Context().Done()
	wantCode(t, claim.Err(), "claim_lost")
	_, err = c.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithWait(0))
	wantCode(t, err, "stopping")
	if err := claim.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wantCode(t, c.Err(), "host_in_use") // the reason stays
}
