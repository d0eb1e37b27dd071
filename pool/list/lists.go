package list

import (
	"context"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Lists answers the callers of one instance: with what the instance has written, what it knows of its claims that wait,
// and what others have written at least a second ago, or up to now with [pool.Fresh].
type Lists struct {
	reads *reads
	own   func(context.Context) (Own, error)
}

// NewLists returns lists that read from etcd. The function own returns what the instance knows; it is called before etcd is
// read, so that a claim is missing in neither.
func NewLists(b store.Backend, keys store.Keys, own func(context.Context) (Own, error)) *Lists {
	return &Lists{newReads(b, keys), own}
}

// AtLeast has all later answers show a revision: the instance has written it, or has seen it.
func (l *Lists) AtLeast(revision int64) { l.reads.atLeast(revision) }

// Changed has all later answers show a revision, reasons included: a caller has changed a pool then.
func (l *Lists) Changed(revision int64) { l.reads.change(revision) }

// Shown returns the latest revision that a caller was answered with, 0 if there is none of the present history of etcd.
func (l *Lists) Shown() int64 { return l.reads.latestShown() }

// Pools returns all pools by name.
func (l *Lists) Pools(ctx context.Context) ([]pool.Status, error) {
	s, err := l.all(ctx)
	if err != nil {
		return nil, err
	}
	return s.Pools(), nil
}

// Claims returns all claims that hold slots, of all hosts, the oldest first, and all that wait, in the order of the wait
// queue.
func (l *Lists) Claims(ctx context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error) {
	s, err := l.all(ctx)
	if err != nil {
		return nil, nil, err
	}
	holders, waiters := s.Claims()
	return holders, waiters, nil
}

// Space returns what the waiters leave of all pools.
func (l *Lists) Space(ctx context.Context) (*pool.Space, error) {
	s, err := l.all(ctx)
	if err != nil {
		return nil, err
	}
	return s.Space(), nil
}

// Prospects is [State.Prospects] of what is read now.
func (l *Lists) Prospects(ctx context.Context, asked []*pool.Request, freed map[string]int) ([]bool, error) {
	s, err := l.all(ctx)
	if err != nil {
		return nil, err
	}
	return s.Prospects(asked, freed), nil
}

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (l *Lists) Pool(ctx context.Context, name string) (pool.Detail, error) {
	return again(func(fresh bool) (pool.Detail, error) {
		s, err := l.some(ctx, name, fresh)
		if err != nil {
			return pool.Detail{}, err
		}
		return s.Pool(name)
	}, problem.PoolNotFound)
}

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is a ClaimNotFound problem.
func (l *Lists) Why(ctx context.Context, id string) (pool.Why, error) {
	return again(func(fresh bool) (pool.Why, error) {
		o, err := l.knows(ctx)
		if err != nil {
			return pool.Why{}, err
		}
		s, err := l.read(ctx, o.pool(id), fresh) // the pools of a claim of its own are enough
		if err == nil && !s.has(o.demand(id)) {
			s, err = l.read(ctx, allPools, fresh)
		}
		if err != nil {
			return pool.Why{}, err
		}
		return s.By(o).Why(id)
	}, problem.ClaimNotFound)
}

// Reason is [State.Reason] of what is read at most once a second for the claims that wait for the same pools, and for at most a
// tenth of the time. No more of a pool is read than is bounded: if more claims wait, the reason has no position.
func (l *Lists) Reason(ctx context.Context, d OwnDemand) (pool.Reason, error) {
	s, err := l.read(ctx, briefPrefix+strings.Join(sortedNames(d.Pools), ","), false)
	if err != nil {
		return pool.Reason{}, err
	}
	return s.Reason(d)
}

// again asks once more for what is not found: it may have been created just now.
func again[T any](ask func(fresh bool) (T, error), notFound problem.Code) (T, error) {
	v, err := ask(false)
	if err != nil && problem.CodeOf(err) == notFound {
		return ask(true)
	}
	return v, err
}

// all returns all pools as the instance sees them.
func (l *Lists) all(ctx context.Context) (*State, error) {
	o, err := l.knows(ctx)
	if err != nil {
		return nil, err
	}
	s, err := l.read(ctx, allPools, false)
	if err != nil {
		return nil, err
	}
	return s.By(o), nil
}

// some returns a pool with those that its waiters wait for, as the instance sees them.
func (l *Lists) some(ctx context.Context, name string, fresh bool) (*State, error) {
	o, err := l.knows(ctx)
	if err != nil {
		return nil, err
	}
	s, err := l.read(ctx, name, fresh)
	for i := range o.Waiting {
		if w := &o.Waiting[i]; err == nil && w.Pools[name] > 0 && !s.has(w) {
			s, err = l.read(ctx, allPools, fresh)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.By(o), nil
}

// knows returns what the instance knows, and has etcd show what it is to show.
func (l *Lists) knows(ctx context.Context) (Own, error) {
	o, err := l.own(ctx)
	l.reads.atLeast(o.Revision)
	return o, err
}

// read returns the state of a pool, or of all.
func (l *Lists) read(ctx context.Context, name string, fresh bool) (*State, error) {
	s, err := l.reads.get(ctx, name, fresh || pool.IsFresh(ctx))
	if err != nil && ctx.Err() != nil {
		err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet: %w", err)
	}
	return s, err
}
