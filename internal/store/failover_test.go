package store_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// etcdctl is etcd's own client, for what berth never asks.
func etcdctl(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// until tries something with a deadline each time, as berth does, until it
// succeeds, and returns how many tries failed.
func until(t *testing.T, try func(context.Context) error) (failed int) {
	t.Helper()
	for end := long(t); ; failed++ {
		ctx, cancel := context.WithTimeout(end, 2*time.Second)
		err := try(ctx)
		cancel()
		if err == nil {
			return failed
		}
		if end.Err() != nil {
			t.Fatalf("nothing gets through: %v", err)
		}
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("an error of another kind: %v", err)
		}
	}
}

func TestWorkGoesOnWithAnotherEndpoint(t *testing.T) {
	m := embedtest.Cluster(t, 3)
	c := m.Client(t)
	ctx := long(t)
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	lease, ttl, err := c.Grant(ctx, time.Minute)
	if err != nil || ttl != time.Minute {
		t.Fatal(ttl, err)
	}
	first, err := c.Txn(ctx, putReq("/b/1", "", lease))
	if err != nil {
		t.Fatal(err)
	}
	w := c.Watch(ctx, store.Prefix("/b/"), first.Header.Revision)
	watched(t, w)

	m.Kill(0) // the one that all work goes to
	w.Abandon()
	until(t, func(ctx context.Context) error { _, err := c.Txn(ctx, putReq("/b/2", "", lease)); return err })
	until(t, func(ctx context.Context) error { _, err := c.Renew(ctx, lease); return err })
	until(t, func(ctx context.Context) error { _, err := c.Range(ctx, getReq("/b/2")); return err })
	if m := watched(t, c.Watch(ctx, store.Prefix("/b/"), first.Header.Revision+1)); string(m.Events[0].Kv.Key) != "/b/2" {
		t.Errorf("the next watch delivers %v", m.Events)
	}
	if n := until(t, func(ctx context.Context) error { _, err := c.Txn(ctx, putReq("/b/3", "", lease)); return err }); n != 0 {
		t.Errorf("%d tries failed once the endpoint was left", n)
	}
	// A probe begins with the endpoint in use.
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Error(err)
	}
}

func TestAFrozenEndpointIsLeftAfterOneDeadline(t *testing.T) {
	frozen := blackHole(t)
	srv := embedtest.New(t)
	c := newClient(t, store.Config{Endpoints: []string{frozen, srv.Endpoint()}, Logger: hclog.NewNullLogger()})
	if got := c.Endpoints(); !slices.Equal(got, []string{frozen, srv.Endpoint()}) {
		t.Errorf("endpoints: %v", got)
	}
	try := func(f func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return f(ctx)
	}
	for name, f := range map[string]func(ctx context.Context) error{
		"txn":   func(ctx context.Context) error { _, err := c.Txn(ctx, putReq("/b/k", "", 0)); return err },
		"grant": func(ctx context.Context) error { _, _, err := c.Grant(ctx, time.Minute); return err },
	} {
		if err := try(f); !errors.Is(err, store.ErrUnavailable) || !store.OutcomeUnknown(err) {
			t.Errorf("%s through a frozen endpoint: %v", name, err)
		}
		if n := until(t, f); n != 0 {
			t.Errorf("%s: %d more tries went to the frozen endpoint", name, n)
		}
	}
	w := c.Watch(t.Context(), store.Prefix("/b/"), 1) // does not wait for the endpoint
	w.RequestProgress()
	w.Abandon()
	for range w.Messages() {
	}
	watched(t, c.Watch(t.Context(), store.Prefix("/b/"), 1))
}

// blackHole listens and answers nothing.
func blackHole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, c := range conns {
					_ = c.Close()
				}
				return
			}
			conns = append(conns, conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return "http://" + l.Addr().String()
}

// faulty is an etcd that counts requests and answers as configured.
type faulty struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	err          error
	header       atomic.Pointer[pb.ResponseHeader]
	txns, leases atomic.Int64
}

func (f *faulty) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.txns.Add(1)
	return &pb.TxnResponse{Header: f.header.Load(), Succeeded: true}, f.err
}

func (f *faulty) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: f.header.Load()}, nil
}

func (f *faulty) LeaseGrant(context.Context, *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	f.leases.Add(1)
	return nil, f.err
}

func TestAWriteIsNeverRepeated(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Internal, codes.Unknown} {
		t.Run(code.String(), func(t *testing.T) {
			f := &faulty{err: status.Error(code, "after it was carried out")}
			c := newClient(t, store.Config{Endpoints: []string{serve(t, f)}})
			_, err := c.Txn(long(t), putReq("/b/k", "", 0))
			if err == nil || !store.OutcomeUnknown(err) {
				t.Errorf("it ended with %v", err)
			}
			if n := f.txns.Load(); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
			if _, _, err := c.Grant(long(t), time.Minute); err == nil {
				t.Error("a lease was granted")
			}
			if n := f.leases.Load(); n != 1 {
				t.Errorf("a grant was sent %d times", n)
			}
		})
	}
}

func TestAnEtcdThatWasRestoredIsNoticedOnce(t *testing.T) {
	f := &faulty{}
	c := newClient(t, store.Config{Endpoints: []string{serve(t, f)}})
	answer := func(cluster uint64, rev int64) error {
		f.header.Store(&pb.ResponseHeader{ClusterId: cluster, Revision: rev})
		_, err := c.Txn(long(t), putReq("/b/k", "", 0))
		return err
	}
	for i, step := range []struct {
		cluster uint64
		rev     int64
		want    error
	}{
		{7, 10, nil}, {7, 20, nil}, {7, 20, nil},
		{7, 15, store.ErrRestored}, // from a backup
		{7, 15, nil}, {7, 16, nil}, {7, 30, nil},
		{7, 1_000_000_030, store.ErrRestored}, // with --bump-revision
		{7, 1_000_000_031, nil}, {7, 1_000_000_031, nil},
		{8, 31, store.ErrOtherCluster}, {8, 32, store.ErrOtherCluster}, {7, 1_000_000_040, nil},
	} {
		if err := answer(step.cluster, step.rev); !errors.Is(err, step.want) || (step.want == nil) != (err == nil) {
			t.Errorf("answer %d, cluster %d at revision %d: %v, want %v", i, step.cluster, step.rev, err, step.want)
		}
	}
}

// serve runs a gRPC server for a test.
func serve(t *testing.T, f *faulty) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterKVServer(s, f)
	pb.RegisterLeaseServer(s, f)
	pb.RegisterMaintenanceServer(s, f)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}
