package owner

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// sender sends the transactions of a half of the writer, one at a time, under the guard of the half.
type sender struct {
	guard    store.Guard
	space    *Space
	flight   *batch
	isolated int                 // so many more transactions have one part each
	suspects todo[store.LeaseID] // that etcd may not know
}

// outcome says what has become of a transaction.
type outcome int

const (
	isUnknown outcome = iota // it may have been carried out, or may be yet
	isRefused                // etcd has not carried it out, and never will
	isFailed                 // one of its compares has
	isDone                   // it was carried out
	isProbe                  // it was to find out whether etcd has space
)

// kind returns what the next transaction may do.
func (s *sender) kind(now time.Duration) batchKind {
	switch {
	case s.space.full && now < s.space.next:
		return onlyDeletes
	case !s.guard.Placed():
		return probes
	}
	return withPuts
}

// send returns a transaction that is then under way.
func (s *sender) send(b *batch, now time.Duration) (*pb.TxnRequest, bool) {
	if b.kind != onlyDeletes {
		s.space.tries(now)
	}
	s.isolated = max(0, s.isolated-1)
	s.flight = b
	return b.request(&s.guard), true
}

// answer takes the answer to the transaction that is under way, or the error that there was instead. It is under way until its
// outcome is known.
func (s *sender) answer(resp *pb.TxnResponse, err error) (b *batch, is outcome) {
	b = s.flight
	switch {
	case err != nil && store.OutcomeUnknown(err):
		return b, isUnknown
	case err != nil:
		is = isRefused
	case b.kind == probes:
		s.Fenced(resp)
		is = isProbe
	case !resp.Succeeded && s.guard.Foreign(resp):
		return b, isUnknown
	case !resp.Succeeded:
		is = isFailed
	default:
		if is = isDone; b.kind == withPuts {
			s.guard.Committed(resp.Header.Revision)
			s.space.found()
		}
	}
	s.flight = nil
	return b, is
}

// resolved returns the transaction with an unknown outcome that now is known.
func (s *sender) resolved() *batch {
	b := s.flight
	s.flight = nil
	return b
}

// isolate has so many transactions have one part each.
func (s *sender) isolate(transactions int) { s.isolated = transactions }

// Fence returns the transaction that fences earlier ones: in a full etcd it deletes the guard.
func (s *sender) Fence() *pb.TxnRequest {
	if s.space.full {
		return s.guard.DeleteFenceTxn()
	}
	return s.guard.FenceTxn()
}

// Fenced takes the answer to Fence, or to the put of a guard that was deleted.
func (s *sender) Fenced(resp *pb.TxnResponse) bool {
	done := s.guard.Answer(resp)
	if done && s.guard.Placed() {
		s.space.found()
	}
	return done
}
