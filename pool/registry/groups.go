package registry

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// spelled returns the codec of a registry: unless it is said, that of pools whose slots are in groups.
func (r Registry) spelled() codec {
	if r.codec != nil {
		return r.codec
	}
	return grouped{keys: r.Keys}
}

// grouped is the codec of pools whose slots are in groups. Its keys are not embedded: their methods would be part of every
// program that uses the codec.
type grouped struct{ keys store.Keys }

func (grouped) decode(key string, data []byte, revision int64) (stored, error) {
	s, err := pool.DecodeSpec(key, data, revision)
	return stored{Spec: s.Spec, revision: revision, change: s.Encode}, err
}

func (grouped) create(s pool.Spec) []byte { return pool.StoredSpec{}.Encode(s) }

func (grouped) keep(s pool.Spec) pool.Spec { return s }

// remove leaves the waiters: their owners see that the pool does not exist, and refuse them.
func (grouped) remove(string) []*pb.RequestOp { return nil }

func (g grouped) unused(name string) []*pb.Compare {
	return []*pb.Compare{
		store.CreateEquals(g.keys.Queued(name), 0), store.NonePutSince(g.keys.Slots(name), 0), store.NonePutSince(g.keys.Waiters(name), 0),
	}
}
