package instance_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
)

// reserve reserves a key, and puts the key of a run on its lease.
func reserve(t *testing.T, c *instance.Client, run string) *instance.KeyReservation {
	t.Helper()
	r, err := c.ReserveKey(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	backend, keys := c.Store()
	if _, err := store.Commit(t.Context(), backend, nil, store.Put(keys.ActiveRun(c.Host(), run), []byte("{}"), r.Lease())); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARoomIsTrustedUntilItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	c := open(t, srv)
	defer c.Leave()
	r, released := reserve(t, c, "a"), reserve(t, c, "b")
	if left, grace := r.ValidFor(); left <= 0 || left > time.Minute || grace != 10*time.Second || !c.Renews(r.Lease()) {
		t.Errorf("valid for %s, with a grace of %s", left, grace)
	}
	released.Release()
	released.Release()
	if left, _ := released.ValidFor(); left != 0 || released.Context().Err() == nil {
		t.Errorf("released, and valid for %s", left)
	}
	if r.Context().Err() != nil || r.Lease() != released.Lease() {
		t.Error("two reservations are on two leases, or both were released")
	}
	backend, _ := c.Store()
	if err := backend.Revoke(t.Context(), r.Lease()); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("a renewal comes after 20 s")
	}
	<-r.Context().Done()
	if err := context.Cause(r.Context()); !errors.Is(err, store.ErrLeaseNotFound) && !errors.Is(err, lease.ErrValidityEnded) {
		t.Error(err)
	}
	if left, _ := r.ValidFor(); left != 0 || c.Renews(r.Lease()) {
		t.Errorf("lost, and valid for %s", left)
	}
	r.Release()
}

func TestKeyReservationsAreTakenOver(t *testing.T) {
	srv := embedtest.New(t)
	dir := t.TempDir()
	opts := func(o *instance.Options) { o.Instance, o.StateDir = "sidecar", dir }
	c := open(t, srv, opts)
	first := reserve(t, c, "a")
	foreign := open(t, srv, func(o *instance.Options) { o.Instance = "another" }) // next to it on its host
	defer foreign.Leave()
	reserve(t, foreign, "b")
	if err := c.Leave(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, context.Cause(first.Context()), "stopping")
	_, err := c.ReserveKey(t.Context(), time.Minute)
	wantCode(t, err, "stopping")

	c = open(t, srv, opts)
	adopted := c.AdoptedKeys()
	if len(adopted) != 1 || adopted[0].Lease() != first.Lease() || adopted[0].Adopted().Revision == 0 ||
		adopted[0].Adopted().Key != store.NewKeys(store.DefaultPrefix).ActiveRun("one", "a") {
		t.Fatalf("%+v", adopted)
	}
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !c.Renews(first.Lease()) {
		<-look.C
	}
	if left, _ := adopted[0].ValidFor(); left <= 0 {
		t.Error("its lease is renewed, and it is not trusted")
	}
	adopted[0].Release()
	if err := c.Close(t.Context()); err != nil { // nothing is left to wait for
		t.Error(err)
	}
}

func TestCloseWaitsForKeyReservations(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 1, time.Minute)
	r := reserve(t, c, "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := closing(c, ctx)
	refusesClaims(t, c)
	if r.Context().Err() != nil || len(done) != 0 {
		t.Error("it has to stop in the drain, or closed")
	}
	cancel()
	<-r.Context().Done()
	wantCode(t, context.Cause(r.Context()), "stopping", "shutting down")
	backend, keys := c.Store()
	resp, err := backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(keys.ActiveRun("one", "a"))})
	if err != nil || len(resp.Kvs) != 1 {
		t.Errorf("its key is gone before it has stopped: %v", err)
	}
	begin := time.Now()
	r.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s, though it was released", took)
	}
	if keys := left(t, srv); len(keys) != 0 {
		t.Errorf("left are %q", keys)
	}
}

func TestAKeyReservationIsWaitedForWithinItsContext(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	defer c.Leave()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("it is not wanted any more")
	cancel(why)
	if _, err := c.ReserveKey(ctx, time.Hour); !errors.Is(err, why) { // it has no lease of 1h yet
		t.Error(err)
	}
}
