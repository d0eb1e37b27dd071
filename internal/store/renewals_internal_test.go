package store

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// stream is a stream of renewals to etcd that counts what is sent after its end.
type stream struct {
	pb.Lease_LeaseKeepAliveClient
	closed     bool
	sent, late int
}

func (s *stream) Send(*pb.LeaseKeepAliveRequest) error {
	s.sent++
	if s.closed {
		s.late++
	}
	return nil
}

func (s *stream) CloseSend() error {
	s.closed = true
	return nil
}

// A caller has the stream in its hand while another one, with a new token, replaces it. gRPC ends a stream on
// which anything is sent after its end, with all requests that etcd has not answered yet.
func TestARenewalThatComesToAReplacedStreamSpoilsNoOther(t *testing.T) {
	client := &stream{}
	s := &renewStream{opened: make(chan struct{}), client: client}
	close(s.opened)
	before, behind := &renewal{id: 1, done: make(chan renewed, 1)}, &renewal{id: 2, done: make(chan renewed, 1)}
	s.send(before)
	s.closeSend()
	s.send(behind)
	if client.sent != 1 || client.late != 0 {
		t.Errorf("%d requests were sent, %d of them late", client.sent, client.late)
	}
	if a := <-behind.done; !errors.Is(a.err, errReplaced) {
		t.Errorf("the renewal behind got %+v", a)
	}
	if err := s.answer(&pb.LeaseKeepAliveResponse{ID: 1, TTL: 60}); err != nil {
		t.Fatal(err)
	}
	if a := <-before.done; a.err != nil || a.ttl != time.Minute {
		t.Errorf("the renewal before got %+v", a)
	}
}
