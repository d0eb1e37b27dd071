package coordinator

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/wire"
)

// lastTimeout bounds the last writes of a claimer.
const lastTimeout = time.Second

// claimer holds slots of pools for admitted runs until their executors take them over. While this coordinator leads, it dispatches
// the claims that wait on any host; while another one does, it replaces that if it falls silent.
type claimer struct {
	cfg      Config
	leases   *bridgeLeases
	presence *lease.Keeper // of the leases of the dispatcher's role
	engine   *engine.Engine
}

func newClaimer(cfg Config) *claimer {
	c := &claimer{cfg: cfg, leases: newBridgeLeases(cfg.Backend, cfg.StartTimeout)}
	c.presence = lease.NewKeeper(lease.Config{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance, Logger: cfg.Logger.Named("waiters"),
		OnReady: func() { c.engine.LeasesReady() },
		OnLost:  func(id store.LeaseID, cause error) { c.engine.LeaseLost(id, cause) },
	})
	c.engine = engine.New(engine.Config{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance, Kind: wire.Coordinator,
		Leases: c.leases, WaiterLeases: c.presence, PollInterval: cfg.TickInterval, Logger: cfg.Logger,
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(c.engine)
	}
	return c
}

// run works until ctx ends, and then has another instance dispatch. The slots that it holds expire with their lease unless they
// are taken over.
func (c *claimer) run(ctx context.Context) error {
	g, inner := errgroup.WithContext(context.WithoutCancel(ctx))
	g.Go(func() error { return c.leases.run(inner, c.engine.LeasesReady) })
	g.Go(func() error { return c.presence.Run(inner) })
	g.Go(func() error { return c.engine.Run(inner) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(inner, lastTimeout)
			defer cancel()
			_ = c.engine.Stop(last) // else others see that it is silent
		case <-inner.Done():
		}
		return cmp.Or(context.Cause(ctx), context.Cause(inner))
	})
	err := g.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	c.presence.RevokeAll(last)
	if left := c.engine.RemoveGuard(last); left != nil {
		c.cfg.Logger.Debug("the guard could not be removed", "error", left)
	}
	return err
}
