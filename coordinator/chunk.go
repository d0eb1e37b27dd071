package coordinator

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// maxItems bounds the changes of one chunk: each is a child of its transaction, of
// which etcd takes 128 with all that is beside them, and 64 keep a write short.
const maxItems = 64

// maxBytes bounds what a chunk puts; etcd's limit is 1.5 MiB in all.
const maxBytes = 1 << 20

// item is one change of a run, which happens or not by itself.
type item struct {
	old  *run.Run
	rec  run.Record // what it is then
	gone bool       // it is deleted instead
	cmps []*pb.Compare
	ops  []*pb.RequestOp
	done func() // called when it has happened
	// made takes a change that is none of a run, at its revision, with the answer to it.
	made func(rev int64, answer *pb.TxnResponse)
}

// bytes is how much an item puts.
func (it *item) bytes() (n int) {
	for _, op := range it.ops {
		n += len(op.GetRequestPut().GetValue())
	}
	return n
}

// first returns how many items go into the next chunk: at least one.
func first(items []item) (n int) {
	for bytes := 0; n < min(len(items), maxItems); n++ {
		if bytes += items[n].bytes(); bytes > maxBytes && n > 0 {
			break
		}
	}
	return n
}

// chunk is one write: changes that are independent of each other, under compares
// that they share.
type chunk struct {
	cmps  []*pb.Compare
	items []item
}

func (ch *chunk) txn(f *fence, me []byte) *pb.TxnRequest {
	t := &pb.TxnRequest{
		Compare: append([]*pb.Compare{f.compare()}, ch.cmps...),
		Failure: []*pb.RequestOp{f.get()},
	}
	for _, it := range ch.items {
		t.Success = append(t.Success, store.Nest(&pb.TxnRequest{Compare: it.cmps, Success: it.ops}))
	}
	t.Success = append(t.Success, f.put(me))
	return t
}

// take takes the answer into the state. It tells whether a change was not made,
// because the run has changed meanwhile: the watch will tell how.
func (ch *chunk) take(resp *pb.TxnResponse, s *state) (behind bool) {
	rev := resp.Header.Revision
	for i, it := range ch.items {
		switch {
		case !resp.Responses[i].GetResponseTxn().Succeeded:
			behind = true
		case it.made != nil:
			it.made(rev, resp.Responses[i].GetResponseTxn())
		case it.gone:
			s.remove(it.old.ID)
			s.gone[it.old.ID] = rev
		default:
			s.put(&run.Run{ID: it.old.ID, Record: it.rec, Created: it.old.Created, Revision: rev})
		}
		if resp.Responses[i].GetResponseTxn().Succeeded && it.done != nil {
			it.done()
		}
	}
	return behind
}
