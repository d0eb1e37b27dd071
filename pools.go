package berth

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// seeChange bounds the wait until this client sees a change of its own.
const seeChange = 2 * time.Second

// Pools returns all pools, by name.
func (c *Client) Pools(ctx context.Context) ([]pool.Status, error) { return c.engine.Pools(ctx) }

// Pool returns a pool with its holders and its line.
func (c *Client) Pool(ctx context.Context, name string) (pool.Detail, error) {
	return c.engine.Pool(ctx, name)
}

// HasPool tells whether there is a pool of that name, as far as this client has seen. It
// is a look at memory.
func (c *Client) HasPool(name string) bool { return c.engine.HasPool(name) }

// Space returns what the lines leave of all pools, as far as this client has seen.
func (c *Client) Space(ctx context.Context) (*pool.Space, error) {
	s, _, _, err := c.engine.Space(ctx, nil)
	return s, err
}

// SetPool creates a pool or changes what the change names of it. It holds when
// it returns, and this client sees it.
func (c *Client) SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	put, err := c.registry.Set(ctx, name, change)
	if err == nil {
		c.see(ctx, put.Revision)
	}
	return put, err
}

// PausePool has a pool grant nothing until [Client.ResumePool].
func (c *Client) PausePool(ctx context.Context, name string) error {
	return c.changePaused(ctx, name, true)
}

// ResumePool ends a pause.
func (c *Client) ResumePool(ctx context.Context, name string) error {
	return c.changePaused(ctx, name, false)
}

func (c *Client) changePaused(ctx context.Context, name string, paused bool) error {
	put, err := c.registry.Change(ctx, name, pool.Change{Paused: &paused})
	if err == nil {
		c.see(ctx, put.Revision)
	}
	return err
}

// DeletePool deletes a pool. Its holders keep their slots until they release
// them, its waiters are refused.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	rev, err := c.registry.Delete(ctx, name)
	if err == nil {
		c.see(ctx, rev)
	}
	return err
}

// see waits until this client sees a revision. That it takes longer is no
// failure of the change.
func (c *Client) see(ctx context.Context, rev int64) {
	ctx, cancel := context.WithTimeout(ctx, seeChange)
	defer cancel()
	_ = c.engine.WaitRevision(ctx, rev)
}

// Claims returns all claims of all hosts: those that hold slots, first come
// first, and those that wait, in line.
func (c *Client) Claims(ctx context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error) {
	return c.engine.Claims(ctx)
}

// Why tells what a claim of any host holds, or why it waits.
func (c *Client) Why(ctx context.Context, id string) (pool.Why, error) { return c.engine.Why(ctx, id) }

// Reconcile frees what hangs on the leases of this client and is no claim of it, as it
// does by itself from time to time: see [pool.Engine.Reconcile].
func (c *Client) Reconcile(ctx context.Context) error { return c.engine.Reconcile(ctx) }

// Revoke takes a claim of any host back: see [pool.Registry.Revoke].
func (c *Client) Revoke(ctx context.Context, id string, force bool) (pool.Revocation, error) {
	return c.registry.Revoke(ctx, id, force)
}

// Subscribe returns what happens to pools and to claims of this client from now
// on, until ctx ends.
func (c *Client) Subscribe(ctx context.Context) (<-chan pool.Event, error) {
	return c.engine.Subscribe(ctx)
}

// SubscribeRuns is [Client.Subscribe] for what happens to claims of this client that
// carry a run, and to nothing else.
func (c *Client) SubscribeRuns(ctx context.Context) (<-chan pool.Event, error) {
	return c.engine.SubscribeRuns(ctx)
}

// Age is how old this client's view of the pools is. From 2 s on nothing is
// granted.
func (c *Client) Age(ctx context.Context) (time.Duration, error) { return c.engine.Age(ctx) }

// Host is the name under which this client's claims are seen.
func (c *Client) Host() string { return c.opts.Host }

// Instance is the name of this client on its host.
func (c *Client) Instance() string { return c.opts.Instance }

// LeaseEnds tells how long leases still live unless they are renewed, 0 for those
// that are gone. It asks etcd, for 2 s at most: what that has not told by then is
// missing. With an error comes what is known without it.
func (c *Client) LeaseEnds(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	return lease.Ends(ctx, c.backend, ids)
}

// Hosts returns all instances that are seen now, by host and name.
func (c *Client) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return lease.Instances(ctx, c.backend, c.keys)
}
