package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// real is a real etcd, asked through berth's own client where that can ask.
type real struct {
	ctx    context.Context
	client *store.Client
	conn   *clientv3.Client
	// One watch of everything, over all tests.
	watch store.Watch
	log   []Revision
}

// realMinTTL is the shortest lease of the server that tests start.
const realMinTTL = time.Second

func newReal(t *testing.T) *real {
	t.Helper()
	server := embedtest.New(t)
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	// Requests end when etcd does, instead of waiting for it.
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case err := <-server.Err():
			cancel(err)
		case <-ctx.Done():
		}
	})
	r := &real{ctx: ctx, client: embedtest.Client(t, server), conn: conn}
	t.Cleanup(func() {
		cancel(nil)
		wg.Wait()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	r.watch = r.client.Watch(r.ctx, store.Prefix(""), 1)
	// It has to run before the first compaction.
	resp, err := r.client.Txn(r.ctx, always(put("begin")))
	must(t, err)
	r.history(t, 1, resp.Header.Revision)
	return r
}

// begin empties etcd and returns a stand-in that is where etcd is.
func (r *real) begin(t tester) *Etcd {
	t.Helper()
	must(t, r.full(false))
	leases, err := r.conn.Leases(r.ctx)
	must(t, err)
	for _, l := range leases.Leases {
		must(t, r.client.Revoke(r.ctx, store.LeaseID(l.ID)))
	}
	// A put, so that there is a revision to compact that was not before.
	_, err = r.client.Txn(r.ctx, always(put("begin")))
	must(t, err)
	resp, err := r.client.Txn(r.ctx, always(delRange("\x00", "\x00")))
	must(t, err)
	e := New(Options{Revision: resp.Header.Revision, MinTTL: realMinTTL})
	must(t, r.compact(e.Revision()))
	must(t, e.Compact(e.Revision()))
	return e
}

func (r *real) compact(rev int64) error {
	_, err := r.conn.Compact(r.ctx, rev, clientv3.WithCompactPhysical())
	return err
}

// grant makes a lease with the number that the stand-in chose.
func (r *real) grant(id store.LeaseID, ttl time.Duration) (time.Duration, error) {
	resp, err := pb.NewLeaseClient(r.conn.ActiveConnection()).LeaseGrant(r.ctx, &pb.LeaseGrantRequest{
		ID: int64(id), TTL: int64(wholeSeconds(ttl) / time.Second),
	})
	if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace) {
		return 0, refusal("grant lease", store.ErrNoSpace, err)
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// full raises or ends the alarm of a full database.
func (r *real) full(on bool) error {
	action := pb.AlarmRequest_DEACTIVATE
	if on {
		action = pb.AlarmRequest_ACTIVATE
	}
	members, err := r.conn.MemberList(r.ctx)
	if err != nil {
		return err
	}
	_, err = pb.NewMaintenanceClient(r.conn.ActiveConnection()).Alarm(r.ctx, &pb.AlarmRequest{
		Action: action, Alarm: pb.AlarmType_NOSPACE, MemberID: members.Members[0].ID,
	})
	return err
}

// history returns what the watch delivered after revision from and up to to.
func (r *real) history(t tester, from, to int64) []Revision {
	t.Helper()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	seen := func() int64 {
		if len(r.log) == 0 {
			return 0
		}
		return r.log[len(r.log)-1].Rev
	}
	for seen() < to {
		select {
		case m, ok := <-r.watch.Messages():
			if !ok || m.Err != nil {
				t.Fatalf("the watch of etcd ended: %v", m.Err)
			}
			r.keep(m.Events)
		case <-patience.C:
			t.Fatalf("the watch of etcd stays at revision %d, expected %d", seen(), to)
		}
	}
	at, _ := slices.BinarySearchFunc(r.log, from+1, func(r Revision, rev int64) int { return int(r.Rev - rev) })
	return r.log[at:]
}

// keep adds events to the log, which has one entry for each revision.
func (r *real) keep(events []*mvccpb.Event) {
	for _, ev := range events {
		if n := len(r.log); n == 0 || r.log[n-1].Rev != ev.Kv.ModRevision {
			r.log = append(r.log, Revision{Rev: ev.Kv.ModRevision})
		}
		last := &r.log[len(r.log)-1]
		last.Events = append(last.Events, ev)
	}
}

// tester is what testing.T and rapid.T share.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRealEtcdAgreesOnCornerCases(t *testing.T) {
	r := newReal(t)
	for _, c := range txnCases() {
		t.Run(c.name, func(t *testing.T) {
			base := r.begin(t).Revision()
			for _, id := range []store.LeaseID{101, 102} {
				_, err := r.grant(id, time.Minute)
				must(t, err)
			}
			for _, req := range caseSetup() {
				_, err := r.client.Txn(r.ctx, req)
				must(t, err)
			}
			caseAt(c.req, base)
			resp, err := r.client.Txn(r.ctx, c.req)
			got := outcome{answer: class(err)}
			after := base + 2
			if err == nil {
				got.answer = describe(resp, base)
				after = resp.Header.Revision
			}
			got.events = describeEvents(r.history(t, base+2, after), base)
			if want := (outcome{c.want, c.events}); got != want {
				t.Errorf("etcd says\n%+v\nexpected\n%+v", got, want)
			}
		})
	}
}
