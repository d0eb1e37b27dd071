package engine

import (
	"context"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// sweepAfter and sweepEvery are when guards of instances that are gone are deleted: not by an instance that ends soon, and
	// not by all at the same time. A sweep takes sweepAfter at most.
	sweepAfter = time.Minute
	sweepEvery = time.Hour
)

// sweepGuards deletes the guards of instances that are gone until ctx ends. What fails is done by another instance, or later.
func (e *Engine) sweepGuards(ctx context.Context) {
	next := time.NewTimer(sweepAfter + rand.N(sweepAfter))
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		try, cancel := context.WithTimeout(ctx, sweepAfter)
		n, err := store.SweepGuards(try, e.cfg.Backend, e.cfg.Keys, e.cfg.Host)
		cancel()
		if err != nil || n > 0 {
			e.cfg.Logger.Debug("swept the guards of instances that are gone", "guards", n, "error", err)
		}
		next.Reset(sweepEvery + rand.N(sweepAfter))
	}
}

// RemoveGuard deletes the guards of the instance once Run has returned, so that an instance that ends for good leaves no keys.
// A write of the instance that is still under way can't happen then.
func (e *Engine) RemoveGuard(ctx context.Context) error {
	t := &pb.TxnRequest{}
	for _, half := range []string{"", "~demands", "~offers"} {
		t.Success = append(t.Success, store.Delete(e.cfg.Keys.Guard(e.cfg.Host, e.cfg.Instance+half)))
	}
	_, err := e.cfg.Backend.Txn(ctx, t)
	return err
}
