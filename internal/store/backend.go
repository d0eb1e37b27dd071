package store

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// LeaseID names an etcd lease. Zero is no lease.
type LeaseID int64

// Backend is what berth asks of etcd. [Client] is the real one.
//
// A method that returns an error for which [OutcomeUnknown] is true may have been
// carried out, or may yet be.
type Backend interface {
	// Txn sends one transaction, once; it is never repeated here.
	Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error)
	// Range reads keys.
	Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error)
	// Watch follows every key of a range, from revision from on. The watch ends
	// when ctx does, or after a message with Err; then its channel closes.
	Watch(ctx context.Context, keys KeyRange, from int64) Watch
	// Grant makes a lease; the time to live granted can be longer than asked.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error)
	// Renew restarts a lease and returns its time to live. A lease that is gone
	// is [ErrLeaseNotFound].
	Renew(ctx context.Context, id LeaseID) (time.Duration, error)
	// Revoke ends a lease and deletes its keys. A lease that is gone already is
	// no error.
	Revoke(ctx context.Context, id LeaseID) error
	// TimeToLive returns the remaining time of a lease, or [ErrLeaseNotFound].
	TimeToLive(ctx context.Context, id LeaseID) (time.Duration, error)
	// LeaseKeys returns the keys that are attached to a lease, or [ErrLeaseNotFound]. A key that was put or deleted just now
	// may be missing, or be there still.
	LeaseKeys(ctx context.Context, id LeaseID) ([]string, error)
	// History counts how often etcd was found restored from a snapshot: at an earlier
	// revision than before, at a far later one, or as another cluster. What was read or watched at a lower
	// count is of a history that has ended.
	History() uint64
	// Cluster returns the id of the cluster whose answers count, 0 before the first answer,
	// and a channel that is closed when another cluster has replaced that one. Leases and
	// keys of the one before are void.
	Cluster() (id uint64, replaced <-chan struct{})
}

// Watch is a running watch.
type Watch interface {
	// Started is closed when the watch sees everything from then on, or has failed. A watch from revision 0 on delivers what
	// happens after it has started; what is read then shows all that was there before.
	Started() <-chan struct{}
	// Messages are in order and none is skipped. A revision is never split over
	// two messages.
	Messages() <-chan WatchMessage
	// RequestProgress asks for a message with the revision up to which
	// everything was delivered. It never blocks. The answer may be missing while
	// the watch lags: ask again.
	RequestProgress()
	// Abandon ends a watch that no longer delivers, and sends later watches
	// through another endpoint.
	Abandon()
}

// WatchMessage is one delivery of a watch.
type WatchMessage struct {
	// Events happened, in this order. Empty in a message of progress.
	Events []*mvccpb.Event
	// Revision up to which the watch has delivered everything.
	Revision int64
	// Err ends the watch: [ErrCompacted], [ErrUnavailable], …
	Err error
}
