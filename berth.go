// Package berth claims slots of named pools from Go programs, on an etcd that
// all programs share.
//
// [Open] connects an instance, [Client.Claim] takes slots of one or several
// pools, all or none, and [Claim.Release] gives them back. What a program holds
// hangs on leases that the client renews: if the program dies, its slots are
// free when its lease ends.
//
//	c, err := berth.Open(ctx, berth.Options{Endpoints: []string{"127.0.0.1:2379"}})
//	…
//	claim, err := c.Claim(ctx, berth.Slots{"db": 2})
//	…
//	defer claim.Release(ctx)
//	work(claim.Context())
//
// # What is guaranteed, and what is not
//
// No revision of etcd shows more slots taken than a pool had when they were
// granted, nor a part of a claim. A program that is cut off from etcd is told by
// [Claim.Context] before its lease can end. A program that does not listen, or
// that was stopped (SIGSTOP, a frozen machine), can still run when its slots
// have a new holder: what it writes can be told by [Claim.Fence], which is
// larger for every later holder.
package berth

import (
	"context"
	"crypto/tls"
	"errors"
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

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Defaults of [Options].
const (
	// DefaultClaimTimeout bounds the wait of a claim.
	DefaultClaimTimeout = 10 * time.Minute
	// DefaultPollInterval and DefaultPollJitter are how often a waiting claim is
	// looked at without being woken.
	DefaultPollInterval = time.Second
	DefaultPollJitter   = 500 * time.Millisecond
	// openTimeout bounds the wait for etcd in Open, and for the end of an
	// instance that had the same name.
	openTimeout = 30 * time.Second
)

// Options say where etcd is and who this instance is. Only Endpoints is needed.
type Options struct {
	// Endpoints are the client addresses of etcd's members.
	Endpoints []string
	// TLS for the connections; nil is plain text.
	TLS *tls.Config
	// Username and Password for an etcd that asks for them.
	Username, Password string
	// Prefix of all keys; "/berth/" if empty.
	Prefix string

	// Host is the name under which this machine's claims are seen; the machine's
	// own name if empty.
	Host string
	// Instance names this process on its host. If empty it is made up, new for
	// each process. A fixed one is refused while another process has it.
	Instance string
	// StateDir makes the instance resumable: a process that opens it again
	// within the leases takes over the claims of the one before. It needs a fixed
	// Instance, and is locked while in use.
	StateDir string
	// Role, Version, Capacity and Queues are shown in lists of hosts.
	Role, Version string
	Capacity      int
	Queues        []string

	// ClaimTimeout bounds the wait of claims that say nothing else; 10m if 0, and
	// no wait if negative.
	ClaimTimeout time.Duration
	// PollInterval and PollJitter: see [DefaultPollInterval]. Negative is never.
	PollInterval, PollJitter time.Duration

	// OnWait, if not nil, is told what [Open] waits for, whenever that changes: a
	// problem, such as host_in_use while another process has the name. It must not
	// block.
	OnWait func(why error)

	// Logger takes what is worth knowing; nil is silent.
	Logger hclog.Logger
	// Registerer takes the metrics; nil keeps none.
	Registerer prometheus.Registerer
}

func (o *Options) fill() error {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Prefix == "" {
		o.Prefix = store.DefaultPrefix
	}
	if o.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return problem.Field("host", "this machine has no name (%w): set one", err)
		}
		o.Host = strings.ToLower(name)
	}
	if err := pool.ValidateName(o.Host); err != nil {
		return problem.Field("host", "%q is no host name: allowed are 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", o.Host)
	}
	switch {
	case o.Instance == "" && o.StateDir != "":
		return problem.Field("instance", "a state directory needs an instance with a fixed name")
	case o.Instance == "":
		o.Instance = strings.ToLower("p" + strconv.Itoa(os.Getpid()) + "-" + ulid.Make().String()[16:])
	}
	if err := pool.ValidateName(o.Instance); err != nil {
		return problem.Field("instance", "%q is no instance name: allowed are 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", o.Instance)
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
		*d = max(0, *d) // 0 is taken, by the default
	}
	return nil
}

// Client is one instance of berth. Its methods may be called by many goroutines.
type Client struct {
	opts     Options
	keys     store.Keys
	backend  *store.Client
	state    *lease.State // nil unless resumable
	clock    lease.Clock
	keeper   *lease.Keeper
	waiters  *lease.Keeper // of the leases that waiters hang on
	presence *lease.Presence
	engine   *pool.Engine
	registry pool.Registry
	rooms    rooms
	metrics  *registrations // nil without a registry

	presencePart, enginePart, keeperPart, waitersPart *part

	opened atomic.Bool   // Open has returned
	done   chan struct{} // closed when a part has ended
	end    sync.Once
	err    error // why, before done is closed
}

// Open connects to etcd and returns when claims can be made. With a state
// directory it has taken over what the process before it held: see
// [Client.Held]. Its errors are problems: etcd_unavailable, etcd_denied,
// host_in_use, invalid.
func Open(ctx context.Context, o Options) (*Client, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	c := &Client{opts: o, keys: store.NewKeys(o.Prefix), clock: lease.BootClock(), rooms: newRooms(), done: make(chan struct{})}
	if o.Registerer != nil {
		c.metrics = &registrations{Registerer: o.Registerer}
		c.opts.Registerer = c.metrics
	}
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.disconnect())
	}
	if err := c.start(ctx); err != nil {
		c.abort()
		return nil, errors.Join(err, c.disconnect())
	}
	c.opened.Store(true)
	return c, nil
}

// connect takes the state directory and reaches etcd.
func (c *Client) connect(ctx context.Context) (err error) {
	if c.backend, err = dial(ctx, c.opts); err != nil {
		return err
	}
	c.registry = pool.Registry{Backend: c.backend, Keys: c.keys}
	if o := c.opts; o.StateDir != "" {
		c.state, err = lease.OpenState(filepath.Join(o.StateDir, o.Instance))
	}
	return err
}

// dial reaches etcd.
func dial(ctx context.Context, o Options) (*store.Client, error) {
	backend, err := store.NewClient(store.Config{
		Endpoints: o.Endpoints, TLS: o.TLS, Username: o.Username, Password: o.Password,
		Logger: o.Logger, Registerer: o.Registerer,
	})
	if err != nil {
		return nil, problem.Field("endpoints", "%w", err)
	}
	if err := backend.Probe(ctx, store.NewKeys(o.Prefix).Prefix()); err != nil {
		return nil, errors.Join(etcdProblem(err), backend.Close())
	}
	return backend, nil
}

// start makes the parts and runs them.
func (c *Client) start(ctx context.Context) error {
	o := c.opts
	token := ""
	if c.state != nil {
		token = c.state.Token()
	}
	c.presence = lease.NewPresence(lease.PresenceConfig{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance, Token: token,
		Role: o.Role, Version: o.Version, PID: os.Getpid(), Capacity: o.Capacity, Queues: o.Queues, Logger: o.Logger,
		OnTrouble: c.waitsFor,
	})
	c.keeper = lease.NewKeeper(lease.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance, Token: token,
		Clock: c.clock, Logger: o.Logger, Registerer: o.Registerer,
		OnReady: func() {
			c.engine.LeasesReady()
			c.rooms.wake()
		},
		OnLost: func(id store.LeaseID, cause error) {
			c.engine.LeaseLost(id, cause)
			c.rooms.lost(id, cause)
		},
		OnRenewed: func(id store.LeaseID, again bool) { c.engine.LeaseRenewed(id, again) },
	})
	// Waiters are not resumed: without a token, their leases end with this process.
	c.waiters = lease.NewKeeper(lease.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance,
		Clock: c.clock, Logger: o.Logger.Named("waiters"),
		OnReady: func() { c.engine.LeasesReady() },
		OnLost:  func(id store.LeaseID, cause error) { c.engine.LeaseLost(id, cause) },
	})
	c.engine = pool.New(pool.Config{
		Backend: c.backend, Keys: c.keys, Host: o.Host, Instance: o.Instance,
		Leases: c.keeper, WaiterLeases: c.waiters,
		PollInterval: o.PollInterval, PollJitter: o.PollJitter,
		Logger: o.Logger, Registerer: o.Registerer,
	})
	if o.Registerer != nil {
		if err := o.Registerer.Register(c.engine); err != nil {
			return problem.New(problem.Internal, "metrics: %w", err)
		}
	}
	return c.startParts(ctx, token)
}
