package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// pair is a stand-in and a real etcd to which the same things happen.
type pair struct {
	real   *real
	etcd   *Etcd
	start  int64
	leases []store.LeaseID // granted, and some of them gone again
}

func TestRealEtcdAgreesOnRandomHistories(t *testing.T) {
	r := newReal(t)
	rapid.Check(t, func(t *rapid.T) {
		e := r.begin(t)
		p := &pair{real: r, etcd: e, start: e.Revision(), leases: []store.LeaseID{999}}
		t.Repeat(map[string]func(*rapid.T){
			"transaction": p.txn,
			"again":       p.txn, // twice as often
			"once more":   p.txn,
			"range":       p.read,
			"grant":       p.grant,
			"renew":       p.renew,
			"revoke":      p.revoke,
			"compact":     p.compact,
			"fill":        p.fill,
			"":            p.sameKeys,
		})
		p.sameHistory(t)
	})
}

func (p *pair) drawer(t *rapid.T) drawer {
	return drawer{t: t, since: p.start, now: p.etcd.Revision(), leases: p.leases}
}

func (p *pair) txn(t *rapid.T) {
	req := p.drawer(t).txn(2)
	want, wantErr := p.real.client.Txn(p.real.ctx, req)
	got, err := p.etcd.Txn(req)
	same(t, "transaction", got, want, err, wantErr)
}

func (p *pair) read(t *rapid.T) {
	req := p.drawer(t).read(60)
	want, wantErr := p.real.client.Range(p.real.ctx, req)
	got, err := p.etcd.Range(req)
	same(t, "range", got, want, err, wantErr)
}

// grant makes leases that outlive the test.
func (p *pair) grant(t *rapid.T) {
	ttl := rapid.SampledFrom([]time.Duration{time.Hour, time.Hour + time.Millisecond}).Draw(t, "ttl")
	_, got, err := p.etcd.Grant(ttl)
	id := p.etcd.lastLease
	want, wantErr := p.real.grant(id, ttl)
	same(t, "grant", got, want, err, wantErr)
	p.leases = append(p.leases, id)
}

func (p *pair) anyLease(t *rapid.T) store.LeaseID {
	return rapid.SampledFrom(p.leases).Draw(t, "lease")
}

func (p *pair) renew(t *rapid.T) {
	id := p.anyLease(t)
	want, wantErr := p.real.client.Renew(p.real.ctx, id)
	got, err := p.etcd.Renew(id)
	same(t, "renew", got, want, err, wantErr)
	_, wantErr = p.real.client.TimeToLive(p.real.ctx, id)
	_, err = p.etcd.TimeToLive(id)
	same(t, "time to live", 0, 0, err, wantErr)
}

func (p *pair) revoke(t *rapid.T) {
	id := p.anyLease(t)
	_, wantErr := p.real.conn.Revoke(p.real.ctx, clientv3.LeaseID(id))
	err := p.etcd.Revoke(id)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("revoke %d: %v, etcd says %v", id, err, wantErr)
	}
}

func (p *pair) compact(t *rapid.T) {
	if !p.drawer(t).chance(20, "compact") {
		return
	}
	rev := p.drawer(t).rev()
	if p.deadly(rev) {
		return
	}
	wantErr := p.real.compact(rev)
	err := p.etcd.Compact(rev)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("compact %d: %v, etcd says %v", rev, err, wantErr)
	}
}

// deadly reports whether a revision deleted a key and put it again, which a delete
// from a key on lets pass. If just that revision is compacted, etcd 3.7 loses the
// key and ends its process when the key is read.
func (p *pair) deadly(rev int64) bool {
	for _, r := range p.etcd.from(rev) {
		deleted := map[string]bool{}
		for _, ev := range r.Events {
			if r.Rev == rev && deleted[string(ev.Kv.Key)] {
				return true
			}
			deleted[string(ev.Kv.Key)] = ev.Type == mvccpb.Event_DELETE
		}
	}
	return false
}

// fill has one transaction and one grant meet a full database.
func (p *pair) fill(t *rapid.T) {
	must(t, p.real.full(true))
	p.etcd.SetSpace(SpaceFull)
	p.txn(t)
	p.grant(t)
	p.renew(t)
	must(t, p.real.full(false))
	p.etcd.SetSpace(SpaceFree)
}

func (p *pair) sameKeys(t *rapid.T) {
	req := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	want, wantErr := p.real.client.Range(p.real.ctx, req)
	got, err := p.etcd.Range(req)
	same(t, "all keys", got, want, err, wantErr)
}

// sameHistory compares all events, and all keys at every revision that is left.
func (p *pair) sameHistory(t *rapid.T) {
	for rev := p.etcd.compacted; rev <= p.etcd.Revision(); rev++ {
		req := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev}
		want, wantErr := p.real.client.Range(p.real.ctx, req)
		got, err := p.etcd.Range(req)
		same(t, fmt.Sprintf("all keys at %d", rev-p.start), got, want, err, wantErr)
	}
	want := describeEvents(p.real.history(t, p.start, p.etcd.Revision()), p.start)
	if diff := cmp.Diff(want, describeEvents(p.etcd.History(), p.start)); diff != "" {
		t.Fatalf("events differ (-etcd +stand-in):\n%s", diff)
	}
}

// same compares two answers, except for who gave them.
func same(t tester, what string, got, want any, err, wantErr error) {
	t.Helper()
	if class(err) != class(wantErr) || store.OutcomeUnknown(err) != store.OutcomeUnknown(wantErr) {
		t.Fatalf("%s: error %q, etcd says %q", what, err, wantErr)
	}
	if err != nil {
		return
	}
	who := protocmp.IgnoreFields(&pb.ResponseHeader{}, "cluster_id", "member_id", "raft_term")
	if diff := cmp.Diff(want, got, protocmp.Transform(), who); diff != "" {
		t.Fatalf("%s differs (-etcd +stand-in):\n%s", what, diff)
	}
}

func TestRealEtcdAgreesOnLeases(t *testing.T) {
	r := newReal(t)
	for _, ttl := range []time.Duration{-time.Second, 0, 1, time.Second, 1500 * time.Millisecond, time.Hour, maxTTL, maxTTL + time.Second} {
		e := r.begin(t)
		_, got, err := e.Grant(ttl)
		want, wantErr := r.grant(e.lastLease, ttl)
		same(t, "grant "+ttl.String(), got, want, err, wantErr)
	}
}

func TestRealEtcdAgreesOnExpiry(t *testing.T) {
	r := newReal(t)
	e := r.begin(t)
	start := e.Revision()
	id, ttl, err := e.Grant(time.Second)
	must(t, err)
	_, err = r.grant(id, time.Second)
	must(t, err)
	for _, req := range []*pb.TxnRequest{
		always(putOn("c", int64(id)), putOn("a", int64(id)), put("keeps"), putOn("leaves", int64(id)), putOn("b", int64(id))),
		always(put("leaves")),
	} {
		_, err := r.client.Txn(r.ctx, req)
		must(t, err)
		_, err = e.Txn(req)
		must(t, err)
	}
	e.Advance(ttl)
	want := describeEvents(r.history(t, start, start+3), start)
	if diff := cmp.Diff(want, describeEvents(e.History(), start)); diff != "" {
		t.Errorf("events differ (-etcd +stand-in):\n%s", diff)
	}
	_, wantErr := r.client.Renew(r.ctx, id)
	_, err = e.Renew(id)
	same(t, "renew", 0, 0, err, wantErr)
	_, wantErr = r.client.TimeToLive(r.ctx, id)
	_, err = e.TimeToLive(id)
	same(t, "time to live", 0, 0, err, wantErr)
}
