package berth

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Admin is an operator's door: it reads and changes pools and takes claims back,
// and is no instance itself. Its reads need no right to write.
type Admin struct {
	backend  *store.Client
	keys     store.Keys
	registry pool.Registry
}

// Connect reaches etcd for an operator. Of the options it needs those that say
// where etcd is, and as whom. Its errors are problems.
func Connect(ctx context.Context, o Options) (*Admin, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	o.Registerer = nil // an operator is not watched
	backend, err := dial(ctx, o)
	if err != nil {
		return nil, err
	}
	keys := store.NewKeys(o.Prefix)
	return &Admin{backend: backend, keys: keys, registry: pool.Registry{Backend: backend, Keys: keys}}, nil
}

// Close ends the connections.
func (a *Admin) Close() error { return a.backend.Close() }

// Read reads the state of all pools at one revision.
func (a *Admin) Read(ctx context.Context) (*pool.Reader, error) {
	r, err := pool.Read(ctx, a.backend, a.keys)
	return r, etcdProblem(err)
}

// SetPool creates a pool or changes what the change names of it.
func (a *Admin) SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return a.registry.Set(ctx, name, change)
}

// ChangePool changes a pool that exists.
func (a *Admin) ChangePool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return a.registry.Change(ctx, name, change)
}

// DeletePool deletes a pool. Its holders keep their slots until they release
// them, its waiters are refused.
func (a *Admin) DeletePool(ctx context.Context, name string) error {
	_, err := a.registry.Delete(ctx, name)
	return err
}

// PausePool has a pool grant nothing until [Admin.ResumePool].
func (a *Admin) PausePool(ctx context.Context, name string) error {
	return a.changePaused(ctx, name, true)
}

// ResumePool ends a pause.
func (a *Admin) ResumePool(ctx context.Context, name string) error {
	return a.changePaused(ctx, name, false)
}

func (a *Admin) changePaused(ctx context.Context, name string, paused bool) error {
	_, err := a.registry.Change(ctx, name, pool.Change{Paused: &paused})
	return err
}

// Revoke takes a claim of any host back: see [pool.Registry.Revoke].
func (a *Admin) Revoke(ctx context.Context, id string, force bool) (pool.Revocation, error) {
	return a.registry.Revoke(ctx, id, force)
}

// LeaseEnds tells how long leases still live unless they are renewed: see
// [Client.LeaseEnds].
func (a *Admin) LeaseEnds(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	return leaseEnds(ctx, a.backend, ids)
}

// Stuck returns the keys on some of these leases that nothing would ever delete, since etcd
// does not have the lease.
func (a *Admin) Stuck(ctx context.Context, ids []store.LeaseID) ([]pool.Violation, error) {
	return stuck(ctx, a.backend, a.keys, ids)
}

// stuck asks about the leases before it reads the keys: those of a lease that has ended are
// gone by then.
func stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]pool.Violation, error) {
	gone := map[store.LeaseID]bool{}
	for _, id := range ids {
		_, err := b.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return nil, etcdProblem(err)
		}
		gone[id] = err != nil
	}
	if len(gone) == 0 {
		return nil, nil
	}
	r, err := pool.Read(ctx, b, keys)
	if err != nil {
		return nil, etcdProblem(err)
	}
	return r.OnLeases(gone), nil
}

// Hosts returns all instances that are seen now, by host and name.
func (a *Admin) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return hosts(ctx, a.backend, a.keys)
}

const (
	// leaseReads is how many leases etcd is asked about at once: so that 10,000 are
	// a matter of a second, and etcd has time for others.
	leaseReads = 32
	// leaseReadTime bounds the time for all of them.
	leaseReadTime = 2 * time.Second
)

func leaseEnds(ctx context.Context, b store.Backend, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids))) // claims share leases
	limited, cancel := context.WithTimeout(ctx, leaseReadTime)
	defer cancel()
	asking, all := errgroup.WithContext(limited)
	asking.SetLimit(leaseReads)
	var mu sync.Mutex // guards ends
	ends := make(map[store.LeaseID]time.Duration, len(ids))
	for _, id := range ids {
		if all.Err() != nil {
			break
		}
		asking.Go(func() error {
			left, err := b.TimeToLive(all, id)
			if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			ends[id] = left // 0 if it is gone
			return nil
		})
	}
	err := asking.Wait()
	switch {
	case ctx.Err() != nil:
		return ends, context.Cause(ctx)
	case limited.Err() != nil:
		return ends, nil // what was not told in time is not known
	}
	return ends, etcdProblem(err)
}

// hosts lists the instances. One that can't be read is left out of the list and
// told with the error, beside the others.
func hosts(ctx context.Context, b store.Backend, keys store.Keys) ([]lease.PresenceRecord, error) {
	s, err := store.ReadAll(ctx, b, keys.Hosts())
	if err != nil {
		return nil, etcdProblem(err)
	}
	var all []lease.PresenceRecord
	var errs []error
	for _, kv := range s.KVs {
		r, err := lease.DecodePresence(keys, string(kv.Key), kv.Value)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b lease.PresenceRecord) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, errors.Join(errs...)
}
