package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

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

			f := e.Follow(store.Prefix(""), from)
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
		got := <-r.client.Watch(r.ctx, store.Prefix(""), from).Messages()
		if !errors.Is(got.Err, wantErr) {
			t.Errorf("from +%d: etcd says %v, expected %v", ahead, got.Err, wantErr)
		}
		own, _ := e.Follow(store.Prefix(""), from).Next(10)
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

// Every range between some keys is watched over one history: single keys, prefixes, ranges that are none, ranges to the
// end of all keys, and those that have no key, which etcd refuses.
func TestRealEtcdAgreesOnWatchesOfRanges(t *testing.T) {
	r := newReal(t)
	e := r.begin(t)
	start := e.Revision()
	keys := []string{"\x00", "a", "a\xff", "b", "b\x00", "bb", "c", "c\xff", "d", "\xff", "\xff\xff"}
	do := func(ops ...*pb.RequestOp) {
		_, err := r.client.Txn(r.ctx, always(ops...))
		must(t, err)
		write(t, e, ops...)
	}
	for _, key := range keys {
		do(put(key), put(key+"x"))
	}
	do(delRange("a\xff", "c\xff")) // a message that is of several ranges
	last := e.Revision()
	own := map[store.KeyRange]string{}
	refused := 0
	for _, key := range append(keys, "") {
		for _, end := range append(keys, "") {
			of := store.KeyRange{Key: key, End: end}
			m, _ := e.Follow(of, start+1).Next(100)
			if own[of] = describeEvents([]Revision{{Events: m.Events}}, start); m.Err != nil {
				own[of] = m.Err.Error()
				refused++
			}
		}
	}
	if refused == 0 || refused > len(own)/2 {
		t.Errorf("%d of %d ranges are refused", refused, len(own))
	}
	var all sync.WaitGroup // etcd takes a while for each, and not more for all
	for of, want := range own {
		all.Go(func() {
			if got := r.watchTo(of, start, last); got != want {
				t.Errorf("from %q to %q: etcd delivers\n%s\nthe stand-in\n%s", of.Key, of.End, got, want)
			}
		})
	}
	all.Wait()
}

// watchTo returns the text of all that a watch of etcd delivers up to a revision, or of its error.
func (r *real) watchTo(keys store.KeyRange, start, to int64) string {
	ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
	defer cancel()
	w := r.client.Watch(ctx, keys, start+1)
	ask := time.NewTicker(10 * time.Millisecond)
	defer ask.Stop()
	var all []*mvccpb.Event
	for {
		select {
		case m, ok := <-w.Messages():
			if !ok {
				return "the watch has ended"
			}
			if m.Err != nil {
				return m.Err.Error()
			}
			if all = append(all, m.Events...); m.Revision >= to {
				return describeEvents([]Revision{{Events: all}}, start)
			}
		case <-ask.C:
			w.RequestProgress()
		}
	}
}
