package revoke

import (
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/wire"
)

// maxDeletes is the most deletions of one child: a claim has at most 1,664 keys, so a transaction has at most 26 children,
// and etcd adds up the operations of the levels, of which it takes 128.
const maxDeletes = 64

// Free frees the claim with that id and fencing token immediately, as [Revoker.Revoke] does with force, if it has not
// changed since it was read. Else it is a ClaimNotFound problem.
func (r Revoker) Free(ctx context.Context, in *list.State, id string, fence store.Fence) (pool.Revocation, error) {
	c, err := in.Fenced(id, fence)
	if err != nil {
		return pool.Revocation{}, err
	}
	return r.freeByForce(ctx, c)
}

// FreeBridge is Free for a bridge: see [pool.Request.Bridge]. It notifies nobody: a bridge has no holder to stop, and the
// instance that keeps it follows the pools.
func (r Revoker) FreeBridge(ctx context.Context, in *list.State, id string, fence store.Fence) error {
	c, err := in.Fenced(id, fence)
	if err != nil {
		return err
	}
	return r.free(ctx, c)
}

// freeByForce frees the slots of a claim that is held, and notifies its host, unless etcd is full: then it only deletes keys.
func (r Revoker) freeByForce(ctx context.Context, c *list.Claim) (pool.Revocation, error) {
	done := revocationOf(c)
	done.Forced = true
	lease, _, err := r.Backend.Grant(ctx, wire.RevocationTTL)
	if errors.Is(err, store.ErrNoSpace) {
		done.Unnotified = true
		return done, r.free(ctx, c)
	}
	if err != nil {
		return done, store.Problem("the claim was not released", err)
	}
	put := r.put(done.Host, c.ID, wire.Revocation{Fence: done.Fence, Forced: true}, lease)
	if err = r.free(ctx, c, put); err != nil {
		_ = r.Backend.Revoke(ctx, lease) // else it ends by itself
	}
	return done, err
}

// free deletes the keys of a claim and does what else is given, if its main key is as it was read.
func (r Revoker) free(ctx context.Context, c *list.Claim, also ...*pb.RequestOp) error {
	resp, err := r.Backend.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(c.Main, c.Revision)},
		Success: append(deletes(c), also...),
	})
	if err != nil {
		return store.Problem("the claim may or may not be released", err)
	}
	if !resp.Succeeded {
		return problem.New(problem.ClaimNotFound, "the claim ended before it could be released by force")
	}
	return nil
}

// deletes returns the operations that delete the keys of a claim. A key of another revision is another claim's.
func deletes(c *list.Claim) (ops []*pb.RequestOp) {
	for keys := range slices.Chunk(c.Keys, maxDeletes) {
		t := &pb.TxnRequest{}
		for _, key := range keys {
			t.Success = append(t.Success, deleteIf(key, store.ModEquals(key, c.Revision)))
		}
		ops = append(ops, store.Nest(t))
	}
	if c.Chosen != "" {
		by := c.Record.Holder
		value := wire.EncodeID(wire.ID{Host: by.Host, Instance: by.Instance})
		ops = append(ops, deleteIf(c.Chosen, store.ValueEquals(c.Chosen, value)))
	}
	return ops
}

func deleteIf(key string, holds *pb.Compare) *pb.RequestOp {
	return store.Nest(&pb.TxnRequest{Compare: []*pb.Compare{holds}, Success: []*pb.RequestOp{store.Delete(key)}})
}
