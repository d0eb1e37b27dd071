package store

import (
	"context"
	"errors"

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
	_, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "compact", func(ctx context.Context, at *endpoint, _ string) (*pb.CompactionResponse, error) {
		return pb.NewKVClient(at.ActiveConnection()).Compact(ctx, &pb.CompactionRequest{Revision: rev})
	})
	if errors.Is(err, ErrCompacted) {
		return nil
	}
	return err
}
