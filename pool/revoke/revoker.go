package revoke

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/wire"
)

// Revoker revokes claims of all hosts.
type Revoker struct {
	Backend store.Backend
	Keys    store.Keys
}

// Revoke asks the host of a held claim to revoke it: the host ends the validity of the claim, has the holder stop, and
// releases the claim within [pool.RevokeGrace]. With force, the slots are freed immediately; a protected resource can then
// refuse the old holder only by its fencing token. An unknown claim is a ClaimNotFound problem.
//
// The claim is an id, or HOST/INSTANCE/ID where several instances hold claims of one id: then the id alone is refused as
// Invalid.
//
// May, if it is given, returns why the caller may not revoke a claim.
func (r Revoker) Revoke(ctx context.Context, claim string, force bool, may ...pool.May) (pool.Revocation, error) {
	state, err := list.Read(ctx, r.Backend, r.Keys)
	if err != nil {
		return pool.Revocation{}, store.Problem("the claims could not be read", err)
	}
	c, err := state.Claim(claim)
	if err != nil {
		return pool.Revocation{}, err
	}
	for _, f := range may {
		if err := f(c.Record.Holder, c.Record.Pools); err != nil {
			return pool.Revocation{}, err
		}
	}
	if force {
		return r.freeByForce(ctx, c)
	}
	done := revocationOf(c)
	return done, r.RequestRevocation(ctx, done.Host, c.ID, done.Fence)
}

func revocationOf(c *list.Claim) pool.Revocation {
	by := c.Record.Holder
	return pool.Revocation{Claim: c.ID, Host: by.Host, Instance: by.Instance, Fence: c.Fence()}
}

// RequestWithdrawal asks a host to take a claim out of the wait queue. If it does not wait there, nothing happens.
func (r Revoker) RequestWithdrawal(ctx context.Context, host, id string) error {
	return r.RequestRevocation(ctx, host, id, wire.Waiting)
}

// RequestRevocation asks a host to revoke the claim with that id and fencing token. If it does not have the claim, nothing
// happens.
func (r Revoker) RequestRevocation(ctx context.Context, host, id string, fence store.Fence) error {
	lease, _, err := r.Backend.Grant(ctx, wire.RevocationTTL)
	if err == nil {
		put := r.put(host, id, wire.Revocation{Fence: fence}, lease)
		_, err = r.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{put}})
	}
	if err != nil {
		return store.Problem("the revocation could not be requested", err)
	}
	return nil
}

func (r Revoker) put(host, id string, v wire.Revocation, lease store.LeaseID) *pb.RequestOp {
	return store.Put(r.Keys.Revocation(host, id), wire.EncodeRevocation(v), lease)
}
