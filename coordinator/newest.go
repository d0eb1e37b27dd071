package coordinator

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// newest is the key that was put last, as far as a view knows: what is decided from the view holds only
// in a history of etcd that has that put. After a restore, etcd may lack it and still have the last write
// of the leader, whose revision the fence compares.
type newest struct {
	key string // empty if it is not known
	rev int64
}

// put records a put.
func (n *newest) put(kv *mvccpb.KeyValue) {
	if kv.ModRevision > n.rev {
		n.key, n.rev = string(kv.Key), kv.ModRevision
	}
}

// deleted records that a key was deleted.
func (n *newest) deleted(key string) {
	if n.key == key {
		n.key = ""
	}
}

// since returns a compare under which etcd has the put, nil if it is not known or not later than a
// revision.
func (n newest) since(rev int64) []*pb.Compare {
	if n.key == "" || n.rev <= rev {
		return nil
	}
	return []*pb.Compare{store.ModAtLeast(n.key, n.rev)}
}
