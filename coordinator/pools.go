package coordinator

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
)

// firstReadTime is how long a new leader waits for the pools before it admits runs that
// need none.
const firstReadTime = 2 * time.Second

// pools follows the pools for a leader, once a run needs some.
type pools struct {
	claimer  *claimer
	follower *list.Follower
	// changed signals that pools have changed.
	changed chan struct{}
	since   time.Time
	seen    bool // the pools have been read
}

func newPools(c *claimer) *pools {
	return &pools{
		claimer: c, follower: list.NewFollower(c.cfg.Backend, c.cfg.Keys, c.cfg.Logger), changed: make(chan struct{}, 1), since: time.Now(),
	}
}

// starting reports whether the pools are not read yet, shortly after the start: runs
// without pools would pass the others if they were admitted meanwhile.
func (p *pools) starting(now time.Time) bool { return !p.seen && now.Sub(p.since) < firstReadTime }

// run works until ctx ends.
func (p *pools) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.follower.Run(ctx) })
	g.Go(func() error { return p.signal(ctx) })
	return g.Wait()
}

// signal signals that pools have changed, once claims can be made.
func (p *pools) signal(ctx context.Context) error {
	if err := p.claimer.engine.Ready(ctx); err != nil {
		return err
	}
	for {
		select {
		case p.changed <- struct{}{}:
		default:
		}
		select {
		case <-p.follower.Changed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// complete adds the free capacity of the pools to a snapshot. It is unknown while the engine
// can't claim.
func (p *pools) complete(s *Snapshot) {
	var claims []string
	for _, r := range s.InProgress {
		if r.Status == run.NotStarted && r.Claim != "" {
			claims = append(claims, r.Claim)
		}
	}
	space, held, at, err := p.follower.Space(claims)
	if err == nil {
		err = p.claimer.engine.Trouble()
	}
	if err != nil {
		space = nil
		p.claimer.cfg.Logger.Debug("runs that need pools wait: the pools cannot be read", "error", err)
	}
	p.seen = p.seen || err == nil
	s.Space, s.Kept = space, map[string]bool{}
	for _, r := range s.InProgress {
		if r.Claim != "" {
			there := slices.ContainsFunc(held[r.Claim], func(h pool.HolderStatus) bool { return h.Run == r.ID && run.Binds(h.Bind) })
			s.Kept[r.ID] = there || at < r.Revision
		}
	}
}
