package coordinator

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// compactLooks is how often within the interval the leader looks how etcd grows.
	compactLooks = 5
	// compactGrowth is from how many revisions on it does not wait for the interval:
	// some 100 MB of history.
	compactGrowth = 500_000
)

// compaction makes etcd forget what is older than an interval, so that its history
// does not grow for ever. It keeps one interval's worth: whoever was away for less
// finds its place again.
type compaction struct {
	cfg     Config
	metrics *metrics
	etcd    store.Compacter

	since time.Time // when rev was the present
	rev   int64     // 0: not known yet
}

// run compacts until ctx ends; at once with a backend that can't, or if it is not to.
func (c *compaction) run(ctx context.Context) error {
	if c.etcd == nil || c.cfg.CompactInterval < 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	look := time.NewTicker(c.cfg.CompactInterval / compactLooks)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := c.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("etcd was not compacted, trying again", "error", err)
		}
	}
}

// look compacts if it is time to.
func (c *compaction) look(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	resp, err := c.cfg.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(c.cfg.Keys.Limits()), CountOnly: true})
	if err != nil {
		return err
	}
	rev := resp.Header.Revision
	if rev < c.rev {
		c.rev = 0 // etcd was restored from a backup
	}
	if c.rev > 0 && now.Sub(c.since) < c.cfg.CompactInterval && rev-c.rev < compactGrowth {
		return nil
	}
	if c.rev > 0 {
		if err := c.etcd.Compact(ctx, c.rev); err != nil {
			return err
		}
		c.metrics.compactions.Inc()
	}
	c.since, c.rev = now, rev
	return nil
}
