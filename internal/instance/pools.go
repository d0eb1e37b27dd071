package instance

import (
	"context"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/revoke"
)

// Pools returns all pools, ordered by name.
func (c *Client) Pools(ctx context.Context) ([]pool.Status, error) { return c.engine.Pools(ctx) }

// Pool returns a pool with its holders and its waiters.
func (c *Client) Pool(ctx context.Context, name string) (pool.Detail, error) {
	return c.engine.Pool(ctx, name)
}

// HasPool reports whether the pool exists: see [engine.Engine.HasPool].
func (c *Client) HasPool(name string) bool { return c.engine.HasPool(name) }

// Space returns the capacity that claims and waiters leave free in all pools.
func (c *Client) Space(ctx context.Context) (*pool.Space, error) { return c.engine.Space(ctx) }

// Operator returns the verbs of operators on pools and claims, which record what they do,
// for the user of this process.
func (c *Client) Operator() audit.PoolOperator {
	return audit.PoolOperator{
		Log: audit.Log{Backend: c.backend, Keys: c.keys, Logger: c.opts.Logger},
		By:  audit.OnEtcd(c.backend, c.Host()), Source: c,
	}
}

// SetPool creates a pool, or changes the fields that change sets. When it returns, the
// change is in effect, and this client shows it.
func (c *Client) SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	put, err := c.registry.Set(ctx, name, change)
	if err == nil {
		c.engine.Changed(put.Revision)
	}
	return put, err
}

// ChangePool changes an existing pool: see [Client.SetPool].
func (c *Client) ChangePool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	put, err := c.registry.Change(ctx, name, change)
	if err == nil {
		c.engine.Changed(put.Revision)
	}
	return put, err
}

// DeletePool deletes a pool. Its holders keep their slots until they release them; its
// waiters are refused.
func (c *Client) DeletePool(ctx context.Context, name string, condition store.Condition) error {
	rev, err := c.registry.Delete(ctx, name, condition)
	if err == nil {
		c.engine.Changed(rev)
	}
	return err
}

// Claims returns all claims of all hosts: the holders, oldest first, and the waiters in
// the order of the wait queue.
func (c *Client) Claims(ctx context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error) {
	return c.engine.Claims(ctx)
}

// Why explains what a claim of any host holds, or why it waits.
func (c *Client) Why(ctx context.Context, id string) (pool.Why, error) { return c.engine.Why(ctx, id) }

// Reconcile deletes the keys on this client's leases that belong to no claim of it, as
// the client does periodically: see [engine.Engine.Reconcile].
func (c *Client) Reconcile(ctx context.Context) error { return c.engine.Reconcile(ctx) }

// Revoke revokes a claim of any host: see [revoke.Revoker.Revoke].
func (c *Client) Revoke(ctx context.Context, id string, force bool, may ...pool.May) (pool.Revocation, error) {
	return revoke.Revoker{Backend: c.backend, Keys: c.keys}.Revoke(ctx, id, force, may...)
}

// Subscribe returns the events of this client's claims from now on: see
// [engine.Engine.Subscribe].
func (c *Client) Subscribe(ctx context.Context) (<-chan pool.Event, error) {
	return c.engine.Subscribe(ctx)
}

// SubscribePools returns the changes of some pools from now on; without names, of all: see
// [engine.Engine.SubscribePools].
func (c *Client) SubscribePools(ctx context.Context, pools ...string) (<-chan pool.Event, error) {
	return c.engine.SubscribePools(ctx, pools...)
}

// SubscribeRuns is [Client.Subscribe] limited to events of this client's claims that
// belong to a run.
func (c *Client) SubscribeRuns(ctx context.Context) (<-chan pool.Event, error) {
	return c.engine.SubscribeRuns(ctx)
}

// Age returns how old this client's view of the pools is. The client grants nothing
// while it is 2 s or older.
func (c *Client) Age(ctx context.Context) time.Duration { return c.engine.Age(ctx) }

// Unready returns why the client cannot make claims now: it has ended, or another etcd cluster has
// replaced the one before, and the client has not read everything there yet. It is nil if neither is
// so. Its code is etcd_unavailable, or that of [Client.Err].
func (c *Client) Unready(ctx context.Context) error {
	if err := c.Err(); err != nil {
		return err
	}
	id, _ := c.backend.Cluster()
	before := c.serves.Load()
	if id == before {
		return nil
	}
	const replaced = "etcd cluster %x has replaced %x, probably by a restore: "
	if _, present := c.presence.Lease(); !present {
		return problem.New(problem.EtcdUnavailable, replaced+"this host is not announced there yet", id, before)
	}
	if busy, err := c.engine.Restoring(ctx); err != nil || busy {
		return problem.New(problem.EtcdUnavailable, replaced+"everything is being read again", id, before)
	}
	c.serves.CompareAndSwap(before, id)
	return nil
}

// Host returns the host name of this client.
func (c *Client) Host() string { return c.opts.Host }

// Identity returns who the client is in etcd.
func (c *Client) Identity() access.Identity { return c.identity }

// Instance returns the name of this client on its host.
func (c *Client) Instance() string { return c.opts.Instance }

// LeaseEnds returns how long leases live unless they are renewed, 0 for leases that have
// ended. It asks etcd for at most 2 s; leases without an answer by then are missing.
// With an error it returns the answers so far.
func (c *Client) LeaseEnds(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	return lease.Ends(ctx, c.backend, ids)
}

// Hosts returns all live instances, ordered by host and name.
func (c *Client) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return lease.Instances(ctx, c.backend, c.keys)
}

// Suggest returns an error with the name of the pool that was probably meant, if it says that there is no pool of
// some name. The function may reports whether the caller may know the name of a pool; nil is any.
func (c *Client) Suggest(ctx context.Context, err error, may func(name string) bool) error {
	return pool.Suggest(err, func() []string {
		all, _ := c.Pools(ctx) // without them there is no suggestion
		return slices.DeleteFunc(pool.Names(all), func(name string) bool { return may != nil && !may(name) })
	})
}
