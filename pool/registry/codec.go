package registry

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// stored is a spec as etcd has it.
type stored struct {
	pool.Spec
	// revision of the spec; 0 if there is none.
	revision int64
	// since is the revision from which its limit holds; 0 is that of the spec.
	since int64
}

// change returns the value of the spec that replaces it.
func (s stored) change(next pool.Spec) []byte {
	if next.Limit != s.Limit {
		return wire.EncodeSpec(next, 0)
	}
	return wire.EncodeSpec(next, s.since)
}

// removal returns the operations that delete a pool with its demands. Their owners learn that the pool does not exist when they
// read its spec again: they watch no demands.
func (r Registry) removal(name string) []*pb.RequestOp {
	keys := wire.Keys{Keys: r.Keys}
	return []*pb.RequestOp{store.Delete(r.Keys.Spec(name)), store.DeleteAll(keys.DemandsAll(name)), store.Delete(keys.Pending(name))}
}
