package registry

import (
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// obstacle returns why nothing may be done.
func (s *survey) obstacle() error {
	if held := s.held(); len(s.processes)+len(held) > 0 {
		return problem.New(problem.Precondition,
			"the data under %s is in use: %w; stop every berth process, wait until no claim is held, then run 'berth upgrade' again",
			s.keys.Prefix(), &BusyError{Processes: s.processes, Claims: held})
	}
	if len(s.unreadable) == 0 {
		return nil
	}
	var names []string
	for _, err := range s.unreadable[:min(len(s.unreadable), maxNamed)] {
		names = append(names, err.Error())
	}
	if len(s.unreadable) > maxNamed {
		names = append(names, "and more")
	}
	return problem.New(problem.CorruptValue, "the data under %s can't be upgraded: %s; put a valid value there or delete the key, then run 'berth upgrade' again",
		s.keys.Prefix(), strings.Join(names, "; "))
}

// left is how many keys are to be put again or deleted.
func (s *survey) left() int {
	n := len(s.specs)
	for _, sp := range s.spans {
		n += sp.keys
	}
	return n
}

// transactions returns what is to be done, under the conditions of base: specs first, so that no process of the old
// layout that is started in between grants slots. If nothing else is left, it is to put the version.
func (s *survey) transactions(base []*pb.Compare) (all []*pb.TxnRequest) {
	for some := range slices.Chunk(s.specs, maxTogether) {
		txn := &pb.TxnRequest{Compare: slices.Clone(base)}
		for i := range some {
			s.rewrite(txn, &some[i])
		}
		all = append(all, txn)
	}
	for _, some := range together(s.spans) {
		txn := &pb.TxnRequest{Compare: slices.Clone(base)}
		for _, sp := range some {
			txn.Compare = append(txn.Compare, sp.unchanged(s.revision))
			txn.Success = append(txn.Success, store.DeleteUpTo(sp.first, sp.last))
		}
		all = append(all, txn)
	}
	if len(all) == 0 {
		all = append(all, &pb.TxnRequest{
			// Without its guard, no write of a process of the old layout that hangs can still arrive.
			Compare: append(slices.Clone(base), store.NonePutSince(s.keys.Pools(), s.revision), store.NonePutSince(s.keys.GuardsAll(), s.revision)),
			Success: []*pb.RequestOp{store.Put(wire.Keys{Keys: s.keys}.Layout(), version(), 0)},
		})
	}
	return all
}

// rewrite adds that a spec is put again, if it has not changed and no slot of its pool is held. The key of a task names
// the spec that a run has created for it: it is put in the same revision. It is not compared: while the spec is as it
// was, only runs put the key, to name the same spec again.
func (s *survey) rewrite(txn *pb.TxnRequest, is *oldSpec) {
	key := s.keys.Spec(is.pool)
	txn.Compare = append(txn.Compare, store.ModEquals(key, is.revision), store.NonePutSince(s.keys.Slots(is.pool), 0))
	txn.Success = append(txn.Success, store.Put(key, wire.EncodeSpec(is.spec, 0), 0))
	if t, ok := s.tasks[is.pool]; ok && t.spec == is.revision {
		txn.Success = append(txn.Success, store.Put(t.key, encodeTask(), 0))
	}
}

// together returns spans in groups, each for a transaction.
func together(spans []span) (groups [][]span) {
	keys := 0
	for _, sp := range spans {
		n := len(groups) - 1
		if n < 0 || len(groups[n]) == maxTogether || keys+sp.keys > maxDeleted {
			groups, keys = append(groups, nil), 0
			n++
		}
		groups[n] = append(groups[n], sp)
		keys += sp.keys
	}
	return groups
}

// unchanged is the condition that nothing of a span was put since a revision.
func (sp span) unchanged(revision int64) *pb.Compare {
	c := store.NonePutSince(sp.first, revision)
	c.RangeEnd = append([]byte(sp.last), 0)
	return c
}
