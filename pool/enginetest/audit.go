package enginetest

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/list"
)

// past is a backend that reads what etcd was at a revision.
type past struct {
	store.Backend
	revision int64
}

// Range reads keys as they were.
func (p past) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	old := proto.CloneOf(req)
	old.Revision = p.revision
	return p.Backend.Range(ctx, old)
}

// Txn reads keys as they were.
func (p past) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	old := proto.CloneOf(req)
	for _, op := range old.Success {
		if r := op.GetRequestRange(); r != nil {
			r.Revision = p.revision
		}
	}
	return p.Backend.Txn(ctx, old)
}

// audited is how many revisions of a behavior are checked: all, or some that are spread over all.
const audited = 300

// audit checks the invariants at every revision of the behavior, unless its keys were damaged or etcd was restored.
func (w world) audit() {
	w.Helper()
	if *w.damaged {
		return
	}
	var revisions []int64
	w.etcd.root.Do(func(e *storetest.Etcd) {
		for _, r := range e.History() {
			revisions = append(revisions, r.Rev)
		}
	})
	for i := 0; i < len(revisions) && !w.Failed(); i += 1 + len(revisions)/audited {
		r, err := list.Read(w.ctx(), past{w.etcd.root, revisions[i]}, w.keys)
		w.must(err)
		for _, v := range r.Verify() {
			w.Errorf("at revision %d: %s: %s", revisions[i], v.Key, v.Problem)
		}
	}
}
