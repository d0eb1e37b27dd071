package registry

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// codec is how etcd has pools.
type codec interface {
	// decode reads the spec that was put at a revision.
	decode(key string, data []byte, revision int64) (stored, error)
	// create returns the value of the spec of a new pool.
	create(s pool.Spec) []byte
	// keep returns what etcd keeps of a spec.
	keep(s pool.Spec) pool.Spec
	// remove returns what is deleted with the spec of a pool.
	remove(name string) []*pb.RequestOp
	// unused returns the conditions that no slots of a pool are held, and that no claim waits for it.
	unused(name string) []*pb.Compare
}

// stored is a spec as etcd has it.
type stored struct {
	pool.Spec
	// revision of the spec; 0 if there is none.
	revision int64
	// change returns the value of the spec that replaces it.
	change func(next pool.Spec) []byte
}

// numbered is the codec of pools whose slots have numbers.
type numbered struct{ keys wire.Keys }

// Numbered returns a registry of pools whose slots have numbers.
func Numbered(b store.Backend, keys store.Keys) Registry {
	return Registry{Backend: b, Keys: keys, codec: numbered{keys: wire.Keys{Keys: keys}}}
}

func (numbered) decode(key string, data []byte, revision int64) (stored, error) {
	s, counted, err := wire.DecodeSpec(key, data, revision)
	return stored{Spec: s, revision: revision, change: func(next pool.Spec) []byte {
		since := counted.Since
		if next.Limit != s.Limit {
			since = 0
		}
		return wire.EncodeSpec(next, since)
	}}, err
}

func (numbered) create(s pool.Spec) []byte { return wire.EncodeSpec(s, 0) }

func (numbered) keep(s pool.Spec) pool.Spec {
	s.Retain = 0
	return s
}

// remove deletes the demands too. Their owners learn that the pool does not exist when they read its spec again: they
// watch no demands.
func (n numbered) remove(name string) []*pb.RequestOp {
	return []*pb.RequestOp{store.DeleteAll(n.keys.DemandsAll(name)), store.Delete(n.keys.Pending(name))}
}

func (n numbered) unused(name string) []*pb.Compare {
	return []*pb.Compare{
		store.NonePutSince(n.keys.Slots(name), 0), store.NonePutSince(n.keys.DemandsAll(name), 0), store.CreateEquals(n.keys.Pending(name), 0),
	}
}
