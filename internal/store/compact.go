package store

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Compacter is a [Backend] that can make etcd forget its history.
type Compacter interface {
	// Compact forgets what was before a revision. One that is forgotten already is
	// no error.
	Compact(ctx context.Context, rev int64) error
}

var _ Compacter = (*Client)(nil)

// Compact forgets what was before a revision, for all who use that etcd.
func (c *Client) Compact(ctx context.Context, rev int64) error {
	conn, at := c.pick(&c.writes)
	begin := time.Now()
	_, err := pb.NewKVClient(conn.ActiveConnection()).Compact(ctx, &pb.CompactionRequest{Revision: rev})
	c.metrics.observe("compact", begin, err)
	c.fail(&c.writes, at, err)
	if err := classify("compact", err); err != nil && !errors.Is(err, ErrCompacted) {
		return err
	}
	return nil
}
