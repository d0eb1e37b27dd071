package store

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// All responses of etcd are checked in one place, by the interceptors of each connection: a response
// of another cluster is an error, whichever call it is of. A response comes too late to prevent a
// write or a renewal there, so a connection is used only when it is known to lead to the cluster that
// the process works with: the first request of each connection asks for the id of its cluster.

// identified are credentials of connections that note to which cluster a connection leads.
type identified struct {
	credentials.TransportCredentials
}

// ClientHandshake makes a connection.
func (i identified) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := i.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, err
	}
	return conn, &connection{AuthInfo: info}, nil
}

// Clone returns a copy.
func (i identified) Clone() credentials.TransportCredentials {
	return identified{i.TransportCredentials.Clone()}
}

// connection is what is known of a connection.
type connection struct {
	credentials.AuthInfo
	cluster atomic.Uint64 // 0 until it is known
}

// errUnidentified refuses a request before it is sent: see [identifier.GetRequestMetadata].
var errUnidentified = status.Error(codes.Unavailable, "the connection is not known to lead to the etcd cluster of this process")

// identifier checks what one connection to an endpoint sends and receives.
type identifier struct{ cluster *Cluster }

// asksFor reports whether a method may be called on any connection: it changes nothing, and its
// response tells the cluster.
func asksFor(method string) bool {
	return method == pb.Maintenance_Status_FullMethodName || method == pb.Auth_Authenticate_FullMethodName
}

// GetRequestMetadata adds nothing to a request. It refuses one that would be sent on a connection to
// another cluster, or to one that is not known.
func (i *identifier) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	r, _ := credentials.RequestInfoFromContext(ctx)
	c, _ := r.AuthInfo.(*connection)
	now := i.cluster.at.Load().cluster
	if now == 0 || asksFor(r.Method) || i.leadsTo(ctx, c, now) {
		return nil, nil
	}
	return nil, errUnidentified
}

// leadsTo reports whether a connection leads to the cluster of now, and a request was made in that
// one: it may have waited for a connection or a login meanwhile.
func (i *identifier) leadsTo(ctx context.Context, c *connection, now uint64) bool {
	sent := i.sent(ctx).cluster
	return c != nil && c.cluster.Load() == now && (sent == now || sent == 0)
}

// RequireTransportSecurity is for the operator to decide.
func (i *identifier) RequireTransportSecurity() bool { return false }

// options are those of the connection.
func (i *identifier) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithPerRPCCredentials(i),
		grpc.WithChainUnaryInterceptor(i.unary),
		grpc.WithChainStreamInterceptor(i.stream),
	}
}

// unary sends a request, and checks its response.
func (i *identifier) unary(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, send grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	sent := i.sent(ctx)
	var over peer.Peer
	opts = append(opts[:len(opts):len(opts)], grpc.Peer(&over))
	err := send(ctx, method, req, resp, conn, opts...)
	if refused(err) {
		if err = i.ask(ctx, conn); err == nil {
			err = send(ctx, method, req, resp, conn, opts...)
		}
	}
	if err != nil {
		return err
	}
	id := clusterOf(resp)
	if c, ok := over.AuthInfo.(*connection); ok && c.cluster.Load() != id {
		c.cluster.Store(id)
	}
	if now := i.cluster.at.Load().cluster; now != id && leaderless(resp) {
		return fmt.Errorf("%w: a member of cluster %x that has no leader answered instead of %x", ErrOtherCluster, id, now)
	}
	return i.cluster.check(sent, id)
}

// leaderless reports whether a response is of a member that has no leader. It tells of its cluster
// all the same, but that one serves nothing: after a restore, it may be a member that was started
// with its old data.
func leaderless(resp any) bool {
	s, ok := resp.(*pb.StatusResponse)
	return ok && s.Leader == 0
}

// ask asks the member behind a connection for its cluster.
func (i *identifier) ask(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	return err
}

// refused reports whether a request was not sent.
func refused(err error) bool {
	return err != nil && status.Convert(err).Message() == status.Convert(errUnidentified).Message()
}

// stream opens a stream, and has its messages checked.
func (i *identifier) stream(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	sent := i.sent(ctx)
	s, err := open(ctx, d, conn, method, opts...)
	if refused(err) {
		if err = i.ask(ctx, conn); err == nil {
			s, err = open(ctx, d, conn, method, opts...)
		}
	}
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: s, by: i, sent: sent}, nil
}

// checkedStream is a stream of which each message is checked.
type checkedStream struct {
	grpc.ClientStream
	by   *identifier
	sent *history
}

// RecvMsg receives a message.
func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	return s.by.cluster.check(s.sent, clusterOf(m))
}

// clusterOf returns the id of the cluster that a response is of, 0 if it does not say.
func clusterOf(resp any) uint64 {
	if r, ok := resp.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		return r.GetHeader().GetClusterId()
	}
	return 0
}

// sentKey is the key of a context for the history that a request was made in.
type sentKey struct{}

// sentOf returns the history that a request was made in, nil if its context does not say.
func sentOf(ctx context.Context) *history {
	h, _ := ctx.Value(sentKey{}).(*history)
	return h
}

// sent returns the history that a request was made in.
func (i *identifier) sent(ctx context.Context) *history {
	if h := sentOf(ctx); h != nil {
		return h
	}
	return i.cluster.at.Load()
}
