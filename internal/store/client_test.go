package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func putReq(key, value string, lease store.LeaseID) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), lease)}}
}

func getReq(key string) *pb.RangeRequest { return &pb.RangeRequest{Key: []byte(key)} }

// newClient connects for a test.
func newClient(t *testing.T, cfg store.Config) *store.Client {
	t.Helper()
	c, err := store.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// long is a context for what should not take long.
func long(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAClientNeedsAnEndpoint(t *testing.T) {
	if _, err := store.NewClient(store.Config{}); err == nil || !strings.Contains(err.Error(), "endpoint") {
		t.Errorf("without endpoints: %v", err)
	}
}

func TestWhatIsPutIsReadAndDeleted(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	ctx := long(t)
	put, err := c.Txn(ctx, putReq("/b/k", "v", 0))
	if err != nil || !put.Succeeded {
		t.Fatalf("%v, %v", put, err)
	}
	got, err := c.Range(ctx, getReq("/b/k"))
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" || got.Kvs[0].ModRevision != put.Header.Revision {
		t.Fatalf("%v, %v", got, err)
	}
	resp, err := c.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals("/b/k", put.Header.Revision), store.CreateEquals("/b/k", put.Header.Revision), store.Present("/b/k"), store.CreateEquals("/b/no", 0)},
		Success: []*pb.RequestOp{store.Get("/b/k"), store.Delete("/b/k")},
	})
	if err != nil || !resp.Succeeded || len(resp.Responses[0].GetResponseRange().Kvs) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	if resp, err := c.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{store.Present("/b/k")}}); err != nil || resp.Succeeded {
		t.Errorf("what was deleted is present: %v", err)
	}
}

func TestPutsAfterARevisionAreNoticedAndDeletesAreNot(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	ctx := long(t)
	holds := func(rev int64) bool {
		t.Helper()
		resp, err := c.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{store.NonePutSince("/b/g/", rev)}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	do := func(req *pb.TxnRequest) int64 {
		t.Helper()
		resp, err := c.Txn(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	if !holds(0) {
		t.Error("an empty range has been put into")
	}
	first := do(putReq("/b/g/1", "", 0))
	if holds(first-1) || !holds(first) {
		t.Error("the first put")
	}
	second := do(putReq("/b/g/2", "", 0))
	do(putReq("/b/h", "outside the range", 0))
	if holds(first) || !holds(second) {
		t.Error("the second put")
	}
	do(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete("/b/g/1")}})
	if !holds(second) {
		t.Error("a delete counts as a put")
	}
	if again := do(putReq("/b/g/2", "", 0)); holds(second) || !holds(again) {
		t.Error("the same put again")
	}
}

func TestLeasesAreGrantedRenewedAndRevoked(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	ctx := long(t)
	id, ttl, err := c.Grant(ctx, 59001*time.Millisecond)
	if err != nil || ttl != time.Minute {
		t.Fatalf("granted %s, %v: want the time rounded up", ttl, err)
	}
	if _, err := c.Txn(ctx, putReq("/b/k", "", id)); err != nil {
		t.Fatal(err)
	}
	if ttl, err := c.Renew(ctx, id); err != nil || ttl != time.Minute {
		t.Errorf("renewed: %s, %v", ttl, err)
	}
	if left, err := c.TimeToLive(ctx, id); err != nil || left > time.Minute || left < 20*time.Second {
		t.Errorf("left: %s, %v", left, err)
	}
	if err := c.Revoke(ctx, id); err != nil {
		t.Error(err)
	}
	if got, err := c.Range(ctx, getReq("/b/k")); err != nil || len(got.Kvs) != 0 {
		t.Errorf("the key outlives its lease: %v, %v", got, err)
	}
	if err := c.Revoke(ctx, id); err != nil {
		t.Errorf("to revoke it again: %v", err)
	}
	if _, err := c.Renew(ctx, id); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("to renew it: %v", err)
	}
	if _, err := c.TimeToLive(ctx, id); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("to read it: %v", err)
	}
	if _, err := c.Txn(ctx, putReq("/b/k", "", id)); !errors.Is(err, store.ErrLeaseNotFound) || store.OutcomeUnknown(err) {
		t.Errorf("to put on it: %v", err)
	}
}

func TestAShortLeaseIsMadeLonger(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	_, ttl, err := c.Grant(long(t), time.Nanosecond)
	if err != nil || ttl < time.Second {
		t.Errorf("granted %s, %v", ttl, err)
	}
}

func TestRequestsThatAreTooLargeAreCertainToBeRefused(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	many := &pb.TxnRequest{}
	for i := range 129 {
		many.Success = append(many.Success, store.Put(fmt.Sprint("/b/", i), nil, 0))
	}
	for name, req := range map[string]*pb.TxnRequest{
		"129 operations": many,
		"1.6 MB":         putReq("/b/k", strings.Repeat("x", 1_600_000), 0),
	} {
		if _, err := c.Txn(long(t), req); !errors.Is(err, store.ErrTooLarge) || store.OutcomeUnknown(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestASnapshotMayBeLarge has more in one page than gRPC takes of an answer by
// default, 4 MB.
func TestASnapshotMayBeLarge(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	ctx := long(t)
	for i := range 6 {
		if _, err := c.Txn(ctx, putReq(fmt.Sprint("/b/", i), strings.Repeat("x", 1_000_000), 0)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.ReadAll(ctx, c, "/b/")
	if err != nil || len(s.KVs) != 6 {
		t.Errorf("%d keys, %v", len(s.KVs), err)
	}
}

// watched reads messages until one has events.
func watched(t *testing.T, w store.Watch) store.WatchMessage {
	t.Helper()
	for {
		select {
		case m, ok := <-w.Messages():
			if !ok || m.Err != nil {
				t.Fatalf("the watch ended: %v", m.Err)
			}
			if len(m.Events) > 0 {
				return m
			}
		case <-long(t).Done():
			t.Fatal("the watch delivers nothing")
		}
	}
}

func TestAWatchDeliversFromARevisionOn(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	ctx, cancel := context.WithCancel(t.Context())
	first, err := c.Txn(ctx, putReq("/b/p/1", "", 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Txn(ctx, putReq("/b/p/2", "", 0)); err != nil {
		t.Fatal(err)
	}
	w := c.Watch(ctx, store.Prefix("/b/p/"), first.Header.Revision+1)
	if m := watched(t, w); string(m.Events[0].Kv.Key) != "/b/p/2" || m.Revision != first.Header.Revision+1 {
		t.Errorf("delivered %v at %d", m.Events, m.Revision)
	}
	elsewhere, err := c.Txn(ctx, putReq("/b/q", "", 0))
	if err != nil {
		t.Fatal(err)
	}
	// Progress tells of what happened elsewhere, sooner or later.
	ask := time.NewTicker(5 * time.Millisecond)
	defer ask.Stop()
	for done := false; !done; {
		w.RequestProgress()
		select {
		case m := <-w.Messages():
			if len(m.Events) > 0 || m.Err != nil {
				t.Fatalf("delivered %+v", m)
			}
			done = m.Revision >= elsewhere.Header.Revision
		case <-ask.C:
		case <-long(t).Done():
			t.Fatal("no progress is delivered")
		}
	}
	cancel()
	for range w.Messages() { // the channel closes
	}
}

func TestHistoryCountsToWhatEtcdUses(t *testing.T) {
	srv := embedtest.New(t)
	c := embedtest.Client(t, srv)
	ctx := long(t)
	before, err := c.Used(ctx)
	if err != nil || before >= 1<<20 {
		t.Fatalf("%d bytes are used by nothing, %v", before, err)
	}
	for range 4 {
		if _, err := c.Txn(ctx, putReq("/b/p/1", strings.Repeat("x", 1<<20), 0)); err != nil {
			t.Fatal(err)
		}
	}
	for { // etcd counts what it has written to its database, which it does ten times a second
		used, err := c.Used(ctx)
		if err != nil {
			t.Fatalf("%d bytes were used before, and then %d: %v", before, used, err)
		}
		if used >= 4<<20 { // without before: some of that is free by now
			return
		}
	}
}

func TestAWatchOfWhatIsCompactedSaysSo(t *testing.T) {
	srv := embedtest.New(t)
	c := embedtest.Client(t, srv)
	ctx := long(t)
	var rev int64
	for range 3 {
		resp, err := c.Txn(ctx, putReq("/b/p/1", "", 0))
		if err != nil {
			t.Fatal(err)
		}
		rev = resp.Header.Revision
	}
	if _, err := etcdctl(t, srv.Endpoint()).Compact(ctx, rev); err != nil {
		t.Fatal(err)
	}
	m, ok := <-c.Watch(ctx, store.Prefix("/b/p/"), 2).Messages()
	if !ok || !errors.Is(m.Err, store.ErrCompacted) {
		t.Errorf("%+v", m)
	}
	old := getReq("/b/p/1")
	old.Revision = 2
	if _, err := c.Range(ctx, old); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a read of it: %v", err)
	}
}

func TestAnAbandonedWatchEnds(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	w := c.Watch(t.Context(), store.Prefix("/b/"), 1)
	w.Abandon()
	for range w.Messages() {
	}
	w.RequestProgress() // never blocks
	w.RequestProgress()
}

func TestRequestsAreCountedByOutcome(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := newClient(t, store.Config{Endpoints: []string{embedtest.New(t).Endpoint()}, Registerer: reg})
	ctx := long(t)
	for range 3 {
		if _, err := c.Txn(ctx, putReq("/b/k", "", 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Renew(ctx, 12345); err == nil {
		t.Fatal("a lease that was never granted was renewed")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series := f.GetName()
			for _, l := range m.GetLabel() {
				series += " " + l.GetValue()
			}
			got[series] = m.GetHistogram().GetSampleCount()
		}
	}
	if got["berth_etcd_request_duration_seconds txn ok"] != 3 || got["berth_etcd_request_duration_seconds renew error"] != 1 {
		t.Errorf("counted %v", got)
	}
}
