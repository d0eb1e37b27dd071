package instance

import (
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/revoke"
)

// Admin reads and changes pools and revokes claims for an operator. It is not an
// instance, and its reads need no permission to write.
type Admin struct {
	backend  *store.Client
	keys     store.Keys
	registry registry.Registry
}

// Connect connects to etcd for an operator. It uses the options for etcd and for
// authentication only.
func Connect(ctx context.Context, o Options) (*Admin, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	o.Registerer = nil // an operator's commands export no metrics
	backend, err := dial(ctx, o)
	if err != nil {
		return nil, err
	}
	keys := store.NewKeys(o.Prefix)
	if err := (registry.Layout{Backend: backend, Keys: keys}).Check(ctx); err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return &Admin{backend: backend, keys: keys, registry: registry.Registry{Backend: backend, Keys: keys}}, nil
}

// Close closes the connections.
func (a *Admin) Close() error { return a.backend.Close() }

// Read reads the state of all pools at one revision.
func (a *Admin) Read(ctx context.Context) (*list.State, error) {
	r, err := list.Read(ctx, a.backend, a.keys)
	return r, etcdProblem(err)
}

// SetPool creates a pool, or changes the fields that change sets.
func (a *Admin) SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return a.registry.Set(ctx, name, change)
}

// ChangePool changes an existing pool.
func (a *Admin) ChangePool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return a.registry.Change(ctx, name, change)
}

// DeletePool deletes a pool. Its holders keep their slots until they release them; its
// waiters are refused.
func (a *Admin) DeletePool(ctx context.Context, name string, condition store.Condition) error {
	_, err := a.registry.Delete(ctx, name, condition)
	return err
}

// Revoke revokes a claim of any host: see [revoke.Revoker.Revoke].
func (a *Admin) Revoke(ctx context.Context, id string, force bool, may ...pool.May) (pool.Revocation, error) {
	return revoke.Revoker{Backend: a.backend, Keys: a.keys}.Revoke(ctx, id, force, may...)
}

// LeaseEnds returns how long leases live unless they are renewed: see
// [Client.LeaseEnds].
func (a *Admin) LeaseEnds(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	return lease.Ends(ctx, a.backend, ids)
}

// Hosts returns all live instances, ordered by host and name.
func (a *Admin) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return lease.Instances(ctx, a.backend, a.keys)
}
