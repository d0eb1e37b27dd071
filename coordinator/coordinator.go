package coordinator

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Defaults of [Config].
const (
	DefaultTickInterval = 250 * time.Millisecond
	DefaultStartTimeout = 180 * time.Second
	// DefaultCompactInterval is that of Kubernetes' API server.
	DefaultCompactInterval = 5 * time.Minute
)

// Instance is the name of the coordinator's part among the instances of a host.
const Instance = "coordinator"

// Config is what a [Coordinator] needs.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host names the candidate: a host has one.
	Host string
	// Instance is [Instance] if empty.
	Instance string
	Version  string
	// TickInterval is how often a plan is made at the least. 0 is the default, as
	// for the other durations.
	TickInterval time.Duration
	// StartTimeout is how long an admitted run may wait for its executor.
	StartTimeout time.Duration
	// Retention is how long ended runs and events are kept.
	Retention time.Duration
	// CompactInterval is how much history etcd keeps. Below 0 it is left alone: for an
	// etcd that others use too.
	CompactInterval time.Duration

	Logger     hclog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) fill() {
	c.Instance = cmp.Or(c.Instance, Instance)
	c.TickInterval = cmp.Or(c.TickInterval, DefaultTickInterval)
	c.StartTimeout = cmp.Or(c.StartTimeout, DefaultStartTimeout)
	c.CompactInterval = cmp.Or(c.CompactInterval, DefaultCompactInterval)
	c.Retention = cmp.Or(c.Retention, run.DefaultRetention)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named("coordinator")
}

// Coordinator is one candidate: it leads while it is its turn.
type Coordinator struct {
	cfg      Config
	presence *lease.Presence
	election *election
	metrics  *metrics
	journal  *run.Journal
	leases   chan store.LeaseID // the newest presence lease
	leading  atomic.Bool
}

// New returns a candidate that does nothing until [Coordinator.Run].
func New(cfg Config) *Coordinator {
	cfg.fill()
	journal := run.NewJournal(cfg.Backend, cfg.Keys, cfg.Host+"/"+cfg.Instance, cfg.Retention)
	c := &Coordinator{
		cfg: cfg, election: newElection(cfg), metrics: newMetrics(cfg.Registerer, journal),
		journal: journal, leases: make(chan store.LeaseID, 1),
	}
	c.presence = lease.NewPresence(lease.PresenceConfig{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance,
		Role: "coordinator", Version: cfg.Version, PID: os.Getpid(), Logger: cfg.Logger,
		OnChange: c.setLease,
	})
	return c
}

// setLease hands the newest lease to the loop.
func (c *Coordinator) setLease(id store.LeaseID) {
	select {
	case <-c.leases:
	default:
	}
	c.leases <- id
}

// Leading tells whether this candidate leads now, as far as it knows.
func (c *Coordinator) Leading() bool { return c.leading.Load() }

// Ready is closed when the candidate is seen among the hosts.
func (c *Coordinator) Ready() <-chan struct{} { return c.presence.Ready() }

// Run stands, and leads when it is its turn, until ctx ends, and returns its cause.
// It returns earlier if another live process is the candidate of this host. On the
// way out it steps down, so that the next one leads at once.
func (c *Coordinator) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return c.presence.Run(inner) })
	g.Go(func() error { return c.election.feed.Run(inner) })
	g.Go(func() error { return c.loop(inner) })
	err := g.Wait()
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), standTimeout)
	defer cancel()
	if left := c.presence.Revoke(down); left != nil {
		c.cfg.Logger.Warn("could not step down: the next one leads when the lease has ended", "error", left)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// loop follows the election, and leads while it is our turn.
func (c *Coordinator) loop(ctx context.Context) error {
	e := c.election
	defer e.retry.Stop()
	for {
		if term, ok := e.leads(); ok {
			c.lead(ctx, term)
		}
		select {
		case e.lease = <-c.leases:
			e.stand(ctx)
		case m, ok := <-e.feed.Messages():
			if ok {
				e.message(m)
				e.stand(ctx)
			}
		case <-e.retry.C:
			e.stand(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errDeposed ends a term: somebody else leads, or soon will.
var errDeposed = errors.New("the leadership has ended")

// lead leads for as long as the election says so. What goes wrong meanwhile begins
// the term anew from what etcd says.
func (c *Coordinator) lead(ctx context.Context, term run.Candidate) {
	log := c.cfg.Logger.With("term", term.Term)
	log.Info("leading")
	c.metrics.leading.Set(1)
	c.metrics.terms.Inc()
	c.leading.Store(true)
	inner, cancel := context.WithCancelCause(ctx)
	done := make(chan error, 1)
	go func() { done <- newLeader(c.cfg, c.metrics, c.journal, term).run(inner) }()
	err := c.whileLeading(cancel, term, done)
	cancel(nil)
	c.leading.Store(false)
	c.metrics.leading.Set(0)
	c.metrics.steps.newest.Store(nil)
	log.Info("no longer leading", "reason", err)
}

// whileLeading follows the election until the term has ended, and returns why.
func (c *Coordinator) whileLeading(end context.CancelCauseFunc, term run.Candidate, done <-chan error) error {
	e := c.election
	for {
		select {
		case e.lease = <-c.leases:
		case m, ok := <-e.feed.Messages():
			if ok {
				e.message(m)
			}
		case <-e.retry.C:
		case err := <-done:
			// If the key is gone, the feed will tell as well; until then it is as good
			// as gone.
			delete(e.candidates, c.cfg.Keys.Coordinator(term.Lease))
			return err
		}
		if now, ok := e.leads(); !ok || now.Term != term.Term {
			end(errDeposed)
			return <-done
		}
	}
}
