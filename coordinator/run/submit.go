package run

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Submit puts a run into the queue. Asking again with the same id and spec finds
// the same run, whatever has become of it; created tells whether there was none. An
// id that stands for another run is an IDInUse problem.
func (s Store) Submit(ctx context.Context, id string, spec Spec) (r *Run, created bool, err error) {
	if err := ValidateID(id); err != nil {
		return nil, false, err
	}
	if err := spec.Validate(); err != nil {
		return nil, false, err
	}
	const what = "the run was not submitted"
	r, err = store.Change(ctx, what, func(ctx context.Context) (*Run, error) {
		rec, event := queued(spec, time.Now())
		key := s.Keys.Run(id)
		rev, err := s.commit(ctx, id, []*pb.Compare{store.CreateEquals(key, 0)}, rec, event)
		if err == nil {
			created = true
			return &Run{ID: id, Record: rec, Created: rev, Revision: rev}, nil
		}
		if !errors.Is(err, store.ErrChanged) {
			return nil, err
		}
		there, err := s.read(ctx, id)
		switch {
		case err != nil:
			return nil, stopAtCorrupt(what, err)
		case there == nil:
			return nil, store.ErrChanged
		case !there.Spec.sameAs(&spec):
			return nil, store.Stop(problem.New(problem.IDInUse, "run id %q stands for another run: use another id", id))
		}
		return there, nil
	})
	return r, created, err
}

// commit writes a record and its event under compares, with what else is to happen.
func (s Store) commit(ctx context.Context, id string, cmps []*pb.Compare, rec Record, e Event, also ...*pb.RequestOp) (int64, error) {
	logged, err := s.Journal.Op(ctx, id, e)
	if err != nil {
		return 0, err
	}
	ops := append([]*pb.RequestOp{store.Put(s.Keys.Run(id), rec.Encode(), 0), logged}, also...)
	rev, err := s.Journal.group.commit(ctx, s.Backend, cmps, ops...)
	if errors.Is(err, store.ErrLeaseNotFound) {
		s.Journal.Forget()
	}
	return rev, err
}
