package coordinator

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
)

// maxItems bounds the changes of one chunk: etcd takes 128 operations in a transaction,
// and a change has two, or is one child. One is the leader's own.
const maxItems = 63

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

// join makes the transaction of a chunk.
func (ch *chunk) join(f *election.Fence, me []byte, flat bool) *store.Joined {
	parts := make([]store.Part, len(ch.items))
	for i, it := range ch.items {
		parts[i] = store.Part{If: it.cmps, Then: it.ops}
	}
	txn := f.Write(me)
	txn.Compare = append(txn.Compare, ch.cmps...)
	return store.Join(txn, parts, flat)
}

// take takes the answer, by item, into the state. It tells whether a change was not made,
// because the run has changed meanwhile: the watch will tell how.
func (ch *chunk) take(rev int64, answers []*pb.TxnResponse, s *state) (behind bool) {
	for i, it := range ch.items {
		switch {
		case !answers[i].Succeeded:
			behind = true
		case it.made != nil:
			it.made(rev, answers[i])
		case it.gone:
			s.remove(it.old.ID)
			s.gone[it.old.ID] = rev
		default:
			s.put(&run.Run{ID: it.old.ID, Record: it.rec, Created: it.old.Created, Revision: rev})
		}
		if answers[i].Succeeded && it.done != nil {
			it.done()
		}
	}
	return behind
}
