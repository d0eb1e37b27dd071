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
	// Used returns how many bytes of its database etcd uses, with its history and without free
	// pages.
	Used(ctx context.Context) (int64, error)
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

// Used returns how much the member that requests are sent to uses.
func (c *Client) Used(ctx context.Context) (int64, error) {
	resp, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "status", func(ctx context.Context, at *endpoint, _ string) (*pb.StatusResponse, error) {
		return pb.NewMaintenanceClient(at.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	})
	return resp.GetDbSizeInUse(), err
}
