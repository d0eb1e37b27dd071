package engine

import (
	"context"
	"errors"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// readAtOnce is how many keys one transaction reads.
	readAtOnce = 100
	// poolsAtOnce is of how many pools one transaction reads the demands of an instance.
	poolsAtOnce = 10
)

// attached returns the keys that are attached to leases, and which of the leases are gone.
func attached(ctx context.Context, b store.Backend, ids []store.LeaseID) (keys []string, gone []store.LeaseID, err error) {
	for _, id := range ids {
		try, cancel := context.WithTimeout(ctx, txnTimeout)
		of, err := b.LeaseKeys(try, id)
		cancel()
		switch {
		case errors.Is(err, store.ErrLeaseNotFound):
			gone = append(gone, id)
		case err != nil:
			return nil, nil, err
		}
		keys = append(keys, of...)
	}
	return keys, gone, nil
}

// readKeys reads keys: nil for one that is absent.
func readKeys(ctx context.Context, b store.Backend, keys []string) (map[string]*mvccpb.KeyValue, error) {
	all := map[string]*mvccpb.KeyValue{}
	for part := range slices.Chunk(keys, readAtOnce) {
		t := &pb.TxnRequest{}
		for _, key := range part {
			t.Success = append(t.Success, store.Get(key))
		}
		try, cancel := context.WithTimeout(ctx, txnTimeout)
		resp, err := b.Txn(try, t)
		cancel()
		if err != nil {
			return nil, err
		}
		for i, key := range part {
			all[key] = first(resp.Responses[i].GetResponseRange().Kvs)
		}
	}
	return all, nil
}

// readClaims reads the slot keys, blocks and ids on leases.
func readClaims(ctx context.Context, b store.Backend, keys wire.Keys, ids []store.LeaseID) (kvs []*mvccpb.KeyValue, err error) {
	names, _, err := attached(ctx, b, ids)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(key string) bool {
		_, err := keys.Ref(key)
		return err != nil && !strings.HasPrefix(key, keys.ID(""))
	})
	all, err := readKeys(ctx, b, names)
	for _, kv := range all {
		if kv != nil && slices.Contains(ids, store.LeaseID(kv.Lease)) {
			kvs = append(kvs, kv)
		}
	}
	return kvs, err
}

// poolNames returns the names of all pools that have keys. It reads some keys of each pool only.
func poolNames(ctx context.Context, b store.Backend, keys wire.Keys) (names []string, err error) {
	from, end := keys.Pools(), store.RangeEnd(keys.Pools())
	for {
		resp, err := b.Range(ctx, &pb.RangeRequest{Key: []byte(from), RangeEnd: end, KeysOnly: true, Limit: readAtOnce})
		if err != nil || len(resp.Kvs) == 0 {
			return names, err
		}
		for _, kv := range resp.Kvs {
			name, _, _ := strings.Cut(string(kv.Key)[len(keys.Pools()):], "/")
			if len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
		from = string(store.RangeEnd(keys.Pools() + names[len(names)-1] + "/"))
	}
}

// endEarlier ends what an earlier process of an instance has put into the wait queue before a revision: its leases, with its
// demands, and the offers to it. Leases of claims stay, whatever others have attached to them.
func endEarlier(ctx context.Context, b store.Backend, keys wire.Keys, host, instance string, before int64, claims []store.LeaseID) error {
	names, err := poolNames(ctx, b, keys)
	if err != nil {
		return err
	}
	leases := map[store.LeaseID]bool{}
	for part := range slices.Chunk(names, poolsAtOnce) {
		t := &pb.TxnRequest{}
		for _, name := range part {
			prefix := keys.Demands(name, host, instance)
			t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
				RequestRange: &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix)}, // keys alone have no leases
			}})
		}
		resp, err := b.Txn(ctx, t)
		if err != nil {
			return err
		}
		for _, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				if kv.CreateRevision < before && kv.Lease != 0 {
					leases[store.LeaseID(kv.Lease)] = true
				}
			}
		}
	}
	for _, id := range claims {
		delete(leases, id)
	}
	for id := range leases {
		if err := b.Revoke(ctx, id); err != nil {
			return err
		}
	}
	_, err = b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(keys.Offers(host, instance))}})
	return err
}
