package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// renewals renews leases through one endpoint, on a stream that stays open from one
// renewal to the next: to open a stream costs etcd more than a renewal.
type renewals struct {
	conn *clientv3.Client

	mu     sync.Mutex
	stream *renewStream // in use; nil: none is
}

// renewStream is one stream. Etcd answers in the order of the requests.
type renewStream struct {
	token  string   // that it was opened with, and keeps
	sent   *history // that it was opened in, as its first request was
	opened chan struct{}
	cancel context.CancelFunc
	client pb.Lease_LeaseKeepAliveClient // once opened

	mu      sync.Mutex
	used    bool       // a request was sent
	closed  bool       // no further request is sent: another stream is in use
	waiting []*renewal // in the order of the requests
	err     error      // why it has ended
}

// renewal is one request, and its answer.
type renewal struct {
	id   LeaseID
	done chan renewed // buffered: the caller may be gone
}

type renewed struct {
	ttl time.Duration
	err error
}

var (
	// errOfAnother ends the requests behind one that etcd has refused, and the stream for it.
	errOfAnother = errors.New("another lease of the stream was refused")
	// errReplaced ends a request that came to its stream when another one was in use already.
	errReplaced = errors.New("the stream was replaced")
	errOrder    = errors.New("etcd has answered out of order")
)

// renew renews a lease as the user of a token. If it has no answer in time, its stream is
// given up, so that no late answer is taken for that to a later renewal.
func (r *renewals) renew(ctx context.Context, id LeaseID, token string) (time.Duration, error) {
	for {
		ttl, err := r.once(ctx, id, token)
		switch {
		case errors.Is(err, errOfAnother): // one less is before this one
		case errors.Is(err, errReplaced):
		default:
			return ttl, err
		}
	}
}

func (r *renewals) once(ctx context.Context, id LeaseID, token string) (time.Duration, error) {
	s := r.open(sentOf(ctx), token)
	req := &renewal{id: id, done: make(chan renewed, 1)}
	select {
	case <-s.opened:
		s.send(req)
	case <-ctx.Done():
		return 0, r.gaveUp(ctx, s)
	}
	select {
	case a := <-req.done:
		return a.ttl, a.err
	case <-ctx.Done():
		return 0, r.gaveUp(ctx, s)
	}
}

// gaveUp ends a stream that did not answer in time. A caller that was canceled is no
// evidence of that.
func (r *renewals) gaveUp(ctx context.Context, s *renewStream) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		r.end(s, fmt.Errorf("%w: a renewal had no answer in time", ErrUnavailable))
	}
	return err
}

// open returns the stream in use, or a new one that is not open yet. One with another
// token, or of another cluster, ends when it has answered what is under way.
func (r *renewals) open(sent *history, token string) *renewStream {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.stream; old != nil {
		if old.token == token && old.sent.cluster == sent.cluster {
			return old
		}
		go old.closeSend()
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), sentKey{}, sent))
	s := &renewStream{token: token, sent: sent, opened: make(chan struct{}), cancel: cancel}
	r.stream = s
	go r.run(ctx, s)
	return s
}

// run opens a stream, and passes on its answers until it ends, at the latest with the
// connection.
func (r *renewals) run(ctx context.Context, s *renewStream) {
	defer s.cancel()
	client, err := pb.NewLeaseClient(r.conn.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		r.end(s, err)
		close(s.opened)
		return
	}
	s.client = client
	close(s.opened)
	for {
		resp, err := client.Recv()
		if err == nil {
			err = s.answer(resp)
		}
		if err != nil {
			r.end(s, err)
			return
		}
	}
}

// end ends a stream, and the requests on it: what etcd refuses is the first of them.
func (r *renewals) end(s *renewStream, err error) {
	r.mu.Lock()
	if r.stream == s {
		r.stream = nil
	}
	r.mu.Unlock()
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: the stream has ended", ErrUnavailable)
	}
	s.err = err
	for i, req := range s.waiting {
		if i > 0 {
			err = s.toOthers()
		}
		req.done <- renewed{err: err}
	}
	s.waiting = nil
}

// toOthers is the error for all but the first request of a stream that has ended. One
// that was not used was refused to all.
func (s *renewStream) toOthers() error {
	for _, ofAll := range []error{ErrUnavailable, ErrOtherCluster} {
		if errors.Is(kindOf(s.err), ofAll) || errors.Is(s.err, ofAll) {
			return s.err
		}
	}
	if !s.used {
		return s.err
	}
	return errOfAnother
}

// send sends a request. If the stream has ended meanwhile, it was not of this request.
func (s *renewStream) send(req *renewal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		req.done <- renewed{err: s.toOthers()}
		return
	}
	if s.closed { // gRPC would end the stream, and with it the requests that it still answers
		req.done <- renewed{err: errReplaced}
		return
	}
	s.waiting, s.used = append(s.waiting, req), true
	_ = s.client.Send(&pb.LeaseKeepAliveRequest{ID: int64(req.id)}) // Recv tells why it failed
}

func (s *renewStream) closeSend() {
	<-s.opened
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.closed = true
		_ = s.client.CloseSend() // Recv tells
	}
}

// answer passes an answer on to the request that has waited for longest.
func (s *renewStream) answer(resp *pb.LeaseKeepAliveResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 || int64(s.waiting[0].id) != resp.ID {
		return fmt.Errorf("%w: %w", ErrUnavailable, errOrder)
	}
	req := s.waiting[0]
	s.waiting = s.waiting[1:]
	if resp.TTL <= 0 {
		req.done <- renewed{err: ErrLeaseNotFound}
		return nil
	}
	req.done <- renewed{ttl: time.Duration(resp.TTL) * time.Second}
	return nil
}
