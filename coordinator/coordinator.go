package coordinator

import (
	"cmp"
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool/registry"
)

// Defaults of [Config].
const (
	DefaultTickInterval = 250 * time.Millisecond
	DefaultStartTimeout = 180 * time.Second
	// DefaultCompactInterval is that of the Kubernetes API server.
	DefaultCompactInterval = 5 * time.Minute
)

// Instance is the default name of a coordinator among the instances of a host.
const Instance = "coordinator"

// Config configures a [Coordinator].
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host is the host of the candidate.
	Host string
	// Instance is [Instance] if empty.
	Instance string
	Version  string
	// TickInterval is the longest time between two ticks. 0 is the default, as for the
	// other durations.
	TickInterval time.Duration
	// StartTimeout is how long an admitted run may wait for its executor.
	StartTimeout time.Duration
	// Retention is how long ended runs and their events are kept.
	Retention time.Duration
	// MaxRunEvents bounds the events of a run; [run.DefaultMaxEvents] if 0.
	MaxRunEvents int
	// CompactInterval is how much history etcd keeps. If it is negative, etcd is not
	// compacted: for an etcd that other applications use as well.
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

// Coordinator is one candidate, which leads when it is elected.
type Coordinator struct {
	*election.Campaign
	cfg     Config
	metrics *metrics
	journal *run.Journal
	claimer *claimer
	leading atomic.Bool
}

// New returns a candidate that does nothing until Run.
func New(cfg Config) *Coordinator {
	cfg.fill()
	journal := run.NewJournal(cfg.Backend, cfg.Keys, cfg.Host+"/"+cfg.Instance, cfg.Retention).Bound(cfg.MaxRunEvents)
	c := &Coordinator{cfg: cfg, metrics: newMetrics(cfg.Registerer, journal, &poolCollector{backend: cfg.Backend, keys: cfg.Keys}), journal: journal, claimer: newClaimer(cfg)}
	c.Campaign = election.New(election.Config{
		Presence: lease.PresenceConfig{
			Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance,
			Role: "coordinator", Version: cfg.Version, PID: os.Getpid(), Logger: cfg.Logger,
			Rights: cfg.Keys.RightsOf(store.CoordinatorRole, cfg.Host), Check: registry.Layout{Backend: cfg.Backend, Keys: cfg.Keys}.Check,
		},
		Prefix: cfg.Keys.Coordinators(),
		Decode: func(kv *mvccpb.KeyValue) (election.Candidate, error) {
			c, err := run.DecodeCandidate(cfg.Keys, kv)
			return c.Candidate, err
		},
		Lead: c.lead,
	})
	return c
}

// Run campaigns and leads until ctx ends.
func (c *Coordinator) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Campaign.Run(inner) })
	g.Go(func() error {
		select {
		case <-c.Ready(): // from now on nobody else has its name
			return c.claimer.run(inner)
		case <-inner.Done():
			return context.Cause(inner)
		}
	})
	return g.Wait()
}

// Leading reports whether this candidate leads, as far as it knows.
func (c *Coordinator) Leading() bool { return c.leading.Load() }

// lead leads until ctx ends, or until etcd shows that the term has ended.
func (c *Coordinator) lead(ctx context.Context, term election.Candidate) error {
	c.metrics.leading.Set(1)
	c.metrics.terms.Inc()
	c.leading.Store(true)
	c.metrics.pools.leading.Store(true)
	c.claimer.engine.Lead(true)
	err := newLeader(c.cfg, c.metrics, c.journal, term).run(ctx, c.claimer)
	c.claimer.engine.Lead(false)
	c.leading.Store(false)
	c.metrics.pools.leading.Store(false)
	c.metrics.leading.Set(0)
	c.metrics.steps.newest.Store(nil)
	return err
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
