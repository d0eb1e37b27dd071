package storetest

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// admit refuses what only shows against the store, on the taken path alone: a
// put on a lease that is not there, a read at a revision that is not there. It
// returns the rest of the path behind req.
func (e *Etcd) admit(req *pb.TxnRequest, path []bool) ([]bool, error) {
	ops, path := branch(req, path[0]), path[1:]
	for _, op := range ops {
		var err error
		switch r := op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			if id := store.LeaseID(r.RequestPut.Lease); id != 0 && e.leases[id] == nil {
				err = errPutLease
			}
		case *pb.RequestOp_RequestRange:
			// Unlike a plain read, one in a transaction has no negative revisions,
			// except for -1 before the first compaction.
			switch rev := r.RequestRange.Revision; {
			case rev == 0:
			case rev > e.rev:
				err = errFuture
			case rev < e.compacted:
				err = errCompacted
			}
		case *pb.RequestOp_RequestTxn:
			path, err = e.admit(r.RequestTxn, path)
		}
		if err != nil {
			return nil, err
		}
	}
	return path, nil
}

// run carries out one transaction that was admitted: it can't fail.
type run struct {
	e     *Etcd
	path  []bool // verdicts not used yet
	began int64  // the revision before
	size  int    // how many events to expect
}

func (r *run) txn(req *pb.TxnRequest) *pb.TxnResponse {
	taken := r.path[0]
	r.path = r.path[1:]
	ops := branch(req, taken)
	r.size += len(ops)
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: taken}
	if len(ops) > 0 {
		resp.Responses = make([]*pb.ResponseOp, len(ops))
	}
	for i, op := range ops {
		resp.Responses[i] = r.op(op)
	}
	return resp
}

func (r *run) op(op *pb.RequestOp) *pb.ResponseOp {
	switch q := op.GetRequest().(type) {
	case *pb.RequestOp_RequestPut:
		r.put(q.RequestPut)
		return answerPut(r.e.rev)
	case *pb.RequestOp_RequestDeleteRange:
		n := r.deleteRange(q.RequestDeleteRange)
		return answerDelete(r.e.rev, n)
	case *pb.RequestOp_RequestRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{
			ResponseRange: r.e.read(q.RequestRange),
		}}
	case *pb.RequestOp_RequestTxn:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{
			ResponseTxn: r.txn(q.RequestTxn),
		}}
	}
	panic("storetest: an operation without a request was let in")
}

func (r *run) put(req *pb.PutRequest) {
	at, found := r.e.keys.find(req.Key)
	var before *mvccpb.KeyValue
	if found {
		before = r.e.keys[at]
	}
	c := r.change(mvccpb.Event_PUT, before)
	kv := &c.kv
	kv.ModRevision, kv.CreateRevision, kv.Version = r.e.rev, r.e.rev, 1
	kv.Lease = req.Lease
	if found {
		kv.Key, kv.Value = before.Key, bytes.Clone(req.Value)
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
		r.e.keys[at] = kv
		return
	}
	kv.Key, kv.Value = bytes.Clone(req.Key), bytes.Clone(req.Value)
	r.e.keys.insert(at, kv)
}

func (r *run) deleteRange(req *pb.DeleteRangeRequest) int64 {
	from, to := r.e.keys.span(req.Key, req.RangeEnd)
	for _, kv := range r.e.keys[from:to] {
		r.delete(kv)
	}
	r.e.keys.cut(from, to)
	return int64(to - from)
}

// delete makes the event of a delete; the caller updates the index.
func (r *run) delete(kv *mvccpb.KeyValue) {
	c := r.change(mvccpb.Event_DELETE, kv)
	c.kv.Key, c.kv.ModRevision = kv.Key, r.e.rev
}

// change is what one event allocates, in one piece.
type change struct {
	event mvccpb.Event
	kv    mvccpb.KeyValue
}

// change adds an event to the log, whose key-value the caller fills in. The
// first one makes the revision.
func (r *run) change(kind mvccpb.Event_EventType, before *mvccpb.KeyValue) *change {
	e := r.e
	if e.rev == r.began {
		e.rev++
		e.log = append(e.log, Revision{Rev: e.rev, Events: make([]*mvccpb.Event, 0, max(1, r.size))})
	}
	c := &change{}
	c.event.Type, c.event.Kv, c.event.PrevKv = kind, &c.kv, before
	last := &e.log[len(e.log)-1]
	last.Events = append(last.Events, &c.event)
	return c
}
