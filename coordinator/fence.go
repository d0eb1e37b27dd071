package coordinator

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// fence is the leader's election key, used for every write: each compares the key's
// revision and puts it anew. So a write needs the leadership, and makes all older
// ones impossible; nobody else ever puts the key.
type fence struct {
	key   string
	lease store.LeaseID
	term  int64 // the revision at which the key was created
	rev   int64
}

// compare holds if this process still leads, and no other write of its happened
// since the last one known.
func (f *fence) compare() *pb.Compare { return store.ModEquals(f.key, f.rev) }

func (f *fence) put(value []byte) *pb.RequestOp { return store.Put(f.key, value, f.lease) }

func (f *fence) get() *pb.RequestOp { return store.Get(f.key) }

// door settles older writes: when it has succeeded, none of them can happen.
func (f *fence) door(value []byte) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{f.compare()},
		Success: []*pb.RequestOp{f.put(value)},
		Failure: []*pb.RequestOp{f.get()},
	}
}

// answer takes the answer to a transaction that read the key where it failed. It
// tells whether this process still leads, as far as etcd knew then.
func (f *fence) answer(resp *pb.TxnResponse) (leads bool) {
	if resp.Succeeded {
		f.rev = resp.Header.Revision
		return true
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 || kvs[0].CreateRevision != f.term || kvs[0].Lease != int64(f.lease) {
		return false
	}
	f.rev = kvs[0].ModRevision
	return true
}
