package storetest

import (
	"bytes"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// keyRange is what a delete covers, as etcd's check for overlaps understands it:
// there a range without an upper end covers nothing, and so do reversed ones.
type keyRange struct{ key, end []byte }

func (r keyRange) covers(key []byte) bool {
	if len(r.end) == 0 {
		return bytes.Equal(r.key, key)
	}
	return bytes.Compare(r.key, key) <= 0 && bytes.Compare(key, r.end) < 0
}

// mayOverlap reports whether a key is put twice, or put and deleted, anywhere in
// req. It almost never is, so that the exact rule need not be asked.
func (e *Etcd) mayOverlap(req *pb.TxnRequest) bool {
	e.puts, e.deletes = e.puts[:0], e.deletes[:0]
	e.collect(req)
	if len(e.puts) == 0 || len(e.puts) == 1 && len(e.deletes) == 0 {
		return false
	}
	slices.SortFunc(e.puts, bytes.Compare)
	for i := 1; i < len(e.puts); i++ {
		if bytes.Equal(e.puts[i-1], e.puts[i]) {
			return true
		}
	}
	for _, d := range e.deletes {
		at, found := slices.BinarySearchFunc(e.puts, d.key, bytes.Compare)
		if found || len(d.end) > 0 && at < len(e.puts) && d.covers(e.puts[at]) {
			return true
		}
	}
	return false
}

// collect collects all puts and deletes, of every branch.
func (e *Etcd) collect(req *pb.TxnRequest) {
	for _, ops := range [...][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		for _, op := range ops {
			switch r := op.GetRequest().(type) {
			case *pb.RequestOp_RequestPut:
				e.puts = append(e.puts, r.RequestPut.Key)
			case *pb.RequestOp_RequestDeleteRange:
				e.deletes = append(e.deletes, keyRange{r.RequestDeleteRange.Key, r.RequestDeleteRange.RangeEnd})
			case *pb.RequestOp_RequestTxn:
				e.collect(r.RequestTxn)
			}
		}
	}
}

// checkOverlaps is etcd's rule. The two branches of a transaction exclude each
// other and are judged apart.
func checkOverlaps(req *pb.TxnRequest) error {
	for _, ops := range [...][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		if _, _, ok := writesOf(ops); !ok {
			return errDuplicateKey
		}
	}
	return nil
}

// writesOf returns the keys that a list of operations puts and the ranges it
// deletes, those of all nested branches included, or false if two collide:
//
//   - a put of the list with any other put or delete;
//   - a put of a nested transaction with a put of an earlier one, or with a
//     delete of the list or of an earlier one. A delete in a later one passes.
//
// The last point is asymmetric because of the order in which it checks.
func writesOf(ops []*pb.RequestOp) (puts map[string]bool, deletes []keyRange, ok bool) {
	puts = make(map[string]bool)
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			deletes = append(deletes, keyRange{d.Key, d.RangeEnd})
		}
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		putsThen, deletesThen, okThen := writesOf(nested.GetSuccess())
		putsElse, deletesElse, okElse := writesOf(nested.GetFailure())
		if !okThen || !okElse || collide(putsThen, puts, deletes) || collide(putsElse, puts, deletes) {
			return nil, nil, false
		}
		for _, more := range []map[string]bool{putsThen, putsElse} {
			for key := range more {
				puts[key] = true
			}
		}
		deletes = append(append(deletes, deletesThen...), deletesElse...)
	}
	for _, op := range ops {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		if collide(map[string]bool{string(p.Key): true}, puts, deletes) {
			return nil, nil, false
		}
		puts[string(p.Key)] = true
	}
	return puts, deletes, true
}

func collide(more, puts map[string]bool, deletes []keyRange) bool {
	for key := range more {
		if puts[key] || slices.ContainsFunc(deletes, func(d keyRange) bool { return d.covers([]byte(key)) }) {
			return true
		}
	}
	return false
}
