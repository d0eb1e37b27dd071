package engine

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/pool/owner"
)

const (
	// firstPause and mostPause are how long a half waits after a transaction that etcd did not carry out: doubled each time.
	firstPause = 20 * time.Millisecond
	mostPause  = 5 * time.Second
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
	busy  bool
	pause time.Duration
	after time.Duration // it sends nothing before
}

func newWriter(h owner.Half) *writer { return &writer{half: h, first: true} }

// fenced reports whether writes of earlier processes can no longer happen.
func (w *writer) fenced() bool { return w.state == sending }

// next returns what is to be sent, nil if there is nothing.
func (w *writer) next(now time.Duration, at time.Time) *pb.TxnRequest {
	if w.busy || now < w.after {
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
	w.busy = t != nil
	return t
}

// answer takes the answer to what was sent.
func (w *writer) answer(resp *pb.TxnResponse, err error, now time.Duration) {
	w.busy = false
	if err != nil {
		w.pause = min(max(2*w.pause, firstPause), mostPause)
		w.after = now + w.pause
	} else {
		w.pause, w.after = 0, 0
	}
	switch {
	case w.state == sending:
		if w.half.Answer(resp, err) {
			w.state = fencing
		}
	case err != nil:
	case w.state == resolving:
		w.half.Resolved(resp)
		w.state = sending
	case w.half.Fenced(resp):
		w.state = resolving
		if w.first {
			w.first, w.state = false, sending
		}
	}
}
