package source

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool/registry"
)

// Role is that of a source among the instances of a host.
const Role = "source"

// Config configures a [Source].
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Spec is valid.
	Spec Spec
	// List lists the items, as [Command.List] does.
	List func(context.Context) ([]byte, error)
	// Submitter returns the identity that runs are submitted as; nil is
	// [access.Unauthenticated].
	Submitter func(context.Context) (access.Identity, error)
	// Host is where it runs. Instance is the unique name of the process on the host; New
	// makes one if it is empty.
	Host, Instance string
	Version        string
	// Retention is how long events are kept.
	Retention time.Duration
	// MaxRunEvents bounds the events of a run; [run.DefaultMaxEvents] if 0.
	MaxRunEvents int

	Logger     hclog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) fill() {
	if c.Submitter == nil {
		c.Submitter = func(context.Context) (access.Identity, error) {
			return access.Identity{Kind: access.Unauthenticated, Grants: access.AllGrants}, nil
		}
	}
	if c.Instance == "" {
		c.Instance = Role + "." + c.Spec.Name + "." + strings.ToLower(rand.Text()[:8])
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named(Role).With("source", c.Spec.Name)
}

// Source is one process of a source: it polls while it is the leader.
type Source struct {
	*election.Campaign
	cfg     Config
	metrics *metrics
	runs    run.Store
	// requested is the revision of the last request to poll at once, and woken signals a
	// new one.
	requested atomic.Int64
	woken     chan struct{}
	leading   atomic.Bool
}

// New returns a source that does nothing until Run.
func New(cfg Config) *Source {
	cfg.fill()
	s := &Source{
		cfg: cfg, metrics: newMetrics(cfg.Registerer, cfg.Spec.Name), woken: make(chan struct{}, 1),
		runs: run.Store{
			Backend: cfg.Backend, Keys: cfg.Keys,
			Journal: run.NewJournal(cfg.Backend, cfg.Keys, cfg.Host+"/"+cfg.Instance, cfg.Retention).Bound(cfg.MaxRunEvents),
		},
	}
	s.Campaign = election.New(election.Config{
		Presence: lease.PresenceConfig{
			Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance,
			Role: Role, Version: cfg.Version, PID: os.Getpid(), Logger: cfg.Logger,
			Rights: cfg.Keys.RightsOf(store.SourceRole, cfg.Spec.Name+"@"+cfg.Host), Check: registry.Layout{Backend: cfg.Backend, Keys: cfg.Keys}.Check,
		},
		Prefix: cfg.Keys.SourceCandidates(cfg.Spec.Name),
		Watch:  cfg.Keys.SourceLive(cfg.Spec.Name), OnPut: s.put,
		Lead: s.lead,
	})
	return s
}

// Instance returns the name of the process.
func (s *Source) Instance() string { return s.cfg.Instance }

// put receives the requests to poll at once.
func (s *Source) put(kv *mvccpb.KeyValue) {
	if string(kv.Key) != s.cfg.Keys.SourceWake(s.cfg.Spec.Name) || s.requested.Swap(kv.ModRevision) >= kv.ModRevision {
		return
	}
	if s.leading.Load() { // else the first poll of the term fulfills it
		s.metrics.wakes.Inc()
	}
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// lead polls until ctx ends, or until etcd shows that the term has ended. A poll under way
// ends with ctx.
func (s *Source) lead(ctx context.Context, candidate election.Candidate) error {
	s.leading.Store(true)
	s.metrics.leading.Set(1)
	fence := election.NewFence(s.cfg.Keys.SourceCandidates(s.cfg.Spec.Name), candidate)
	err := (&term{Source: s, held: fence.Held()}).run(ctx)
	s.leading.Store(false)
	s.metrics.leading.Set(0)
	return err
}
