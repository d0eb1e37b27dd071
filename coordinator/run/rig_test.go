package run

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// rig is a store on a stand-in for etcd.
type rig struct {
	t *testing.T
	b *storetest.Backend
	Store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	keys := store.NewKeys("/b/")
	return &rig{t, b, Store{Backend: b, Keys: keys, Journal: NewJournal(b, keys, "one/test", 0)}}
}

func (r *rig) submit(id string, s Spec) *Run {
	r.t.Helper()
	run, _, err := r.Submit(r.t.Context(), id, s)
	if err != nil {
		r.t.Fatal(err)
	}
	return run
}

// admit does what a coordinator would.
func (r *rig) admit(id string) *Run {
	r.t.Helper()
	run := r.get(id)
	rec, _ := run.Record.Admit("", time.Now())
	r.put(r.Keys.Run(id), string(rec.Encode()))
	return r.get(id)
}

// lose does what a coordinator would when an executor is gone.
func (r *rig) lose(id string) {
	r.t.Helper()
	rec, _ := r.get(id).Record.Lose(time.Now())
	r.put(r.Keys.Run(id), string(rec.Encode()))
}

func (r *rig) get(id string) *Run {
	r.t.Helper()
	run, err := r.Get(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return run
}

func (r *rig) put(key, value string) {
	r.t.Helper()
	if _, err := r.b.Txn(r.t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) lease() store.LeaseID {
	r.t.Helper()
	id, _, err := r.b.Grant(r.t.Context(), time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// onLease is a [Home] for runs without pools.
type onLease struct {
	Home
	lease store.LeaseID
}

func (l onLease) Lease(context.Context) (store.LeaseID, error) { return l.lease, nil }

func (r *rig) start(id string, name string, lease store.LeaseID) (*Run, error) {
	return r.Start(r.t.Context(), id, Executor{Host: "x", Instance: "sidecar", Name: name}, onLease{lease: lease})
}

func (r *rig) wants(code problem.Code, err error) {
	r.t.Helper()
	if problem.CodeOf(err) != code || err == nil {
		r.t.Errorf("%v, want %s", err, code)
	}
}
