package run

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// step is what a change makes of a run.
type step struct {
	done bool // there is nothing to do
	rec  Record
	// event tells of it.
	event Event
	// cmps must hold beside the run's revision, and ops happen with it. If the run
	// is unchanged and a compare does not hold, the change is refused.
	cmps    []*pb.Compare
	ops     []*pb.RequestOp
	refused error
	// over takes over the run's claim with the change, if it is not nil; leased are
	// puts on the claim's lease.
	over   Home
	leased []*pb.RequestOp
}

// takeOver makes a change along with the hand-over of the run's claim.
func (s Store) takeOver(ctx context.Context, r *Run, next step, cmps []*pb.Compare) (int64, error) {
	logged, err := s.Journal.Op(ctx, r.ID, next.event)
	if err != nil {
		return 0, err
	}
	rev, err := next.over.TakeOver(ctx, r, store.Extra{
		If:     cmps,
		Then:   append([]*pb.RequestOp{store.Put(s.Keys.Run(r.ID), next.rec.Encode(), 0), logged}, next.ops...),
		Leased: next.leased,
	})
	switch {
	case err == nil:
		return rev, nil
	case problem.CodeOf(err) == problem.Precondition:
		return 0, store.ErrChanged
	}
	return 0, store.Stop(err)
}

// change reads a run, decides, and writes under a compare of what it read. Decide
// must come to the same if it is asked again after its step was made.
func (s Store) change(ctx context.Context, id, what string, decide func(*Run) (step, error)) (*Run, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	var tried int64 // revision that a step was refused at
	return store.Change(ctx, what, func(ctx context.Context) (*Run, error) {
		r, err := s.read(ctx, id)
		if err != nil {
			return nil, stopAtCorrupt(what, err)
		}
		if r == nil {
			return nil, store.Stop(notFound(id))
		}
		next, err := decide(r)
		switch {
		case err != nil:
			return nil, store.Stop(err)
		case next.done:
			return r, nil
		case r.Revision == tried && next.refused != nil:
			return nil, store.Stop(next.refused)
		}
		cmps := append([]*pb.Compare{store.ModEquals(s.Keys.Run(id), r.Revision)}, next.cmps...)
		var rev int64
		if next.over == nil {
			rev, err = s.commit(ctx, id, cmps, next.rec, next.event, next.ops...)
		} else {
			rev, err = s.takeOver(ctx, r, next, cmps)
		}
		if err == store.ErrChanged {
			tried = r.Revision
		}
		return &Run{ID: id, Record: next.rec, Created: r.Created, Revision: rev}, err
	})
}
