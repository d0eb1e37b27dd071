package registry

import (
	"context"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// Registry changes the specs of pools. Each change compares the spec that it was
// made from, so no two operators undo each other.
type Registry struct {
	Backend store.Backend
	Keys    store.Keys
}

// changing is what all this does, in words for errors.
const changing = "the pool was not changed"

// Set creates a pool or changes it. A new pool needs a limit. Its errors are
// problems.
func (r Registry) Set(ctx context.Context, name string, ch pool.Change) (pool.Put, error) {
	return r.set(ctx, name, ch, true)
}

// Change changes a pool that exists; an unknown one is a PoolNotFound problem.
func (r Registry) Change(ctx context.Context, name string, ch pool.Change) (pool.Put, error) {
	return r.set(ctx, name, ch, false)
}

// set changes a pool, and may create it.
func (r Registry) set(ctx context.Context, name string, ch pool.Change, create bool) (pool.Put, error) {
	if err := pool.ValidateName(name); err != nil {
		return pool.Put{}, err
	}
	if ch.Replace && ch.Limit == nil {
		return pool.Put{}, problem.Field("limit", "a pool needs a limit")
	}
	return store.Change(ctx, changing, func(ctx context.Context) (pool.Put, error) {
		was, err := r.read(ctx, name)
		if err != nil {
			return pool.Put{}, err
		}
		created, old := was.revision == 0, was.Spec
		switch {
		case created && !create:
			return pool.Put{}, store.Stop(pool.NoPool(name))
		case created && ch.Limit == nil:
			return pool.Put{}, store.Stop(problem.Field("limit", "pool '%s' does not exist yet, and a new pool needs a limit", name))
		case created:
			old = pool.DefaultSpec()
		}
		base := old
		if ch.Replace {
			base = pool.DefaultSpec()
		}
		spec := ch.Apply(base)
		if err := spec.Validate(); err != nil {
			return pool.Put{}, store.Stop(err)
		}
		if err := ch.If.Check(was.revision); err != nil {
			return pool.Put{}, err
		}
		if !created && spec == old {
			return pool.Put{Spec: spec, Revision: was.revision}, nil
		}
		if created {
			if err := r.layout().establish(ctx); err != nil {
				return pool.Put{}, err
			}
		}
		key := r.Keys.Spec(name)
		at, err := store.Commit(ctx, r.Backend,
			[]*pb.Compare{store.ModEquals(key, was.revision)}, store.Put(key, was.change(spec), 0))
		return pool.Put{Spec: spec, Created: created, Revision: at}, err
	})
}

// Check refuses slots that can't be granted with the present specs: of a pool that does
// not exist, or more than its limit. Its errors are problems.
func (r Registry) Check(ctx context.Context, slots map[string]int) error {
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		spec, err := r.read(ctx, name)
		switch {
		case err != nil:
			return store.Problem("the pools could not be read", err)
		case spec.revision == 0:
			err := pool.NoSuchPool(name)
			err.Field = "pools." + name
			return err
		}
		if err := spec.Exceeded(pool.Need{Pool: name, N: slots[name]}); err != nil {
			return err
		}
	}
	return nil
}

// Declare returns what makes a pool have a limit: the condition that it is as it was read,
// and if there is none the operation that creates it. If it has another limit, that is an
// [*pool.OtherLimitError].
func (r Registry) Declare(ctx context.Context, name string, limit int) (*pb.Compare, *pb.RequestOp, error) {
	is, err := r.read(ctx, name)
	switch {
	case err != nil:
		return nil, nil, err
	case is.revision != 0 && is.Limit != limit:
		return nil, nil, &pool.OtherLimitError{Pool: name, Declared: limit, Limit: is.Limit}
	}
	key := r.Keys.Spec(name)
	same := store.ModEquals(key, is.revision)
	if is.revision != 0 {
		return same, nil, nil
	}
	spec := pool.DefaultSpec()
	spec.Limit = limit
	if err := spec.Validate(); err != nil {
		return nil, nil, err
	}
	if err := r.layout().establish(ctx); err != nil {
		return nil, nil, err
	}
	return same, store.Put(key, is.change(spec), 0), nil
}

// layout has the version, which is put before the first pool.
func (r Registry) layout() Layout { return Layout(r) }

// Delete deletes a pool's spec. Its holders keep their slots until they release
// them; its waiters are refused. An unknown pool is a PoolNotFound problem. The revision of
// the spec must satisfy the condition.
func (r Registry) Delete(ctx context.Context, name string, condition store.Condition) (revision int64, err error) {
	if err := pool.ValidateName(name); err != nil {
		return 0, err
	}
	put, err := store.Change(ctx, changing, func(ctx context.Context) (pool.Put, error) {
		key := r.Keys.Spec(name)
		resp, err := r.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return pool.Put{}, err
		}
		if len(resp.Kvs) == 0 {
			return pool.Put{}, store.Stop(pool.NoPool(name))
		}
		if err := condition.Check(resp.Kvs[0].ModRevision); err != nil {
			return pool.Put{}, err
		}
		at, err := store.Commit(ctx, r.Backend,
			[]*pb.Compare{store.ModEquals(key, resp.Kvs[0].ModRevision)}, r.removal(name)...)
		return pool.Put{Revision: at}, err
	})
	return put.Revision, err
}

// Unused returns the conditions that the spec of a pool was last put at a revision, that no slots of the pool are held
// and that no claim waits for it, and the operations that delete the pool then.
func (r Registry) Unused(name string, revision int64) (ifs []*pb.Compare, then []*pb.RequestOp) {
	keys := wire.Keys{Keys: r.Keys}
	return []*pb.Compare{
		store.NonePutSince(keys.Slots(name), 0), store.NonePutSince(keys.DemandsAll(name), 0), store.CreateEquals(keys.Pending(name), 0),
		store.ModEquals(keys.Spec(name), revision),
	}, r.removal(name)
}

// read returns the spec of a pool.
func (r Registry) read(ctx context.Context, name string) (stored, error) {
	key := r.Keys.Spec(name)
	resp, err := r.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) == 0 {
		return stored{}, err
	}
	at := resp.Kvs[0].ModRevision
	s, counted, err := wire.DecodeSpec(key, resp.Kvs[0].Value, at)
	if err != nil {
		return stored{}, store.Stop(problem.New(problem.CorruptValue, "%w", err))
	}
	return stored{s, at, counted.Since}, nil
}
