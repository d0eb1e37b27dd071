package run

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

// Submit puts a run into the queue. A repeated submission with the same id and spec returns
// the existing run in its current state; created reports whether the run is new. An id of
// another run is an IDInUse problem.
func (s Store) Submit(ctx context.Context, id string, spec Spec) (r *Run, created bool, err error) {
	if err := ValidateID(id); err != nil {
		return nil, false, err
	}
	if err := spec.ValidateNew(); err != nil {
		return nil, false, err
	}
	if there, err := s.CheckPools(ctx, id, spec, spec.Pools); there != nil || err != nil {
		return there, false, err
	}
	rec, event := queued(spec, time.Now())
	size := Size(&spec, 0, 0, 0)
	rec.charge(size)
	return s.create(ctx, id, spec, func(ctx context.Context, absent []*pb.Compare) (*Run, error) {
		err := s.CheckDue(&spec)
		var alone []*pb.Compare
		if err == nil {
			alone, err = s.allow(ctx, spec.SubmittedBy, rec.StoredKiB*unit)
		}
		if err != nil {
			return s.unless(ctx, id, spec, err)
		}
		rev, err := s.commit(ctx, id, append(absent, alone...), nil, rec, event)
		return &Run{ID: id, Record: rec, Created: rev, Revision: rev}, err
	})
}

// charge records the size class of a new run.
func (r *Record) charge(size int64) {
	if r.SubmittedBy != "" {
		r.StoredKiB = classOf(size)
	}
}

// unless returns the same existing run with [errExists] if a new one is refused, or else the
// refusal, which is not tried again.
func (s Store) unless(ctx context.Context, id string, spec Spec, refused error) (*Run, error) {
	if p := (*problem.Error)(nil); !errors.As(refused, &p) {
		return nil, refused
	}
	if there, err := s.read(ctx, id); err == nil && there != nil && there.Spec.sameAs(&spec) {
		return there, errExists
	}
	return nil, store.Stop(s.counted(refused))
}

// errExists is the error of a write that was refused, of a run that exists.
var errExists = errors.New("the same run exists")

// CheckPools returns a problem if the pools can never grant the slots of a new run. If the
// same run exists, it is returned instead: the pools have changed since.
func (s Store) CheckPools(ctx context.Context, id string, spec Spec, slots map[string]int) (*Run, error) {
	refused := registry.Registry{Backend: s.Backend, Keys: s.Keys}.Check(ctx, slots)
	if refused == nil {
		return nil, nil
	}
	if there, err := s.read(ctx, id); err == nil && there != nil && there.Spec.sameAs(&spec) {
		return there, nil
	}
	return nil, refused
}

// Begin creates a run whose steps are written next, in one transaction with the result of
// with, which is called for each attempt. size is that of [Size]. If the same run exists, it is
// returned in its current state, even if with fails; created reports whether the run is new.
func (s Store) Begin(ctx context.Context, id string, spec Spec, size int64, with func(context.Context) (store.Extra, error)) (r *Run, created bool, err error) {
	if err := ValidateID(id); err != nil {
		return nil, false, err
	}
	if err := spec.ValidateNew(); err != nil {
		return nil, false, err
	}
	rec := Record{Spec: spec, Status: Storing, QueuedAt: stampOf(time.Now())}
	rec.charge(size)
	return s.create(ctx, id, spec, func(ctx context.Context, absent []*pb.Compare) (*Run, error) {
		alone, err := s.allow(ctx, spec.SubmittedBy, rec.StoredKiB*unit)
		x := store.Extra{}
		if err == nil && with != nil {
			x, err = with(ctx)
		}
		if err != nil {
			return s.unless(ctx, id, spec, err)
		}
		ops := append(x.Then, store.Put(s.Keys.Run(id), rec.Encode(), 0))
		rev, err := store.Commit(ctx, s.Backend, slices.Concat(x.If, absent, alone), append(ops, UsageOps(s.Keys, id, nil, &rec)...)...)
		return &Run{ID: id, Record: rec, Created: rev, Revision: rev}, err
	})
}

// Enqueue puts a run into the queue whose steps are written. It reports whether this call
// has done so.
func (s Store) Enqueue(ctx context.Context, r *Run) (_ *Run, enqueued bool, err error) {
	now, err := s.change(ctx, r.ID, "the run was not queued", func(r *Run) (step, error) {
		if r.Status != Storing {
			return step{done: true}, nil // the response was lost
		}
		rec, event := queued(r.Spec, time.Now())
		rec.StoredKiB = r.StoredKiB
		enqueued = true
		return step{rec: rec, event: event}, nil
	})
	return now, enqueued && err == nil, err
}

// create creates a run, or returns the same existing one.
func (s Store) create(ctx context.Context, id string, spec Spec, write func(context.Context, []*pb.Compare) (*Run, error)) (r *Run, created bool, err error) {
	const what = "the run was not submitted"
	absent := []*pb.Compare{store.CreateEquals(s.Keys.Run(id), 0)}
	r, err = store.Change(ctx, what, func(ctx context.Context) (*Run, error) {
		r, err := write(ctx, absent)
		switch err {
		case nil:
			created = true
			return r, nil
		case errExists:
			return r, nil
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
		case there.Spec.asks(&spec) && there.SubmittedBy != spec.SubmittedBy:
			return nil, store.Stop(problem.New(problem.IDInUse, "run id %q is used by the same run of another submitter: use another id", id))
		case !there.Spec.sameAs(&spec):
			return nil, store.Stop(problem.New(problem.IDInUse, "run id %q is used by another run: use another id", id))
		}
		return there, nil
	})
	return r, created, err
}

// commit writes a record, which was old, and its event under compares, with further operations.
func (s Store) commit(ctx context.Context, id string, cmps []*pb.Compare, old *Record, rec Record, e Event, also ...*pb.RequestOp) (int64, error) {
	logged, err := s.Journal.Op(ctx, id, e)
	if err != nil {
		return 0, err
	}
	ops := append([]*pb.RequestOp{store.Put(s.Keys.Run(id), rec.Encode(), 0), logged}, UsageOps(s.Keys, id, old, &rec)...)
	ops = append(ops, also...)
	var rev int64
	if isAlone(cmps) {
		rev, err = store.Commit(ctx, s.Backend, cmps, ops...)
	} else {
		var made store.Committed
		made, err = s.Journal.group.Commit(ctx, s.Backend, cmps, ops...)
		rev = made.Revision
	}
	if errors.Is(err, store.ErrLeaseNotFound) {
		s.Journal.Forget()
	}
	return rev, err
}
