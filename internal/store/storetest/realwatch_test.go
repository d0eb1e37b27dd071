package storetest

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

func TestRealEtcdAgreesOnWhenProgressIsSilent(t *testing.T) {
	r := newReal(t)
	cases := []struct {
		name  string
		ahead int64 // the watch starts that far behind the last revision
		want  bool
	}{
		{"opened at the last revision", 0, true},
		{"opened at the next revision", 1, false},
		{"opened far ahead", 7, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := r.begin(t)
			_, err := r.client.Txn(r.ctx, always(put("a")))
			must(t, err)
			from := write(t, e, put("a")) + c.ahead

			f := e.Follow("", from)
			f.Next(1)
			if _, got := f.Progress(); got != c.want {
				t.Errorf("the stand-in answers: %t, expected %t", got, c.want)
			}
			if got := r.progress(t, from, c.ahead == 0); got != c.want {
				t.Errorf("etcd answers: %t, expected %t", got, c.want)
			}
		})
	}
}

// progress reports whether etcd answers a request for progress to a watch of
// everything from a revision on. What a stream delivers is in order, so that an
// event made after the request marks the end of waiting.
func (r *real) progress(t tester, from int64, caughtUp bool) (answered bool) {
	t.Helper()
	stream, err := pb.NewWatchClient(r.conn.ActiveConnection()).Watch(r.ctx)
	must(t, err)
	create := func(key string, from int64) {
		must(t, stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte{0}, StartRevision: from},
		}}))
	}
	// next skips to the next message of a kind, and notes progress on the way.
	next := func(want func(*pb.WatchResponse) bool) {
		for {
			m, err := stream.Recv()
			must(t, err)
			if want(m) {
				return
			}
			answered = answered || !m.Created && len(m.Events) == 0
		}
	}
	created := func(m *pb.WatchResponse) bool { return m.Created }
	event := func(m *pb.WatchResponse) bool { return len(m.Events) > 0 }

	create("\x00", from)
	next(created)
	if caughtUp {
		next(event)
	}
	must(t, stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{},
	}}))
	create("\x00", 0) // when this is created, the request was dealt with
	next(created)
	_, err = r.client.Txn(r.ctx, always(put("mark")))
	must(t, err)
	next(event)
	must(t, stream.CloseSend())
	return answered
}

func TestRealEtcdAgreesOnWatchesOfCompactedRevisions(t *testing.T) {
	r := newReal(t)
	e := r.begin(t)
	start := e.Revision()
	for _, req := range []*pb.TxnRequest{always(put("a")), always(put("a")), always(del("a")), always(put("b"))} {
		_, err := r.client.Txn(r.ctx, req)
		must(t, err)
		_, err = e.Txn(req)
		must(t, err)
	}
	must(t, r.compact(start+3))
	must(t, e.Compact(start+3))
	for ahead, wantErr := range []error{store.ErrCompacted, store.ErrCompacted, store.ErrCompacted, nil, nil} {
		from := start + int64(ahead)
		got := <-r.client.Watch(r.ctx, "", from).Messages()
		if !errors.Is(got.Err, wantErr) {
			t.Errorf("from +%d: etcd says %v, expected %v", ahead, got.Err, wantErr)
		}
		own, _ := e.Follow("", from).Next(10)
		if !errors.Is(own.Err, wantErr) {
			t.Errorf("from +%d: the stand-in says %v, expected %v", ahead, own.Err, wantErr)
		}
		describe := func(m store.WatchMessage) string {
			return describeEvents([]Revision{{Events: m.Events}}, start)
		}
		if describe(got) != describe(own) {
			t.Errorf("from +%d: etcd delivers\n%s\nthe stand-in\n%s", ahead, describe(got), describe(own))
		}
	}
}
