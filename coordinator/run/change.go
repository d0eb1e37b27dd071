package run

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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
		rev, err := s.commit(ctx, id, cmps, next.rec, next.event, next.ops...)
		if err == store.ErrChanged {
			tried = r.Revision
		}
		return &Run{ID: id, Record: next.rec, Created: r.Created, Revision: rev}, err
	})
}
