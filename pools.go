package berth

import (
	"context"
	"time"

	"github.com/berthhq/berth/pool"
)

// Special values of the settings of a pool.
const (
	// Unlimited is the limit of a pool that refuses no claim.
	Unlimited = pool.Unlimited
	// NeverReserve lets claims that fit pass a waiting claim for ever: see
	// [WithReserveAfter].
	NeverReserve = pool.NeverReserve
)

// Pool is the state of a pool.
type Pool struct {
	Name string
	// Limit is the number of slots: [Unlimited], 0 (closed), or 1 to 1,000,000.
	Limit int
	// LeaseDuration is how long the slots of a dead holder stay taken.
	LeaseDuration time.Duration
	// ReserveAfter is the age from which on slots are reserved for a waiting claim.
	ReserveAfter time.Duration
	// Paused pools grant nothing and keep their holders and waiters.
	Paused bool
	// Deleted is set if the pool was deleted while slots of it were held. It has no settings.
	Deleted bool
	// Claimed is the number of slots that are taken. It may exceed the limit after that
	// was lowered.
	Claimed int
	// Waiting is the number of claims that wait.
	Waiting int
	// Problem is why the pool grants nothing, if one of its keys can't be read.
	Problem string
}

// Holder identifies a claim of any host.
type Holder struct {
	Claim          string
	Host, Instance string
	// ClaimedBy is the identity that has made the claim: see the reference of the HTTP API.
	ClaimedBy string
	Run, Step string
	PID       int
	Labels    map[string]string
	// Slots are those of all pools of the claim.
	Slots    Slots
	Priority int
	// Since is when the claim was granted, or began to wait, by the clock of its host.
	Since time.Time
	// Fence is the fencing token; 0 for a claim that waits.
	Fence int64
}

// Waiter is a claim that waits for a pool.
type Waiter struct {
	Holder
	// Position in the wait queue of the pool, from 1 on.
	Position int
	// Reason is why the claim waits.
	Reason string
}

// PoolDetail is a pool with its holders, oldest first, and its waiters in the order of the
// wait queue.
type PoolDetail struct {
	Pool
	Holders []Holder
	Waiters []Waiter
}

// Pools returns all pools, ordered by name.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	all, err := c.in.Pools(ctx)
	if err != nil {
		return nil, public(err)
	}
	pools := make([]Pool, len(all))
	for i, s := range all {
		pools[i] = poolOf(s)
	}
	return pools, nil
}

// Pool returns one pool. An unknown pool is an error with the code pool_not_found.
func (c *Client) Pool(ctx context.Context, name string) (PoolDetail, error) {
	d, err := c.in.Pool(ctx, name)
	if err != nil {
		return PoolDetail{}, public(c.in.Suggest(ctx, err, nil))
	}
	all := PoolDetail{Pool: poolOf(d.Status), Holders: make([]Holder, len(d.Holders)), Waiters: make([]Waiter, len(d.Waiters))}
	for i, h := range d.Holders {
		all.Holders[i] = holderOf(h.Claim, h.Holder, h.Pools)
		all.Holders[i].Priority, all.Holders[i].Since, all.Holders[i].Fence = h.Priority, h.Since, int64(h.Fence)
	}
	for i, w := range d.Waiters {
		all.Waiters[i] = Waiter{Holder: holderOf(w.Claim, w.Holder, w.Pools), Position: w.Position, Reason: w.Reason}
		all.Waiters[i].Priority, all.Waiters[i].Since = w.Priority, w.Since
	}
	return all, nil
}

func poolOf(s pool.Status) Pool {
	return Pool{
		Name: s.Name, Limit: s.Limit, LeaseDuration: s.LeaseDuration, ReserveAfter: s.ReserveAfter, Paused: s.Paused, Deleted: s.Deleted,
		Claimed: s.Claimed, Waiting: s.Waiting, Problem: s.Problem,
	}
}

func holderOf(claim string, h pool.Holder, slots map[string]int) Holder {
	return Holder{
		Claim: claim, Host: h.Host, Instance: h.Instance, ClaimedBy: h.ClaimedBy, Run: h.Run, Step: h.Step, PID: h.PID, Labels: h.Labels,
		Slots: slots,
	}
}

// PoolOption changes a setting of a pool.
type PoolOption func(*poolOptions)

type poolOptions struct{ change pool.Change }

// WithLeaseDuration sets how long the slots of a dead holder stay taken, from 5 s to 24 h
// in whole seconds. The default is 5 minutes.
func WithLeaseDuration(d time.Duration) PoolOption {
	return func(o *poolOptions) { o.change.LeaseDuration = &d }
}

// WithReserveAfter sets the age from which on slots are reserved for a waiting claim, up to
// 24 h; 0 is at once, in strict order, and [NeverReserve] is never. The default is 1 minute.
func WithReserveAfter(d time.Duration) PoolOption {
	return func(o *poolOptions) { o.change.ReserveAfter = &d }
}

// SetPool creates a pool with a limit, or changes its limit. Settings without an option
// stay as they are. When it returns, the change is in effect. Like every method that changes
// pools or revokes claims, it leaves a record that 'berth actions list' lists.
func (c *Client) SetPool(ctx context.Context, name string, limit int, opts ...PoolOption) error {
	o := poolOptions{pool.Change{Limit: &limit}}
	for _, opt := range opts {
		opt(&o)
	}
	_, err := c.in.Operator().SetPool(ctx, name, o.change)
	return public(err)
}

// ChangePool changes settings of a pool that exists, and not its limit. An unknown pool is an error with the
// code pool_not_found.
func (c *Client) ChangePool(ctx context.Context, name string, opts ...PoolOption) error {
	var o poolOptions
	for _, opt := range opts {
		opt(&o)
	}
	_, err := c.in.Operator().ChangePool(ctx, name, o.change)
	return public(err)
}

// PausePool stops all grants of a pool until [Client.ResumePool].
func (c *Client) PausePool(ctx context.Context, name string) error {
	_, err := c.in.Operator().PausePool(ctx, name, true)
	return public(err)
}

// ResumePool ends a pause.
func (c *Client) ResumePool(ctx context.Context, name string) error {
	_, err := c.in.Operator().PausePool(ctx, name, false)
	return public(err)
}

// DeletePool deletes a pool. Its holders keep their slots until they release them; its
// waiters are refused.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	return public(c.in.Operator().DeletePool(ctx, name))
}

// Revoke revokes a claim of any host, named by its id, or by HOST/INSTANCE/ID. The host of
// the claim has the holder stop and then frees the slots. With force, the slots are freed
// at once; only a resource that a pool of one slot guards can then refuse the old holder, by its
// fencing token.
func (c *Client) Revoke(ctx context.Context, claim string, force bool) error {
	_, err := c.in.Operator().RevokeClaim(ctx, claim, force)
	return public(err)
}
