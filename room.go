package berth

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Room is room for one key, beside those of claims, on a lease that a client
// renews: for a key by which something is seen to live through this client. Who
// has room puts the key on its lease, and releases the room when the key is gone.
//
// A room ends when trust in its lease does, or with its client: its context tells.
// What the key stands for must have stopped by then, as the holder of a claim.
type Room struct {
	client *Client
	lease  store.LeaseID
	ctx    context.Context
	end    context.CancelCauseFunc
	left   LeftKey
}

// LeftKey is a key that the process before has left on a lease.
type LeftKey struct {
	Key string
	// Revision at which it was put.
	Revision int64
}

// Room returns room on a lease of exactly duration d. It waits for one to be
// granted, until ctx ends. Its errors are problems: etcd_unavailable, stopping.
func (c *Client) Room(ctx context.Context, d time.Duration) (*Room, error) {
	for {
		r, ready, err := c.rooms.take(c, d)
		if r != nil || err != nil {
			return r, err
		}
		select {
		case <-ready:
		case <-c.done:
			return nil, problem.New(problem.Stopping, "the client has ended: %w", c.err)
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, context.Cause(ctx)
			}
			return nil, c.tooLate("a lease could not be made", c.keeper.Trouble())
		}
	}
}

// LeftRooms returns the rooms of keys of executors (see [store.Keys.Active]) that
// the process before has left on the leases that were taken over. Their leases are
// renewed, and their room is kept, until they are released.
func (c *Client) LeftRooms() []*Room { return c.rooms.left }

// Lease is what the key is to hang on.
func (r *Room) Lease() store.LeaseID { return r.lease }

// Left is the key of a room that was taken over, empty for any other.
func (r *Room) Left() LeftKey { return r.left }

// Context is done when the room has ended, or was released. Its cause says why:
// a stopping problem if the client shuts down, and else what became of the lease.
func (r *Room) Context() context.Context { return r.ctx }

// Trust tells for how long the key is sure to be there unless the lease is renewed
// again, and how long who relies on it should take to stop at most: see
// [Claim.Trust].
func (r *Room) Trust() (left, grace time.Duration) {
	w, ok := r.client.keeper.Trust(r.lease)
	if !ok || r.ctx.Err() != nil {
		return 0, 0
	}
	return w.Left(r.client.clock.Now()), lease.StopGrace(w.TTL)
}

// Release gives the room back: the key is gone, or never got there. It may be
// called more than once.
func (r *Room) Release() {
	if r.client.rooms.remove(r) {
		r.client.keeper.Release(r.lease, 1)
	}
	r.end(errReleased)
}

// Keeps tells whether a lease is one that this client renews, and trusts.
func (c *Client) Keeps(id store.LeaseID) bool {
	_, ok := c.keeper.Trust(id)
	return ok
}

// Store is etcd as this client reaches it, and how it spells keys there: for what
// is kept beside pools.
func (c *Client) Store() (store.Backend, store.Keys) { return c.backend, c.keys }

var errReleased = errors.New("the room was released")

// rooms are those of a client that were not released.
type rooms struct {
	// mu guards what follows. It is held for moments only, and taken before the
	// keeper's own.
	mu      sync.Mutex
	byLease map[store.LeaseID]map[*Room]bool
	count   int
	ready   chan struct{} // closed when leases may be ready, and made anew
	refused error         // why there are no more; nil while there are

	left []*Room // written before anybody reads
}

func newRooms() rooms {
	return rooms{byLease: map[store.LeaseID]map[*Room]bool{}, ready: make(chan struct{})}
}

// take takes room if there is a lease that has some. If not, ready tells when to
// try again. The lock is held meanwhile: so the loss of a lease finds its rooms.
func (rs *rooms) take(c *Client, d time.Duration) (r *Room, ready <-chan struct{}, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.refused != nil {
		return nil, nil, rs.refused
	}
	id, ok := c.keeper.Acquire(d, 1)
	if !ok {
		return nil, rs.ready, nil
	}
	return rs.add(c, id), nil, nil
}

// add makes a room on a lease, on which it is reserved.
func (rs *rooms) add(c *Client, id store.LeaseID) *Room {
	r := &Room{client: c, lease: id}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	if rs.byLease[id] == nil {
		rs.byLease[id] = map[*Room]bool{}
	}
	rs.byLease[id][r] = true
	rs.count++
	return r
}

// remove forgets a room, and tells whether it was known.
func (rs *rooms) remove(r *Room) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !rs.byLease[r.lease][r] {
		return false
	}
	rs.count--
	if delete(rs.byLease[r.lease], r); len(rs.byLease[r.lease]) == 0 {
		delete(rs.byLease, r.lease)
	}
	return true
}

// wake has those look again who wait for a lease.
func (rs *rooms) wake() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	close(rs.ready)
	rs.ready = make(chan struct{})
}

// lost ends the rooms of a lease that trust has ended in.
func (rs *rooms) lost(id store.LeaseID, cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.byLease[id] {
		rs.count--
		r.end(cause)
	}
	delete(rs.byLease, id)
}

// refuse has nobody get room any more.
func (rs *rooms) refuse(why error) {
	rs.mu.Lock()
	rs.refused = why
	rs.mu.Unlock()
	rs.wake()
}

// endAll tells all that their time is over. Their room stays theirs until they
// release it: by that they say that they have stopped.
func (rs *rooms) endAll(cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, some := range rs.byLease {
		for r := range some {
			r.end(cause)
		}
	}
}

// len is how many were not released.
func (rs *rooms) len() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.count
}

// leases are those that have rooms.
func (rs *rooms) leases() []store.LeaseID {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	ids := make([]store.LeaseID, 0, len(rs.byLease))
	for id := range rs.byLease {
		ids = append(ids, id)
	}
	return ids
}

// adoptRooms finds the keys of executors on leases that the process before has
// left. What it had under way then may yet come: who has the keys in its care
// looks for those that it does not know.
func (c *Client) adoptRooms(ctx context.Context, left []lease.Resumable) error {
	if len(left) == 0 {
		return nil
	}
	own := map[store.LeaseID]bool{}
	for _, l := range left {
		own[l.ID] = true
	}
	found, err := store.ReadAll(ctx, c.backend, c.keys.Active(c.opts.Host))
	if err != nil {
		return etcdProblem(err)
	}
	c.rooms.mu.Lock()
	defer c.rooms.mu.Unlock()
	for _, kv := range found.KVs {
		if id := store.LeaseID(kv.Lease); own[id] {
			r := c.rooms.add(c, id)
			r.left = LeftKey{Key: string(kv.Key), Revision: kv.ModRevision}
			c.rooms.left = append(c.rooms.left, r)
		}
	}
	return nil
}

// keysOn is how many rooms a lease has.
func (rs *rooms) keysOn(id store.LeaseID) int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.byLease[id])
}
