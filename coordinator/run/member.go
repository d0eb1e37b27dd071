package run

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Owns reports whether a claim that names the run belongs to it, and so ends with it and has its
// events among those of the run: the claim holds slots of the run or of one of its step
// instances, or the identity that submitted or started the run has made it. Anyone may name any
// run in a claim: then the name is a label. [Executor.Owns] reports it for step instances.
func (r *Record) Owns(h pool.Holder) bool {
	switch {
	case Binds(h.Bind) || h.Bind == BindStep:
		return true
	case h.ClaimedBy == "" && r.SubmittedBy == "": // of a program that records no identities
		return true
	case sameIdentity(h.ClaimedBy, r.SubmittedBy):
		return true
	}
	return r.Executor != nil && r.Executor.Owns(h)
}

// Owns reports whether an executor has made a claim that names its run. A worker is identified on
// its own host only, by its user in etcd and the user that its commands run as.
func (e *Executor) Owns(h pool.Holder) bool {
	if sameIdentity(h.ClaimedBy, e.By) {
		return true
	}
	return h.Host == e.Host && (sameIdentity(h.ClaimedBy, e.EtcdUser) || sameIdentity(h.ClaimedBy, e.User))
}

// Same reports whether two records name the same executor. What identifies a worker to others
// may change when it restarts.
func (e Executor) Same(o *Executor) bool {
	e.EtcdUser, e.User = "", ""
	return o != nil && e == Executor{Host: o.Host, Instance: o.Instance, Name: o.Name, By: o.By}
}

// sameIdentity reports whether two recorded identities are one. Anonymous callers cannot be
// distinguished, so none is another one. All processes that are connected to an etcd without users count
// as one: each of them may write everything.
func sameIdentity(a, b string) bool {
	return a != "" && a == b && a != string(access.Anonymous)
}

// membership finds out which of the claims that name runs belong to them, as the runs are now.
type membership struct {
	// takes is [Followed.Takes], and taken what it has returned, by run and identity.
	takes func(context.Context, pool.Holder) (bool, error)
	taken map[string]bool
	// runs are the existing runs that were read.
	runs map[string]*Run
}

// read reads the runs that events name.
func (m *membership) read(ctx context.Context, s Store, events []logged) error {
	var ops []*pb.RequestOp
	for _, l := range events {
		if _, there := m.runs[l.run]; !there {
			m.runs[l.run] = nil
			ops = append(ops, store.Get(s.Keys.Run(l.run)))
		}
	}
	made, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: ops})
	if err != nil {
		return err
	}
	for _, resp := range made.Responses {
		for _, kv := range resp.GetResponseRange().Kvs {
			// What cannot be read has no events of claims.
			if r, err := Decode(s.Keys, kv); err == nil {
				m.runs[r.ID] = r
			}
		}
	}
	return nil
}

// own reports whether a claim belongs to the run that it names.
func (m *membership) own(ctx context.Context, h pool.Holder) (bool, error) {
	r := m.runs[h.Run]
	switch {
	case r == nil:
		return false, nil
	case r.Owns(h):
		return true, nil
	case r.Steps == 0 || m.takes == nil:
		return false, nil
	}
	key := h.Run + " " + h.ClaimedBy
	takes, known := m.taken[key]
	if known {
		return takes, nil
	}
	takes, err := m.takes(ctx, h)
	if err == nil {
		m.taken[key] = takes
	}
	return takes, err
}
