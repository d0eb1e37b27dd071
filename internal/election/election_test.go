package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/goleak"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "/b/office/candidates/"

// voter is a process that campaigns.
type voter struct {
	by     *storetest.Backend
	terms  []int64 // as they began
	leads  bool
	depose chan error
	stop   func() error
	put    []string // keys next to the candidates
	leases []store.LeaseID
	slow   time.Duration // that the end of a term takes
	// trouble is that of the campaign.
	trouble func() error
}

func campaign(t *testing.T, etcd *storetest.Backend, host string, began ...func(context.Context)) *voter {
	v := &voter{by: etcd.Peer(), depose: make(chan error)}
	c := New(Config{
		Presence: lease.PresenceConfig{
			Backend: v.by, Keys: store.NewKeys("/b/"), Host: host, Instance: "office", Logger: hclog.NewNullLogger(),
		},
		Prefix: prefix, Watch: "/b/office/",
		OnPut: func(kv *mvccpb.KeyValue) { v.put = append(v.put, string(kv.Key)) },
		Lead: func(ctx context.Context, term Candidate) error {
			v.terms, v.leads = append(v.terms, term.Term), true
			v.leases = append(v.leases, term.Lease)
			for _, f := range began {
				f(ctx)
			}
			defer func() { time.Sleep(v.slow); v.leads = false }()
			if term.Host != host || term.Lease == 0 {
				t.Errorf("%s leads as %+v", host, term)
			}
			select {
			case err := <-v.depose:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	})
	v.trouble = c.Trouble
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	v.stop = sync.OnceValue(func() error { cancel(); return <-done })
	pass(time.Second)
	if err := c.Trouble(); err != nil {
		t.Errorf("%s: %v", host, err)
	}
	t.Cleanup(v.by.Close)
	return v
}

// pass lets time pass, and everything happen until then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestOneLeadsAndTheNextFollows(t *testing.T) {
	for name, test := range map[string]struct {
		end    func(*voter)
		within time.Duration
	}{
		"stopped":  {func(v *voter) { _ = v.stop() }, time.Second},
		"cut off":  {func(v *voter) { v.by.Down() }, 13 * time.Second},
		"key gone": {func(v *voter) { _, _ = v.by.Txn(context.Background(), deleteAll(v)) }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
				one, two := campaign(t, etcd, "one"), campaign(t, etcd, "two")
				defer func() { _, _ = one.stop(), two.stop() }()
				if !one.leads || two.leads {
					t.Fatalf("leading: %v, %v", one.leads, two.leads)
				}
				test.end(one)
				pass(test.within)
				if one.leads && name != "cut off" || !two.leads {
					t.Fatalf("leading afterwards: %v, %v", one.leads, two.leads)
				}
				if two.terms[0] <= one.terms[0] {
					t.Errorf("terms %v, then %v", one.terms, two.terms)
				}
			})
		})
	}
}

// deleteAll deletes the key of a candidate that leads.
func deleteAll(v *voter) *pb.TxnRequest {
	all, _ := List(context.Background(), v.by, prefix)
	return &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(string(all[0].Key))}}
}

// A term that Lead ends is not begun again while the key exists.
func TestAnOrdinaryStopHasNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
		var log strings.Builder
		logged := func(stop func(context.CancelCauseFunc)) string {
			log.Reset()
			ctx, cancel := context.WithCancelCause(t.Context())
			c := New(Config{
				Presence: lease.PresenceConfig{
					Backend: etcd, Keys: store.NewKeys("/b/"), Host: "one", Instance: "office", Logger: hclog.New(&hclog.LoggerOptions{Output: &log}),
				},
				Prefix: prefix,
				Lead:   func(ctx context.Context, _ Candidate) error { <-ctx.Done(); return context.Cause(ctx) },
			})
			done := make(chan struct{})
			go func() { defer close(done); _ = c.Run(ctx) }()
			pass(time.Second)
			stop(cancel)
			<-done
			return log.String()
		}
		text := logged(func(cancel context.CancelCauseFunc) { cancel(nil) })
		if !strings.Contains(text, "no longer leading: this process ends") || strings.Contains(text, "reason=") {
			t.Errorf("at an ordinary stop it logs\n%s", text)
		}
		text = logged(func(cancel context.CancelCauseFunc) { cancel(errors.New("the disk failed")) })
		if !strings.Contains(text, `reason="the disk failed"`) {
			t.Errorf("after a failure it logs\n%s", text)
		}
		etcd.Close()
	})
}

func TestATermIsLedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := campaign(t, storetest.NewBackend(storetest.New(storetest.Options{})), "one")
		one.depose <- ErrDeposed
		pass(time.Minute)
		if one.leads || len(one.terms) != 1 {
			t.Errorf("terms %v", one.terms)
		}
		if _, err := one.by.Txn(t.Context(), deleteAll(one)); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if !one.leads || len(one.terms) != 2 || one.terms[1] <= one.terms[0] {
			t.Errorf("terms %v", one.terms)
		}
		if err := one.stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A candidate that cannot be read leads in its turn. A key that does not belong to a candidate
// keeps no candidate from leading, and a key next to the candidates is passed on.
func TestKeysThatAreNotReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		by := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer by.Close()
		id, _, err := by.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []*pb.RequestOp{
			store.Put(prefix+"zz", []byte("{}"), 0),
			store.Put(prefix+"7", []byte("{}"), id), // another lease's
			store.Put(store.CandidateKey(prefix, id), []byte("{"), id),
			store.Put("/b/office/wake", []byte("{}"), 0),
		} {
			if _, err := by.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}}); err != nil {
				t.Fatal(err)
			}
		}
		one := campaign(t, by, "one")
		defer func() { _ = one.stop() }()
		if one.leads || !slices.Equal(one.put, []string{"/b/office/wake"}) {
			t.Errorf("leads: %v, passed on: %q", one.leads, one.put)
		}
		if err := by.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if !one.leads {
			t.Error("it does not lead after the candidate before it")
		}
	})
}

func TestAFence(t *testing.T) {
	f := NewFence("k/", Candidate{Lease: 7, Term: 3})
	answer := func(created, lease int64) *pb.TxnResponse {
		return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 20}, Responses: []*pb.ResponseOp{{
			Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{
				{Key: []byte("k/7"), CreateRevision: created, ModRevision: 12, Lease: lease},
			}}},
		}}}
	}
	if f.Answer(answer(9, 7)) || f.Answer(answer(3, 8)) {
		t.Error("it leads on with a key that another process has created")
	}
	if !f.Answer(answer(3, 7)) || f.Revision != 12 {
		t.Errorf("its own key is at %d", f.Revision)
	}
	if !f.Answer(&pb.TxnResponse{Succeeded: true, Header: &pb.ResponseHeader{Revision: 20}}) || f.Revision != 20 {
		t.Errorf("its own key is at %d after a write", f.Revision)
	}
	for _, cmp := range []*pb.Compare{f.Held(), f.Unchanged(), f.Write(nil).Compare[0]} {
		if string(cmp.Key) != "k/7" {
			t.Error(fmt.Sprint(cmp))
		}
	}
}

// A restore brings the key and the lease of the leader back, in another cluster.
func TestATermOfAClusterThatWasReplacedIsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer etcd.Close()
		var terms []context.Context
		one := campaign(t, etcd, "one", func(ctx context.Context) { terms = append(terms, ctx) })
		defer func() { _ = one.stop() }()
		pass(time.Minute)
		leases := one.leases
		etcd.Do(func(e *storetest.Etcd) {
			e.Restore(e.Save(), 1000)
			e.SetCluster(2)
		})
		if err := one.touch(terms[0]); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("the leader of the cluster before writes: %v", err)
		}
		if err := one.trouble(); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("it is ready before it is registered in the other cluster: %v", err)
		}
		pass(12 * time.Second) // the key of the former leader is there for as long as its lease
		if !one.leads || len(one.terms) != 2 || one.terms[1] <= one.terms[0] {
			t.Fatalf("leads: %v, terms %v", one.leads, one.terms)
		}
		if err := one.trouble(); err != nil {
			t.Errorf("it is not ready: %v", err)
		}
		if one.leases[len(one.leases)-1] == leases[0] {
			t.Error("it leads on the lease of the cluster before")
		}
		if err := one.touch(terms[0]); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("a write of the first term: %v", err)
		}
		if err := one.touch(terms[1]); err != nil {
			t.Errorf("a write of the second term: %v", err)
		}
	})
}

// touch writes a key, in the context of a term.
func (v *voter) touch(term context.Context) error {
	_, err := v.by.Txn(context.WithoutCancel(term), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("/b/touched", nil, 0)}})
	return err
}

// A campaign that is busy while its cluster is replaced, here with the end of a term, takes the lease of
// the other cluster and the replacement in any order.
func TestACampaignThatIsBusyWhileItsClusterIsReplacedKeepsTheLeaseOfTheOther(t *testing.T) {
	for range 20 { // the order is one of chance
		synctest.Test(t, func(t *testing.T) {
			etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
			defer etcd.Close()
			one := campaign(t, etcd, "one")
			defer func() { _ = one.stop() }()
			one.slow = 30 * time.Second
			pass(time.Minute)
			if _, err := one.by.Txn(t.Context(), deleteAll(one)); err != nil { // the term ends, slowly
				t.Fatal(err)
			}
			pass(time.Second)
			etcd.Do(func(e *storetest.Etcd) {
				e.Restore(e.Save(), 1000)
				e.SetCluster(2)
			})
			pass(2 * time.Minute)
			if err := one.trouble(); err != nil || !one.leads {
				t.Fatalf("leads: %v after terms %v, trouble: %v", one.leads, one.terms, err)
			}
		})
	}
}
