package store_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/testlog"
)

// oneOf is a stand-in for a member of the cluster whose id it answers with, whatever it is asked.
type oneOf struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	pb.UnimplementedAuthServer
	pb.UnimplementedMaintenanceServer
	cluster  atomic.Uint64
	revision atomic.Int64
	renewals atomic.Int64
	txns     atomic.Int64
	logins   atomic.Int64
	alone    atomic.Bool // it has no leader
	// expire, if not nil, has the next write or renewal wait, and then refuses its login.
	expire atomic.Pointer[expiry]
}

// expiry is a request that arrives, waits, and is refused for its login.
type expiry struct{ arrived, refuse chan struct{} }

func (m *oneOf) expired() error {
	x := m.expire.Swap(nil)
	if x == nil {
		return nil
	}
	close(x.arrived)
	<-x.refuse
	return rpctypes.ErrGRPCInvalidAuthToken
}

func memberOf(t *testing.T, cluster uint64) (m *oneOf, endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m = &oneOf{}
	m.cluster.Store(cluster)
	m.revision.Store(10)
	s := grpc.NewServer()
	pb.RegisterKVServer(s, m)
	pb.RegisterLeaseServer(s, m)
	pb.RegisterWatchServer(s, m)
	pb.RegisterAuthServer(s, m)
	pb.RegisterMaintenanceServer(s, m)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return m, "http://" + l.Addr().String()
}

func (m *oneOf) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: m.cluster.Load(), Revision: m.revision.Load()}
}

func (m *oneOf) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: m.header()}, nil
}

func (m *oneOf) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := m.expired(); err != nil {
		return nil, err
	}
	m.txns.Add(1)
	return &pb.TxnResponse{Header: m.header(), Succeeded: true}, nil
}

func (m *oneOf) Compact(context.Context, *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return &pb.CompactionResponse{Header: m.header()}, nil
}

func (m *oneOf) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{Header: m.header(), ID: 7, TTL: r.TTL}, nil
}

func (m *oneOf) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return &pb.LeaseRevokeResponse{Header: m.header()}, nil
}

func (m *oneOf) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return &pb.LeaseTimeToLiveResponse{Header: m.header(), ID: r.ID, TTL: 30}, nil
}

func (m *oneOf) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := m.expired(); err != nil {
			return err
		}
		m.renewals.Add(1)
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: m.header(), ID: req.ID, TTL: 60}); err != nil {
			return err
		}
	}
}

// Watch answers the creation of a watch, and each request for progress.
func (m *oneOf) Watch(stream pb.Watch_WatchServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp := &pb.WatchResponse{Header: m.header()}
		switch {
		case req.GetCreateRequest() != nil:
			resp.Created = true
			if err := stream.Send(resp); err != nil {
				return err
			}
			resp = &pb.WatchResponse{Header: m.header()} // its progress
		case req.GetProgressRequest() != nil:
			resp.WatchId = -1
		default:
			continue
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (m *oneOf) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	m.logins.Add(1)
	return &pb.AuthenticateResponse{Header: m.header(), Token: "token"}, nil
}

func (m *oneOf) UserGet(context.Context, *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return &pb.AuthUserGetResponse{Header: m.header(), Roles: []string{"berth"}}, nil
}

func (m *oneOf) RoleGet(context.Context, *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return &pb.AuthRoleGetResponse{Header: m.header(), Perm: []*authpb.Permission{}}, nil
}

func (m *oneOf) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	resp := &pb.StatusResponse{Header: m.header(), Leader: 1}
	if m.alone.Load() {
		resp.Leader = 0
	}
	return resp, nil
}

// operations are all that a client asks of etcd, each of which carries the id of the cluster.
var operations = map[string]func(ctx context.Context, c *store.Client) error{
	"transaction": func(ctx context.Context, c *store.Client) error {
		_, err := c.Txn(ctx, putReq("/b/k", "", 0))
		return err
	},
	"read": func(ctx context.Context, c *store.Client) error {
		_, err := c.Range(ctx, getReq("/b/k"))
		return err
	},
	"compaction": func(ctx context.Context, c *store.Client) error { return c.Compact(ctx, 5) },
	"size of the database": func(ctx context.Context, c *store.Client) error {
		_, err := c.Used(ctx)
		return err
	},
	"grant of a lease": func(ctx context.Context, c *store.Client) error {
		_, _, err := c.Grant(ctx, time.Minute)
		return err
	},
	"renewal": func(ctx context.Context, c *store.Client) error {
		_, err := c.Renew(ctx, 7)
		return err
	},
	"revocation of a lease": func(ctx context.Context, c *store.Client) error { return c.Revoke(ctx, 7) },
	"time to live of a lease": func(ctx context.Context, c *store.Client) error {
		_, err := c.TimeToLive(ctx, 7)
		return err
	},
	"rights of the user": func(ctx context.Context, c *store.Client) error {
		_, err := c.Rights(ctx)
		return err
	},
	"probe": func(ctx context.Context, c *store.Client) error { return c.Probe(ctx, "/b/") },
	"watch": func(ctx context.Context, c *store.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w := c.Watch(ctx, store.Prefix("/b/"), 11)
		w.RequestProgress()
		m, ok := <-w.Messages()
		if !ok {
			return context.Cause(ctx)
		}
		return m.Err
	},
}

func TestNoAnswerOfAnotherClusterCounts(t *testing.T) {
	for name, ask := range operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, endpoint := memberOf(t, 1)
			c := newClient(t, store.Config{Endpoints: []string{endpoint}, Username: "berth", Password: "secret"})
			if err := ask(long(t), c); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			m.cluster.Store(2)
			for range 2 { // what was refused once is refused for good
				if err := ask(long(t), c); !errors.Is(err, store.ErrOtherCluster) {
					t.Errorf("the answer of another cluster: %v", err)
				}
			}
			if m.cluster.Store(1); name != "watch" {
				if err := ask(long(t), c); err != nil {
					t.Errorf("the answer of the first cluster after that: %v", err)
				}
			}
		})
	}
}

// following returns a client that follows, and the log and the metrics of its process.
func following(t *testing.T, endpoints ...string) (*store.Client, *testlog.Buffer, *prometheus.Registry) {
	t.Helper()
	log, reg := testlog.New(t), prometheus.NewRegistry()
	cluster := store.NewCluster(hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error}), reg)
	return newClient(t, store.Config{Endpoints: endpoints, Username: "berth", Password: "secret", Cluster: cluster}), log, reg
}

func TestAProcessGoesOnWithTheClusterThatReplacesItsOwn(t *testing.T) {
	for name, ask := range operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, endpoint := memberOf(t, 0xa)
			c, log, reg := following(t, endpoint)
			if err := c.Probe(long(t), "/b/"); err != nil {
				t.Fatal(err)
			}
			before, replaced := c.Cluster()
			m.cluster.Store(0xb)
			m.revision.Store(5) // a snapshot may be older
			if err := ask(long(t), c); !errors.Is(err, store.ErrOtherCluster) {
				t.Errorf("the first answer of the other cluster: %v", err)
			}
			select {
			case <-replaced:
			default:
				t.Error("the channel of the cluster that was replaced is open")
			}
			if now, _ := c.Cluster(); before != 0xa || now != 0xb || c.History() != 1 {
				t.Errorf("cluster %x became %x, history %d", before, now, c.History())
			}
			for range 2 {
				if err := ask(long(t), c); err != nil {
					t.Errorf("after the change: %v", err)
				}
			}
			if n := m.logins.Load(); n != 2 {
				t.Errorf("%d logins: the token is of the cluster that was replaced", n)
			}
			m.cluster.Store(0xa)
			if err := ask(long(t), c); !errors.Is(err, store.ErrOtherCluster) {
				t.Errorf("the cluster that was replaced answers: %v", err)
			}
			if now, _ := c.Cluster(); now != 0xb || c.History() != 1 {
				t.Errorf("it has returned to cluster %x, history %d", now, c.History())
			}
			if got := log.Lines(); len(got) != 1 || !strings.Contains(got[0], "before=a now=b") {
				t.Errorf("the log is %q, want one line with both ids", got)
			}
			if n := testutil.ToFloat64(counterOf(t, reg)); n != 1 {
				t.Errorf("the metric counts %v", n)
			}
		})
	}
}

// counterOf returns the counter of changes.
func counterOf(t *testing.T, reg *prometheus.Registry) prometheus.Collector {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "berth_etcd_cluster_changed_total" {
			c := prometheus.NewCounter(prometheus.CounterOpts{Name: "copy"})
			c.Add(f.Metric[0].GetCounter().GetValue())
			return c
		}
	}
	t.Fatal("there is no such metric")
	return nil
}

// TestAMemberOfTheReplacedClusterIsOnlyAnEndpointThatFails: some members are restored, others still
// run with the old data.
func TestThatRevisionsHaveGoneBackIsLoggedOnceAndOnlyThen(t *testing.T) {
	log, f := testlog.New(t), &faulty{}
	c := newClient(t, store.Config{
		Endpoints: []string{serve(t, f)},
		Cluster:   store.NewCluster(hclog.New(&hclog.LoggerOptions{Output: log}), prometheus.NewRegistry()),
	})
	for i, step := range []struct {
		cluster uint64
		rev     int64
		logged  int
	}{{7, 10, 0}, {7, 20, 0}, {8, 1020, 0}, {8, 1021, 0}, {8, 15, 1}, {8, 15, 1}, {8, 30, 1}} {
		f.header.Store(&pb.ResponseHeader{ClusterId: step.cluster, Revision: step.rev})
		_, err := c.Txn(long(t), putReq("/b/k", "", 0))
		if n := strings.Count(log.String(), "the revisions of etcd have gone back"); n != step.logged {
			t.Errorf("after answer %d, cluster %d at revision %d, it was logged %d times (%v), want %d", i, step.cluster, step.rev, n, err, step.logged)
		}
	}
}

func TestAMemberOfTheReplacedClusterIsOnlyAnEndpointThatFails(t *testing.T) {
	t.Parallel()
	old, oldEndpoint := memberOf(t, 1)
	restored, newEndpoint := memberOf(t, 1)
	c, log, _ := following(t, oldEndpoint, newEndpoint)
	ctx := long(t)
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	restored.cluster.Store(2)
	for i := 0; i < 50; i++ { // each kind of work fails over by itself
		c.FailOver()
		for name, ask := range operations {
			if err := ask(ctx, c); err != nil && !errors.Is(err, store.ErrOtherCluster) {
				t.Fatalf("%s: %v", name, err)
			}
			if now, _ := c.Cluster(); now == 2 {
				if i == 0 {
					old.renewals.Store(0)
					old.txns.Store(0)
				}
				i = max(i, 1)
			} else if i > 0 {
				t.Fatalf("%s brought cluster %d back", name, now)
			}
		}
	}
	if n, m := old.renewals.Load(), old.txns.Load(); n+m > 0 {
		t.Errorf("%d renewals and %d transactions were sent to the cluster that was replaced", n, m)
	}
	if got := log.Lines(); len(got) != 1 {
		t.Errorf("the log is %q, want one line", got)
	}
}

// TestNothingIsWrittenInAnotherClusterBeforeItIsKnown: to refuse the answer would be too late.
func TestNothingIsWrittenInAnotherClusterBeforeItIsKnown(t *testing.T) {
	t.Parallel()
	_, first := memberOf(t, 1)
	other, second := memberOf(t, 2)
	c := newClient(t, store.Config{Endpoints: []string{first, second}, Username: "berth", Password: "secret"})
	ctx := long(t)
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for name, ask := range operations {
			c.UseEndpoint(1)
			if err := ask(ctx, c); name != "probe" && !errors.Is(err, store.ErrOtherCluster) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n, m := other.renewals.Load(), other.txns.Load(); n+m > 0 {
		t.Errorf("%d renewals and %d transactions were sent to another cluster", n, m)
	}
}

// TestAnAnswerToARequestOfBeforeTheChangeDoesNotCount: what it was made of is void.
func TestAnAnswerToARequestOfBeforeTheChangeDoesNotCount(t *testing.T) {
	t.Parallel()
	m, endpoint := memberOf(t, 1)
	c, _, _ := following(t, endpoint)
	if err := c.Probe(long(t), "/b/"); err != nil {
		t.Fatal(err)
	}
	term := store.InCluster(long(t), c)
	m.cluster.Store(2)
	if err := c.Probe(long(t), "/b/"); !errors.Is(err, store.ErrOtherCluster) {
		t.Fatal(err)
	}
	m.txns.Store(0)
	m.renewals.Store(0)
	for name, ask := range operations {
		if err := ask(term, c); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("%s in the name of the cluster before: %v", name, err)
		}
		if err := ask(store.InCluster(term, c), c); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("%s: it was renamed: %v", name, err)
		}
		if err := ask(long(t), c); err != nil {
			t.Errorf("%s in the name of the present one: %v", name, err)
		}
	}
	if n, m := m.renewals.Load(), m.txns.Load(); n != 1 || m != 1 {
		t.Errorf("%d renewals and %d transactions were sent, want 1 of each", n, m)
	}
}

// TestARequestThatWaitsWhileItsClusterIsReplacedIsNotSentToTheOther: here for a login, while others
// have found out where the connections lead.
func TestARequestThatWaitsWhileItsClusterIsReplacedIsNotSentToTheOther(t *testing.T) {
	for _, name := range []string{"transaction", "renewal"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, endpoint := memberOf(t, 1)
			c, _, _ := following(t, endpoint)
			ctx := long(t)
			if err := c.Probe(ctx, "/b/"); err != nil {
				t.Fatal(err)
			}
			x := &expiry{make(chan struct{}), make(chan struct{})}
			m.expire.Store(x)
			done := make(chan error, 1)
			go func() { done <- operations[name](store.InCluster(ctx, c), c) }()
			<-x.arrived
			m.cluster.Store(2)
			for range 2 {
				for _, other := range []string{"read", "grant of a lease"} {
					if err := operations[other](ctx, c); err != nil && !errors.Is(err, store.ErrOtherCluster) {
						t.Fatal(err)
					}
				}
			}
			close(x.refuse)
			if err := <-done; !errors.Is(err, store.ErrOtherCluster) {
				t.Errorf("it ended with %v", err)
			}
			if n := m.txns.Load() + m.renewals.Load(); n > 0 {
				t.Error("it was sent to the cluster that has replaced its own")
			}
			if err := operations[name](ctx, c); err != nil {
				t.Errorf("in the cluster of now: %v", err)
			}
		})
	}
}

// TestAMemberWithoutALeaderReplacesNoCluster: after a restore, a member that was started with its old
// data answers, but has no majority. Processes of the restored cluster never knew the old one.
func TestAMemberWithoutALeaderReplacesNoCluster(t *testing.T) {
	t.Parallel()
	_, first := memberOf(t, 1)
	old, second := memberOf(t, 2)
	old.alone.Store(true)
	c, log, _ := following(t, first, second)
	ctx := long(t)
	if err := c.Probe(ctx, "/b/"); err != nil {
		t.Fatal(err)
	}
	for name, ask := range operations {
		if name == "probe" {
			continue
		}
		c.UseEndpoint(1)
		if err := ask(ctx, c); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("%s through the member without a leader: %v", name, err)
		}
		c.UseEndpoint(0)
		if err := ask(ctx, c); err != nil {
			t.Errorf("%s through the other one: %v", name, err)
		}
	}
	if now, _ := c.Cluster(); now != 1 || len(log.Lines()) > 0 {
		t.Errorf("it works with cluster %d, and has logged %q", now, log.Lines())
	}
	old.alone.Store(false)
	c.UseEndpoint(1)
	if _, err := c.Range(ctx, getReq("/b/k")); !errors.Is(err, store.ErrOtherCluster) {
		t.Error(err)
	}
	if now, _ := c.Cluster(); now != 2 {
		t.Errorf("it works with cluster %d after the other one has elected a leader", now)
	}
}
