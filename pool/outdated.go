package pool

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// catchUpTimeout bounds what is done to find out whether the view is too old for
// a refusal: a watch that is whole delivers within a fraction of it.
const catchUpTimeout = 5 * time.Second

// outdated tells whether a refusal may rest on a view from before a change of the
// specs, and has waited until the view shows it: then asking again is worth it.
// Whoever makes a pool on one host may claim of it on another at once.
func (e *Engine) outdated(ctx context.Context, err error, pools ...string) bool {
	switch problem.CodeOf(err) {
	case problem.PoolNotFound, problem.ExceedsLimit:
	default:
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	rev, err := e.specsRevision(ctx, pools)
	if err != nil || rev == 0 {
		return false
	}
	seen, err := query(ctx, e, func(c *core) int64 { return c.view.rev })
	if err != nil || seen >= rev {
		return false
	}
	return e.WaitRevision(ctx, rev) == nil
}

// specsRevision asks etcd when the specs of some pools were put last. It is 0 if
// one of them is not there.
func (e *Engine) specsRevision(ctx context.Context, pools []string) (int64, error) {
	t := &pb.TxnRequest{}
	for _, name := range pools {
		t.Success = append(t.Success, store.Get(e.cfg.Keys.Spec(name)))
	}
	resp, err := e.cfg.Backend.Txn(ctx, t)
	if err != nil {
		return 0, err
	}
	last := int64(0)
	for _, r := range resp.Responses {
		kvs := r.GetResponseRange().Kvs
		if len(kvs) == 0 {
			return 0, nil
		}
		last = max(last, kvs[0].ModRevision)
	}
	return last, nil
}
