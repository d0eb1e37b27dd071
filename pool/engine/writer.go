package engine

import (
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/owner"
)

// writing says what a writer has to do next.
type writing int

const (
	fencing   writing = iota // earlier writes may still happen
	resolving                // they can't any longer: what has become of the last one is to be read
	sending                  // the next transaction
)

// writer sends the transactions of one half of the owner, one after the other.
type writer struct {
	half  owner.Half
	state writing
	first bool // nothing was sent yet: there is nothing to resolve
	// earlier: there was a guard of an earlier process, whose writes can't happen after the revision fencedAt.
	earlier  bool
	fencedAt int64
	sent     int // transactions that were answered, and unknown those without an answer
	unknown  int
	space    *owner.Space
	pace
	// failed is why etcd takes nothing of this half, nil if it does, or if that is not known.
	failed error
}

func newWriter(h owner.Half, space *owner.Space) *writer {
	return &writer{half: h, space: space, first: true}
}

// fenced reports whether writes of earlier processes can no longer happen.
func (w *writer) fenced() bool { return w.state == sending }

// next returns what is to be sent, nil if there is nothing.
func (w *writer) next(now time.Duration, at time.Time) *pb.TxnRequest {
	if !w.free(now) {
		return nil
	}
	var t *pb.TxnRequest
	switch w.state {
	case fencing:
		t = w.half.Fence()
	case resolving:
		t = w.half.Unresolved()
	case sending:
		t, _ = w.half.Next(now, at)
	}
	if t != nil {
		w.begin()
	}
	return t
}

// answer takes the answer to what was sent.
func (w *writer) answer(resp *pb.TxnResponse, err error, now time.Duration) {
	w.failed = nil
	if w.pace.answered(err, now); errors.Is(err, store.ErrNoSpace) {
		w.space.Refused(now)
	}
	if w.state != sending || aboutAll(err) {
		w.failed = err
	}
	switch {
	case w.state == sending:
		w.sent++
		if w.half.Answer(resp, err) {
			w.state = fencing
			w.unknown++
		}
	case err != nil:
	case w.state == resolving:
		w.half.Resolved(resp)
		w.state = sending
	case w.half.Fenced(resp):
		w.state = resolving
		if w.first {
			w.first, w.state, w.fencedAt = false, sending, resp.Header.Revision
		}
	case w.first:
		w.earlier = true
	}
}

// aboutAll reports whether an error is about no part of a transaction: etcd carries nothing out.
func aboutAll(err error) bool {
	return errors.Is(err, store.ErrTokenExpired) || errors.Is(err, store.ErrNoLogin) || store.OutcomeUnknown(err)
}
