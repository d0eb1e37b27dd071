package source

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Role is that of a source among the instances of a host.
const Role = "source"

// Config is what a [Source] needs.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Spec is valid.
	Spec Spec
	// List writes out what there is, as [Command.List] does.
	List func(context.Context) ([]byte, error)
	// Host is where it runs. Instance names the process, unlike any other of the host: a
	// name is made if it is empty.
	Host, Instance string
	Version        string
	// Retention is how long ended runs and events are kept.
	Retention time.Duration

	Logger     hclog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) fill() {
	if c.Instance == "" {
		c.Instance = Role + "." + c.Spec.Name + "." + strings.ToLower(rand.Text()[:8])
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named(Role).With("source", c.Spec.Name)
}

// Source is one process of a source: it looks while it is its turn.
type Source struct {
	cfg      Config
	presence *lease.Presence
	election *election
	metrics  *metrics
	runs     run.Store
	leases   chan store.LeaseID // the newest presence lease
}

// New returns a source that does nothing until [Source.Run].
func New(cfg Config) *Source {
	cfg.fill()
	s := &Source{
		cfg: cfg, election: newElection(cfg), metrics: newMetrics(cfg.Registerer, cfg.Spec.Name),
		leases: make(chan store.LeaseID, 1),
		runs: run.Store{
			Backend: cfg.Backend, Keys: cfg.Keys,
			Journal: run.NewJournal(cfg.Backend, cfg.Keys, cfg.Host+"/"+cfg.Instance, cfg.Retention),
		},
	}
	s.presence = lease.NewPresence(lease.PresenceConfig{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance,
		Role: Role, Version: cfg.Version, PID: os.Getpid(), Logger: cfg.Logger,
		OnChange: s.setLease,
	})
	return s
}

// setLease hands the newest lease to the loop.
func (s *Source) setLease(id store.LeaseID) {
	select {
	case <-s.leases:
	default:
	}
	s.leases <- id
}

// Instance is the name of the process.
func (s *Source) Instance() string { return s.cfg.Instance }

// Ready is closed when the process is seen among the hosts.
func (s *Source) Ready() <-chan struct{} { return s.presence.Ready() }

// Trouble tells why the source does not stand; nil while it does.
func (s *Source) Trouble() error { return s.presence.Trouble() }

// Run stands, and looks when it is its turn, until ctx ends, and returns its cause. A
// look under way is ended then, and the next one takes over at once.
func (s *Source) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return s.presence.Run(inner) })
	g.Go(func() error { return s.election.feed.Run(inner) })
	g.Go(func() error { return s.loop(inner) })
	err := g.Wait()
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), standTimeout)
	defer cancel()
	if left := s.presence.Revoke(down); left != nil {
		s.cfg.Logger.Warn("could not step down: the next one looks when the lease has ended", "error", left)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// errDeposed ends a term: it is somebody else's turn, or soon will be.
var errDeposed = errors.New("it is no longer the turn of this process")

// loop follows the election, and has a term run while it is our turn.
func (s *Source) loop(ctx context.Context) error {
	e := s.election
	defer e.retry.Stop()
	var t *term // the one that runs
	end := func() {
		if t != nil {
			t.stop()
			t = nil
			s.metrics.looking.Set(0)
			s.cfg.Logger.Info("no longer looking")
		}
	}
	defer end()
	for {
		var over <-chan struct{}
		now := e.turn()
		if t != nil && t.number != now {
			end()
		}
		if t == nil && now != 0 {
			s.cfg.Logger.Info("looking", "term", now)
			s.metrics.looking.Set(1)
			t = s.begin(ctx, now, e.lease, e.wake)
		}
		if t != nil {
			t.wake(e.wake)
			over = t.over
		}
		select {
		case e.lease = <-s.leases:
			e.stand(ctx)
		case m, ok := <-e.feed.Messages():
			if ok {
				e.message(m)
				e.stand(ctx)
			}
		case <-e.retry.C:
			e.stand(ctx)
		case <-over: // the feed will tell as well
			e.lost = t.number
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
