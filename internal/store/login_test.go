package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/berthhq/berth/internal/store"
)

// cityHall is a cluster of stand-ins that have users: each request must have a token
// that one of the members has given out since tokens were forgotten last.
type cityHall struct {
	t       *testing.T
	mu      sync.Mutex
	tokens  map[string]bool
	given   int
	members []*clerk
}

// clerk is a member.
type clerk struct {
	pb.UnimplementedAuthServer
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	of      *cityHall
	address string
	server  *grpc.Server
	ended   chan error
	logins  atomic.Int64
	streams atomic.Int64
	// hold holds up renewals until it is closed; nil: none.
	hold atomic.Pointer[chan struct{}]
}

// deniedLease is a lease that no user may renew.
const deniedLease = 13

func newCityHall(t *testing.T, members int) *cityHall {
	h := &cityHall{t: t, tokens: map[string]bool{}}
	for range members {
		m := &clerk{of: h}
		h.members = append(h.members, m)
		m.start("127.0.0.1:0")
		t.Cleanup(m.stop)
	}
	return h
}

func (m *clerk) start(address string) {
	m.of.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		m.of.t.Fatal(err)
	}
	m.address, m.server, m.ended = l.Addr().String(), grpc.NewServer(), make(chan error, 1)
	pb.RegisterAuthServer(m.server, m)
	pb.RegisterKVServer(m.server, m)
	pb.RegisterLeaseServer(m.server, m)
	pb.RegisterMaintenanceServer(m.server, m)
	server, ended := m.server, m.ended
	go func() { ended <- server.Serve(l) }()
}

func (m *clerk) stop() {
	if m.server != nil {
		m.server.Stop()
		<-m.ended
		m.server = nil
	}
}

// client is one of all members, the first one first.
func (h *cityHall) client() *store.Client {
	var all []string
	for _, m := range h.members {
		all = append(all, "http://"+m.address)
	}
	return newClient(h.t, store.Config{Endpoints: all, Username: "berth", Password: "secret"})
}

// forget has no token be good any more.
func (h *cityHall) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.tokens)
}

// logins is how often a client has logged in, and renewal streams were opened.
func (h *cityHall) logins() (logins, streams int64) {
	for _, m := range h.members {
		logins, streams = logins+m.logins.Load(), streams+m.streams.Load()
	}
	return logins, streams
}

func (m *clerk) Authenticate(_ context.Context, req *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	m.logins.Add(1)
	if req.Name != "berth" || req.Password != "secret" {
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.of.given++
	token := fmt.Sprint("token", m.of.given)
	m.of.tokens[token] = true
	return &pb.AuthenticateResponse{Header: m.header(), Token: token}, nil
}

func (m *clerk) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	switch shown := md.Get(rpctypes.TokenFieldNameGRPC); {
	case len(shown) == 0:
		return rpctypes.ErrGRPCUserEmpty
	case !m.of.tokens[shown[0]]:
		return rpctypes.ErrGRPCInvalidAuthToken
	}
	return nil
}

func (m *clerk) header() *pb.ResponseHeader { return &pb.ResponseHeader{ClusterId: 1, Revision: 1} }

func (m *clerk) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: m.header()}, m.check(ctx)
}

func (m *clerk) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	return &pb.RangeResponse{Header: m.header()}, nil
}

func (m *clerk) Txn(ctx context.Context, _ *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	return &pb.TxnResponse{Header: m.header(), Succeeded: true}, nil
}

func (m *clerk) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	m.streams.Add(1)
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if hold := m.hold.Load(); hold != nil {
			select {
			case <-*hold:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if err := m.check(stream.Context()); err != nil {
			return err
		}
		if req.ID == deniedLease {
			return rpctypes.ErrGRPCPermissionDenied
		}
		ttl := req.ID // so that it shows whose answer it is
		if ttl > 1000 {
			ttl = 0
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: m.header(), ID: req.ID, TTL: ttl}); err != nil {
			return err
		}
	}
}

// ask has one request of each kind be made, each at most once.
func ask(ctx context.Context, c *store.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := c.Range(ctx, getReq("/b/k"))
	_, err2 := c.Txn(ctx, putReq("/b/k", "", 0))
	ttl, err3 := c.Renew(ctx, 60)
	if err3 == nil && ttl != time.Minute {
		err3 = fmt.Errorf("the answer to another renewal: %s", ttl)
	}
	return errors.Join(err, err2, err3)
}

func TestAnInstanceLogsInOnce(t *testing.T) {
	h := newCityHall(t, 3)
	c := h.client()
	if err := c.Probe(long(t), "/b/"); err != nil {
		t.Fatal(err)
	}
	for range 180 { // the renewals of ten minutes
		if err := ask(long(t), c); err != nil {
			t.Fatal(err)
		}
	}
	if logins, streams := h.logins(); logins != 1 || streams != 1 {
		t.Errorf("%d logins, and %d streams for renewals, want one of each", logins, streams)
	}
}

func TestAFailOverTakesTheLoginAlong(t *testing.T) {
	h := newCityHall(t, 3)
	c := h.client()
	until(t, func(ctx context.Context) error { return ask(ctx, c) })
	for i := range 6 {
		m := h.members[i%3]
		m.stop()
		until(t, func(ctx context.Context) error { return ask(ctx, c) })
		m.start(m.address)
	}
	if logins, _ := h.logins(); logins != 1 {
		t.Errorf("there were %d logins", logins)
	}
}

func TestAForgottenLoginIsReplacedOnceForAllRequests(t *testing.T) {
	h := newCityHall(t, 3)
	c := h.client()
	for range 2 {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := ask(long(t), c); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		h.forget()
	}
	if logins, _ := h.logins(); logins != 2 {
		t.Errorf("there were %d logins for 2 times that no token was known", logins)
	}
}

// The requests of ten seconds fail one after the other, and then etcd is back and has no logins.
func TestATimeWithoutEtcdCostsOneLogin(t *testing.T) {
	h := newCityHall(t, 3)
	c := h.client()
	until(t, func(ctx context.Context) error { return ask(ctx, c) })
	for _, m := range h.members {
		m.stop()
		m.logins.Store(0)
	}
	for range 200 {
		if err := ask(long(t), c); err == nil {
			t.Fatal("something answers")
		}
	}
	h.forget()
	for _, m := range h.members {
		m.start(m.address)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for end := long(t); ask(end, c) != nil; {
				if end.Err() != nil {
					t.Error("nothing gets through")
					return
				}
			}
		})
	}
	all.Wait()
	if logins, _ := h.logins(); logins != 1 {
		t.Errorf("there were %d logins", logins)
	}
}

func TestARefusedRenewalSpoilsNoOther(t *testing.T) {
	h := newCityHall(t, 1)
	c := h.client()
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			id := store.LeaseID(60)
			var want error
			switch i % 10 {
			case 0:
				id, want = deniedLease, store.ErrDenied
			case 1:
				id, want = 1001, store.ErrLeaseNotFound
			}
			ttl, err := c.Renew(long(t), id)
			if !errors.Is(err, want) || want == nil && (err != nil || ttl != time.Minute) {
				t.Errorf("lease %d: %s, %v", id, ttl, err)
			}
		})
	}
	all.Wait()
}

func TestAFrozenMemberHoldsUpARenewalForOneDeadline(t *testing.T) {
	h := newCityHall(t, 2)
	c := h.client()
	if err := ask(long(t), c); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	h.members[0].hold.Store(&hold)
	try, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Renew(try, 60); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("through the frozen member: %v", err)
	}
	for i := range store.LeaseID(10) {
		if i == 5 {
			close(hold) // the answer comes now, and no request waits for it
		}
		if ttl, err := c.Renew(long(t), 60+i); err != nil || ttl != time.Duration(60+i)*time.Second {
			t.Errorf("lease %d: %s, %v", 60+i, ttl, err)
		}
	}
	if logins, _ := h.logins(); logins != 1 {
		t.Errorf("there were %d logins", logins)
	}
}

func TestAWrongPasswordIsReportedAtOnce(t *testing.T) {
	h := newCityHall(t, 3)
	var all []string
	for _, m := range h.members {
		all = append(all, m.address)
	}
	c := newClient(t, store.Config{Endpoints: all, Username: "berth", Password: "guessed"})
	mustSay(t, c.Probe(long(t), "/b/"), store.ErrDenied, "authentication failed", h.members[0].address)
	for range 50 {
		if err := ask(long(t), c); !errors.Is(err, store.ErrDenied) || store.OutcomeUnknown(err) {
			t.Fatalf("outcome unknown: %t: %v", store.OutcomeUnknown(err), err)
		}
	}
	if logins, _ := h.logins(); logins > 3 {
		t.Errorf("it was tried %d times", logins)
	}
}

func TestAFrozenMemberKeepsNoUserOut(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for an answer that does not come")
	}
	t.Parallel()
	h := newCityHall(t, 1)
	c := newClient(t, store.Config{Endpoints: []string{blackHole(t), h.members[0].address}, Username: "berth", Password: "secret"})
	if err := c.Probe(long(t), "/b/"); err != nil {
		t.Error(err)
	}
	if logins, _ := h.logins(); logins != 1 {
		t.Errorf("there were %d logins", logins)
	}
}

// What a real etcd says once its users have changed.
func TestALoginThatEtcdForgetsIsRenewed(t *testing.T) {
	srv := withUsers(t)
	c := newClient(t, store.Config{Endpoints: []string{srv.Endpoint()}, Username: "berth", Password: "secret"})
	id, _, err := c.Grant(long(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for name, f := range map[string]func(ctx context.Context) error{
			"txn":   func(ctx context.Context) error { _, err := c.Txn(ctx, putReq("/berth/k", "", id)); return err },
			"range": func(ctx context.Context) error { _, err := c.Range(ctx, getReq("/berth/k")); return err },
			"renew": func(ctx context.Context) error { _, err := c.Renew(ctx, id); return err },
			"ttl":   func(ctx context.Context) error { _, err := c.TimeToLive(ctx, id); return err },
		} {
			forgetLogins(t, srv.Endpoint())
			if err := f(long(t)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		forgetLogins(t, srv.Endpoint())
		// A watch can't be opened then, and the next one can.
		if m := <-c.Watch(long(t), store.Prefix("/berth/"), 1).Messages(); !errors.Is(m.Err, store.ErrTokenExpired) {
			t.Errorf("a watch with a login that is unknown: %v", m.Err)
		}
		watched(t, c.Watch(long(t), store.Prefix("/berth/"), 1))
	}
}

// forgetLogins switches an etcd's users off and on.
func forgetLogins(t *testing.T, endpoint string) {
	t.Helper()
	ctl, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	if _, err := ctl.AuthDisable(long(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.AuthEnable(long(t)); err != nil {
		t.Fatal(err)
	}
}
