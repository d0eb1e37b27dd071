package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/berthhq/berth/internal/dial"
)

// Config names the etcd to use, and the credentials.
type Config struct {
	// Endpoints are the client addresses of the cluster's members, each with or
	// without a scheme. At least one.
	Endpoints []string
	// Dial connects to an endpoint; nil is grpc's own way.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS is called for each connection, and returns how it speaks TLS; nil is plain text.
	TLS func() *tls.Config
	// Username and Password are empty unless etcd asks for them.
	Username, Password string
	// OnWait, if not nil, is called with what [Client.Probe] waits for. It must not block.
	OnWait func(why error)
	// Logger takes what is worth knowing about endpoints. Nil is silent.
	Logger hclog.Logger
	// Registerer takes the metrics. Nil keeps none.
	Registerer prometheus.Registerer
	// Cluster is that of the process, whose clients share it. With nil, the client stays with the
	// cluster that answers first, and takes no answer of another one.
	Cluster *Cluster
}

// Client is the real [Backend]: connections per endpoint, so that one frozen
// member never holds up a request for longer than its deadline. Each kind of
// work stays with an endpoint until that one fails, and goes on with the next.
// Leases have a connection of their own, which is made when it is first used.
type Client struct {
	conns   []*endpoint
	login   *login // nil without a user
	metrics *clientMetrics
	log     hclog.Logger
	// username is who logs in.
	username string
	refusals refusals
	onWait   func(why error) // nil if nothing wants to know

	// What each kind of work uses now, as a number to take modulo len(conns).
	// They are apart, so that a watch that lags does not move the writes.
	writes, watches, leases, logins atomic.Uint32
	watched                         atomic.Uint64 // watches so far

	cluster *Cluster
}

var _ Backend = (*Client)(nil)

// endpoint is one of them, with its connections.
type endpoint struct {
	*clientv3.Client // for reads, transactions and watches
	// leases is for grants, renewals and revocations, and for logins, without which these
	// fail: on one connection, they would wait for the answers to reads.
	leases   *clientv3.Client
	renewals renewals
	remote   *dial.Endpoint
	// failed is set from a request that the endpoint did not answer until one that it answers.
	failed atomic.Bool
}

// newEndpoint makes the connections to an endpoint. Each is opened when it is first used.
func newEndpoint(cfg Config, cluster *Cluster, login *login, address string) (*endpoint, error) {
	at := dial.New(address, cfg.Dial, cfg.TLS)
	data, err := connect(cfg, cluster, login, at, address)
	if err != nil {
		return nil, err
	}
	leases, err := connect(cfg, cluster, login, at, address)
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return &endpoint{Client: data, leases: leases, renewals: renewals{conn: leases}, remote: at}, nil
}

// close ends the connections.
func (e *endpoint) close() error {
	var errs []error
	for _, conn := range []*clientv3.Client{e.Client, e.leases} {
		if err := conn.Close(); err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const (
	// dialKeepAlive and dialKeepAliveTimeout make a vanished host known within
	// 13 s; requests do not wait for that, they have deadlines of their own.
	dialKeepAlive        = 10 * time.Second
	dialKeepAliveTimeout = 3 * time.Second
	// maxAnswer bounds an answer, as etcd's own client does: a page of keys with
	// all that holders may say of themselves is larger than the 4 MB of gRPC.
	maxAnswer = math.MaxInt32
)

// NewClient makes the connections without waiting for them; [Client.Probe]
// tells whether the cluster answers.
func NewClient(cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("no etcd endpoint is set")
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	c := &Client{metrics: newClientMetrics(cfg.Registerer), log: log.Named("store"), onWait: cfg.OnWait, cluster: cfg.Cluster}
	if c.cluster == nil {
		c.cluster = newCluster()
	}
	if cfg.Username != "" && cfg.Password != "" {
		c.username = cfg.Username
		c.login = newLogin(func(ctx context.Context) (string, error) { return c.logIn(ctx, cfg.Username, cfg.Password) })
		c.cluster.has(c.login)
	}
	for _, address := range cfg.Endpoints {
		conn, err := newEndpoint(cfg, c.cluster, c.login, address)
		if err != nil {
			err = fmt.Errorf("etcd endpoint %q: %w", address, err)
			return nil, errors.Join(err, c.Close())
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

// connect makes the connection to one endpoint. Etcd's own client does not know the
// user: it would log in for each stream, and for each endpoint.
func connect(cfg Config, cluster *Cluster, login *login, at *dial.Endpoint, address string) (*clientv3.Client, error) {
	options := append((&identifier{cluster}).options(), grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if cfg.Dial != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dial))
	}
	if login != nil {
		options = append(options, grpc.WithPerRPCCredentials(login))
	}
	var conf *tls.Config
	if cfg.TLS != nil {
		conf = cfg.TLS()
	}
	options = append(options, grpc.WithTransportCredentials(identified{at.Credentials()}))
	return clientv3.New(clientv3.Config{
		Endpoints:            []string{address},
		TLS:                  conf,
		DialKeepAliveTime:    dialKeepAlive,
		DialKeepAliveTimeout: dialKeepAliveTimeout,
		// One try: a repeated write could be carried out twice.
		MaxUnaryRetries: 1,
		DialOptions:     options,
		Logger:          zap.NewNop(),
	})
}

// Close ends all connections, and so all watches. It waits for nothing.
func (c *Client) Close() error {
	if c.login != nil {
		c.login.end()
		c.cluster.hasNot(c.login)
	}
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.close())
	}
	return errors.Join(errs...)
}

// probeTry bounds the wait for one endpoint in [Client.Probe].
const probeTry = 3 * time.Second

// Probe reads below prefix through each endpoint in turn until one answers, and
// leaves the work with that one. Its error says what each endpoint said. It is [ErrInsecure] or
// [ErrDenied] only if no endpoint could give another answer later.
func (c *Client) Probe(ctx context.Context, prefix string) error {
	c.waits(c.conns[int(c.logins.Load())%len(c.conns)], nil)
	if _, err := c.login.get(ctx); err != nil {
		if c.isLasting() {
			return fmt.Errorf("%w: %s", ErrInsecure, strings.TrimPrefix(err.Error(), ErrNoLogin.Error()+": "))
		}
		return err // it has tried all endpoints
	}
	var tried []string
	var last error
	for range c.conns {
		conn, at := c.pick(&c.writes)
		c.waits(conn, tried)
		try, cancel := context.WithTimeout(ctx, probeTry)
		_, err := c.Range(try, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: RangeEnd(prefix), CountOnly: true})
		cancel()
		if err == nil {
			c.watches.Store(c.writes.Load())
			c.leases.Store(c.writes.Load())
			return nil
		}
		last = err
		tried = append(tried, conn.said(err))
		c.fail(&c.writes, at, err)
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("%w (%s)", c.probeKind(last), strings.Join(tried, "; "))
}

// waits reports for which endpoint a probe waits, after it has tried others.
func (c *Client) waits(at *endpoint, tried []string) {
	if c.onWait != nil {
		tried = append(tried[:len(tried):len(tried)], at.Endpoints()[0]+" has not answered yet")
		c.onWait(fmt.Errorf("%w (%s)", ErrUnavailable, strings.Join(tried, "; ")))
	}
}

// probeKind returns the kind of the error of a probe that has failed with err at the last endpoint.
func (c *Client) probeKind(err error) error {
	if c.isLasting() {
		return ErrInsecure
	}
	for _, k := range []error{ErrDenied, ErrUnavailable, ErrNoSpace, ErrOtherCluster} {
		if errors.Is(err, k) {
			return k
		}
	}
	return cmp.Or(kindOf(errors.Unwrap(err)), ErrUnavailable)
}

// isLasting reports whether certificates are not accepted at any endpoint, so that waiting does not help.
func (c *Client) isLasting() bool {
	return !slices.ContainsFunc(c.conns, func(e *endpoint) bool { return !e.remote.Lasting() })
}

// explained is an [ErrUnavailable] of which it is known what is wrong with the endpoint.
type explained struct{ op, text string }

// Error says what has failed, and why.
func (e *explained) Error() string { return fmt.Sprintf("%s: %v: %s", e.op, ErrUnavailable, e.text) }

// Unwrap returns the kind of the error.
func (e *explained) Unwrap() error { return ErrUnavailable }

// explain is [classify], with what is wrong with the endpoint instead of an error of gRPC if that is known.
func (e *endpoint) explain(op string, err error) error {
	if errors.Is(kindOf(err), ErrUnavailable) {
		if text := e.remote.Why(err); text != "" {
			return &explained{op, text}
		}
	}
	return classify(op, err)
}

// why returns the text of an error of a request to the endpoint.
func (e *endpoint) why(err error) string {
	if text := e.remote.Why(err); text != "" {
		return text
	}
	return plain(err)
}

// said returns a text with what came of a request to an endpoint, which begins with its address.
func (e *endpoint) said(err error) string {
	var known *explained
	if errors.As(err, &known) {
		return known.text
	}
	return fmt.Sprintf("%s: %s", e.Endpoints()[0], reason(err))
}

// reason shortens an error of a probe to what its reader can use.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) && strings.HasSuffix(err.Error(), noAnswer) {
		return fmt.Sprintf("no answer within %s", probeTry)
	}
	return err.Error()
}

// Txn sends one transaction, once: again only if etcd has refused to process it, since it
// did not know the login.
func (c *Client) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	sent := c.cluster.at.Load()
	seen := sent.highest.Load()
	resp, err := do(ctx, c, sent, &c.writes, "txn", func(ctx context.Context, at *endpoint, _ string) (*pb.TxnResponse, error) {
		return pb.NewKVClient(at.ActiveConnection()).Txn(ctx, req)
	})
	if err != nil {
		return nil, c.explain(ctx, err, func() []Right { return rightsFor(req, nil) })
	}
	return resp, c.cluster.checkRevision(sent, seen, resp.Header.Revision)
}

// Range reads keys.
func (c *Client) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	sent := c.cluster.at.Load()
	seen := sent.highest.Load()
	resp, err := do(ctx, c, sent, &c.writes, "range", func(ctx context.Context, at *endpoint, _ string) (*pb.RangeResponse, error) {
		return pb.NewKVClient(at.ActiveConnection()).Range(ctx, req)
	})
	if err != nil {
		return nil, c.explain(ctx, err, func() []Right { return []Right{{false, KeyRange{string(req.Key), string(req.RangeEnd)}}} })
	}
	return resp, c.cluster.checkRevision(sent, seen, resp.Header.Revision)
}

// History counts the restores of etcd that responses have shown: by an earlier revision than one
// before, a far later one, or the id of another cluster.
func (c *Client) History() uint64 { return c.cluster.at.Load().number }

// Cluster returns the id of the cluster that the client works with, and a channel that is closed when
// another one has replaced it.
func (c *Client) Cluster() (id uint64, replaced <-chan struct{}) {
	h := c.cluster.at.Load()
	return h.cluster, h.over
}

// Grant makes a lease. Its time to live is rounded up to whole seconds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error) {
	resp, err := do(ctx, c, c.cluster.at.Load(), &c.leases, "grant", func(ctx context.Context, at *endpoint, _ string) (*pb.LeaseGrantResponse, error) {
		return pb.NewLeaseClient(at.leases.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds(ttl)})
	})
	if err != nil {
		return 0, 0, err
	}
	return LeaseID(resp.ID), time.Duration(resp.TTL) * time.Second, nil
}

// Renew restarts a lease.
func (c *Client) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	ttl, err := do(ctx, c, c.cluster.at.Load(), &c.leases, "renew", func(ctx context.Context, at *endpoint, token string) (time.Duration, error) {
		return at.renewals.renew(ctx, id, token)
	})
	return ttl, c.explain(ctx, err, nil)
}

// Revoke ends a lease.
func (c *Client) Revoke(ctx context.Context, id LeaseID) error {
	_, err := do(ctx, c, c.cluster.at.Load(), &c.leases, "revoke", func(ctx context.Context, at *endpoint, _ string) (*pb.LeaseRevokeResponse, error) {
		return pb.NewLeaseClient(at.leases.ActiveConnection()).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)})
	})
	if errors.Is(err, ErrLeaseNotFound) {
		return nil
	}
	return c.explain(ctx, err, nil)
}

// TimeToLive returns the remaining time of a lease.
func (c *Client) TimeToLive(ctx context.Context, id LeaseID) (time.Duration, error) {
	resp, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "time_to_live", func(ctx context.Context, at *endpoint, _ string) (*pb.LeaseTimeToLiveResponse, error) {
		return pb.NewLeaseClient(at.ActiveConnection()).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id)})
	})
	switch {
	case err != nil:
		return 0, c.explain(ctx, err, nil)
	case resp.TTL < 0:
		return 0, fmt.Errorf("%s: %w", operations["time_to_live"], ErrLeaseNotFound)
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// LeaseKeys returns the keys that are attached to a lease.
func (c *Client) LeaseKeys(ctx context.Context, id LeaseID) ([]string, error) {
	resp, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "time_to_live", func(ctx context.Context, at *endpoint, _ string) (*pb.LeaseTimeToLiveResponse, error) {
		return pb.NewLeaseClient(at.ActiveConnection()).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id), Keys: true})
	})
	switch {
	case err != nil:
		return nil, c.explain(ctx, err, nil)
	case resp.TTL < 0:
		return nil, fmt.Errorf("%s: %w", operations["time_to_live"], ErrLeaseNotFound)
	}
	keys := make([]string, len(resp.Keys))
	for i, k := range resp.Keys {
		keys[i] = string(k)
	}
	return keys, nil
}

// pick returns the connection that a kind of work uses now, and its number.
func (c *Client) pick(role *atomic.Uint32) (*endpoint, uint32) {
	at := role.Load()
	return c.conns[int(at)%len(c.conns)], at
}

// fail moves a kind of work to the next endpoint if err means that this one
// does not answer. Only the first of many requests that fail together moves it.
func (c *Client) fail(role *atomic.Uint32, at uint32, err error) {
	if err == nil || len(c.conns) == 1 {
		return
	}
	failed := errors.Is(err, ErrUnavailable) || errors.Is(kindOf(err), ErrUnavailable)
	if failed || errors.Is(err, ErrOtherCluster) {
		if role.CompareAndSwap(at, at+1) {
			gone, next := c.conns[int(at)%len(c.conns)], c.conns[int(at+1)%len(c.conns)]
			level := hclog.Info
			if gone.failed.Swap(true) {
				level = hclog.Debug // without a majority, all endpoints fail again and again
			}
			c.log.Log(level, "an etcd endpoint failed, going on with the next one", "endpoint", gone.Endpoints()[0], "next", next.Endpoints()[0], "error", gone.why(err))
		}
	}
}

// seconds is the one place where a duration becomes the whole seconds of etcd:
// rounded up, at least one.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
