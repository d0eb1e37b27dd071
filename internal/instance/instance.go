// Package instance is one instance of berth: a process with its own leases, presence and
// guard. The Go API is a part of it; sidecars, workers and commands use all of it.
//
// [Open] joins what an instance consists of: the keepers of its leases, its presence among
// the hosts, and the engine that makes its claims. It starts them in the order of their
// dependencies, and resumes what the previous process of the instance held.
//
// # Nouns
//
//   - A [Client] is the running instance. If one of its components fails, it ends, and all
//     claims lose their validity.
//   - A [Claim] is held by the client, which can release it alone, or in one transaction
//     with other writes.
//   - A [KeyReservation] is one more key on a lease that the client renews, by which the
//     executor of a run or step shows that it is alive.
package instance

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/registry"
)

// Defaults of [Options].
const (
	// DefaultClaimTimeout bounds the wait of a claim.
	DefaultClaimTimeout = 10 * time.Minute
	// DefaultPollInterval and DefaultPollJitter set how often a waiting claim is checked
	// without an event.
	DefaultPollInterval = time.Second
	DefaultPollJitter   = 500 * time.Millisecond
	// openTimeout limits how long Open waits for etcd and for the end of an earlier
	// instance with the same name.
	openTimeout = 30 * time.Second
)

// Options configure a [Client]: where etcd is and how this instance is named. Only
// Endpoints is required.
type Options struct {
	// Endpoints are the client addresses of etcd's members.
	Endpoints []string
	// Dial connects to an endpoint; nil is grpc's own way.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS is called for each connection to etcd and returns how it speaks TLS; nil means
	// plain text.
	TLS func() *tls.Config
	// Username and Password authenticate the client to etcd, if it requires it.
	Username, Password string
	// Prefix starts all keys; the default is "/berth/".
	Prefix string

	// Host is the name that is shown for this machine's claims; the default is the host
	// name of the machine.
	Host string
	// Instance names this process on its host. The default is a name that is unique to
	// the process. Open refuses a name that another process uses.
	Instance string
	// StateDir makes the instance resumable: a process that opens the same directory
	// before the leases end takes over the claims of the previous process. It requires
	// Instance, and is locked while in use.
	StateDir string
	// Role, Version, Capacity and Queues are shown in lists of hosts.
	Role, Version string
	Capacity      int
	Queues        []string
	// Kind is that of the process; the default is [Service].
	Kind Kind
	// Rights, if not nil, returns the rights that the process needs of etcd on a host beyond
	// the role of the host. [Open] fails with etcd_denied if the user has not all of them.
	Rights func(k store.Keys, host string) []store.Right

	// ClaimTimeout limits the wait of claims without [WithWait]. The default is 10
	// minutes; a negative value means no wait.
	ClaimTimeout time.Duration
	// PollInterval and PollJitter default to [DefaultPollInterval] and
	// [DefaultPollJitter]. A negative interval is the longest, 5 s; a negative jitter is none.
	PollInterval, PollJitter time.Duration

	// OnWait, if not nil, is called with the problem that [Open] waits for whenever it
	// changes, for example host_in_use while another process has the name. It must not
	// block.
	OnWait func(why error)

	// Cluster is the etcd cluster of the process, if other clients of the process share it.
	Cluster *store.Cluster

	// Logger receives the log; nil discards it.
	Logger hclog.Logger
	// Registerer receives the metrics; nil disables them.
	Registerer prometheus.Registerer
}

func (o *Options) fill() error {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Kind == "" {
		o.Kind = Service
	}
	if o.Prefix == "" {
		o.Prefix = store.DefaultPrefix
	}
	if o.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return problem.Field("host", "this machine has no name (%w): set one", err)
		}
		o.Host = text.Host(name)
	}
	if err := pool.ValidateName(o.Host); err != nil {
		return problem.Field("host", "%q is not a host name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", o.Host)
	}
	switch {
	case o.Instance == "" && o.StateDir != "":
		return problem.Field("instance", "a state directory needs an instance with a fixed name")
	case o.Instance == "":
		o.Instance = strings.ToLower("p" + strconv.Itoa(os.Getpid()) + "-" + ulid.Make().String()[16:])
	}
	if err := pool.ValidateName(o.Instance); err != nil {
		return problem.Field("instance", "%q is not an instance name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", o.Instance)
	}
	defaults := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	defaults(&o.ClaimTimeout, DefaultClaimTimeout)
	defaults(&o.PollInterval, DefaultPollInterval)
	defaults(&o.PollJitter, DefaultPollJitter)
	for _, d := range []*time.Duration{&o.ClaimTimeout, &o.PollInterval, &o.PollJitter} {
		*d = max(0, *d) // the default was applied above, so 0 now means none
	}
	return nil
}

// Client is a running instance. Its methods are safe for concurrent use.
type Client struct {
	opts         Options
	identity     access.Identity // who makes a claim that records no other identity
	keys         store.Keys
	backend      *store.Client
	state        *lease.State // nil unless resumable
	clock        lease.Clock
	keeper       *lease.Keeper
	waiters      *lease.Keeper // renews the leases of waiters
	presence     *lease.Presence
	engine       *engine.Engine
	registry     registry.Registry
	reservations reservations
	metrics      *registrations // nil without a Registerer

	presencePart, enginePart, keeperPart, waitersPart *part

	opened atomic.Bool   // set when Open has returned
	serves atomic.Uint64 // id of the etcd cluster in which it has been ready
	done   chan struct{} // closed when a part has ended
	end    sync.Once
	err    error // the cause; set before done is closed
}

// Open connects to etcd and returns when the client can claim. With a state directory it
// first takes over the claims of the previous process: see [Client.Held]. The codes of
// its errors are etcd_unavailable, etcd_denied, host_in_use and invalid.
func Open(ctx context.Context, o Options) (*Client, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	c := &Client{opts: o, keys: store.NewKeys(o.Prefix), clock: lease.BootClock(), reservations: newReservations(), done: make(chan struct{})}
	if o.Registerer != nil {
		c.metrics = &registrations{Registerer: o.Registerer}
		c.opts.Registerer = c.metrics
	}
	if c.opts.Cluster == nil {
		c.opts.Cluster = store.NewCluster(c.opts.Logger, c.opts.Registerer)
	}
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.disconnect())
	}
	if err := c.start(ctx); err != nil {
		c.abort()
		return nil, errors.Join(err, c.disconnect())
	}
	c.opened.Store(true)
	c.noteDispatch(ctx)
	return c, nil
}

// noteDispatch logs that the instance may not dispatch, unless it is too short-lived for that to matter.
func (c *Client) noteDispatch(ctx context.Context) {
	if c.opts.Kind == Command {
		return
	}
	if err := store.Require(ctx, c.backend, c.keys.RightsOf(store.DispatcherRole, "")...); errors.Is(err, store.ErrDenied) {
		c.opts.Logger.Info("this process can't dispatch claims: run a coordinator, which can", "error", err)
	}
}

// connect connects to etcd and locks the state directory.
func (c *Client) connect(ctx context.Context) (err error) {
	if c.backend, err = dial(ctx, c.opts); err != nil {
		return err
	}
	by, err := audit.OnEtcd(c.backend, c.opts.Host).Identify(ctx)
	if err != nil {
		return err
	}
	c.identity = by.Identity
	c.registry = registry.Registry{Backend: c.backend, Keys: c.keys}
	if o := c.opts; o.StateDir != "" {
		c.state, err = lease.OpenState(filepath.Join(o.StateDir, o.Instance))
	}
	return err
}

// dial returns a connection to etcd after a successful probe.
func dial(ctx context.Context, o Options) (*store.Client, error) {
	backend, err := store.NewClient(store.Config{
		Endpoints: o.Endpoints, Dial: o.Dial, TLS: o.TLS, Username: o.Username, Password: o.Password,
		Logger: o.Logger, Registerer: o.Registerer, Cluster: o.Cluster,
		OnWait: func(why error) {
			if o.OnWait != nil {
				o.OnWait(etcdProblem(why))
			}
		},
	})
	if err != nil {
		return nil, problem.Field("endpoints", "%w", err)
	}
	if err := backend.Probe(ctx, store.NewKeys(o.Prefix).Pools()); err != nil {
		return nil, errors.Join(etcdProblem(err), backend.Close())
	}
	return backend, nil
}

// start creates the parts and runs them.
func (c *Client) start(ctx context.Context) error {
	o := c.opts
	cluster, _ := c.backend.Cluster()
	c.serves.Store(cluster)
	token := ""
	if c.state != nil {
		token = c.state.Token()
	}
	rights := c.keys.RightsOf(store.HostRole, o.Host)
	if o.Rights != nil {
		rights = append(rights, o.Rights(c.keys, o.Host)...)
	}
	c.presence = lease.NewPresence(lease.PresenceConfig{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance, Token: token,
		Role: o.Role, Version: o.Version, PID: os.Getpid(), Capacity: o.Capacity, Queues: o.Queues, Logger: o.Logger,
		Rights:    rights,
		Check:     registry.Layout{Backend: c.backend, Keys: c.keys}.Check,
		OnTrouble: c.notifyWait,
	})
	c.keeper = lease.NewKeeper(lease.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance, Token: token,
		Clock: c.clock, Logger: o.Logger, Registerer: o.Registerer,
		OnReady: func() {
			c.engine.LeasesReady()
			c.reservations.wake()
		},
		OnLost: func(id store.LeaseID, cause error) {
			c.engine.LeaseLost(id, cause)
			c.reservations.lost(id, cause)
		},
		OnRenewed: func(id store.LeaseID, again bool) { c.engine.LeaseRenewed(id, again) },
	})
	// Leases of waiters are not resumed: without a token they end with this process.
	c.waiters = lease.NewKeeper(lease.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance,
		Clock: c.clock, Logger: o.Logger.Named("waiters"),
		OnReady: func() { c.engine.LeasesReady() },
		OnLost:  func(id store.LeaseID, cause error) { c.engine.LeaseLost(id, cause) },
	})
	c.engine = engine.New(engine.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance, Kind: o.Kind,
		Leases: c.keeper, WaiterLeases: c.waiters, PollInterval: o.PollInterval, PollJitter: o.PollJitter, Logger: o.Logger,
	})
	if o.Registerer != nil {
		if err := o.Registerer.Register(c.engine); err != nil {
			return problem.New(problem.Internal, "metrics: %w", err)
		}
	}
	return c.startParts(ctx, token)
}
