package list

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// Dispatch is who dispatches, and whether that matters.
type Dispatch struct {
	// Role is that of the dispatcher, without a host if there is none.
	Role wire.Role
	// Pending counts the pools in which claims wait that have no offer.
	Pending int
}

// ReadDispatch reads who dispatches. A role that can't be read is an error.
func ReadDispatch(ctx context.Context, b store.Backend, keys store.Keys) (d Dispatch, err error) {
	k := wire.Keys{Keys: keys}
	pending := &pb.RangeRequest{Key: []byte(k.Pending("")), RangeEnd: store.RangeEnd(k.Pending("")), CountOnly: true}
	resp, err := b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Get(k.Role()), {Request: &pb.RequestOp_RequestRange{RequestRange: pending}},
	}})
	if err != nil {
		return d, err
	}
	d.Pending = int(resp.Responses[1].GetResponseRange().Count)
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		d.Role, err = wire.DecodeRole(k.Role(), kv.Value)
	}
	return d, err
}
