package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// errNotListed is an answer that etcd never gives to a transaction without
// compares.
var errNotListed = errors.New("etcd refused a transaction without conditions")

// grant makes a lease, however often that takes.
func (k *Keeper) grant(ctx context.Context, job grant) {
	failed := 0
	made, err := backoff.Retry(ctx, func() (made, error) { return k.grantOnce(ctx, job.duration) },
		backoff.WithBackOff(pauses()),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, pause time.Duration) {
			failed++
			k.setTrouble(err)
			if failed == 1 {
				k.log.Warn("no lease could be made, trying again", "duration", job.duration, "error", err)
				return
			}
			k.log.Debug("still no lease could be made", "duration", job.duration, "tries", failed, "pause", pause, "error", err)
		}))
	if err != nil {
		return // ctx has ended
	}
	k.setTrouble(nil)
	k.lock()
	closed := k.closed
	switch {
	case closed:
	case made.cluster != k.book.cluster:
		k.book.ungranted(job) // another one is made in the cluster of now
	default:
		k.book.granted(k.clock.Now(), job, made.id, made.window)
	}
	k.mu.Unlock()
	if closed {
		k.giveBack(ctx, made.id)
		return
	}
	k.log.Debug("made a lease", "lease", name(made.id), "duration", job.duration, "tries", failed+1)
	k.poke()
}

// pauses are those between tries that fail.
func pauses() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = firstPause, maxPause
	return b
}

// made is a new lease.
type made struct {
	id      store.LeaseID
	window  Window
	cluster uint64
}

// grantOnce makes a lease and puts its key under leases/ on it. A lease that
// can't be listed is revoked: no process would resume it.
func (k *Keeper) grantOnce(ctx context.Context, d time.Duration) (made, error) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(d))
	defer cancel()
	before, _ := k.cfg.Backend.Cluster()
	sent := k.clock.Now()
	id, ttl, err := k.cfg.Backend.Grant(store.WithCluster(limited, before), d)
	if err != nil {
		return made{}, err
	}
	cluster, _ := k.cfg.Backend.Cluster()
	if before != 0 {
		cluster = before
	}
	ctx = store.WithCluster(ctx, cluster)
	if err := k.list(ctx, id, d, cluster); err != nil {
		k.giveBack(ctx, id)
		return made{}, fmt.Errorf("list lease %s: %w", name(id), err)
	}
	return made{id: id, window: NewWindow(sent, ttl), cluster: cluster}, nil
}

// list puts the key by which a later process finds a lease. If the outcome is unknown,
// that does no harm: the key is this lease's alone and ends with it.
func (k *Keeper) list(ctx context.Context, id store.LeaseID, d time.Duration, cluster uint64) error {
	if k.cfg.Token == "" {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, tryTimeout(d))
	defer cancel()
	value := encodeListing(listing{Token: k.cfg.Token, Instance: k.cfg.Instance, Duration: span(d), Cluster: clusterID(cluster)})
	resp, err := k.cfg.Backend.Txn(limited, &pb.TxnRequest{
		Success: []*pb.RequestOp{store.Put(k.cfg.Keys.Lease(k.cfg.Host, id), value, id)},
	})
	if err == nil && !resp.Succeeded {
		return errNotListed
	}
	return err
}
