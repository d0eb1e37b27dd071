package berth

import (
	"context"
	"time"

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
	return lease.Ends(ctx, a.backend, ids)
}

// Hosts returns all instances that are seen now, by host and name.
func (a *Admin) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return lease.Instances(ctx, a.backend, a.keys)
}
