package instance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// KeyReservation reserves one key, in addition to those of claims, on a lease that a
// client renews. A key on that lease shows that its owner lives. The owner puts the key,
// and releases the reservation when the key is deleted.
//
// A reservation ends when the validity of its lease ends, or with its client; its
// context is cancelled then. Like the holder of a claim, the owner must have stopped by
// then.
type KeyReservation struct {
	client  *Client
	lease   store.LeaseID
	ctx     context.Context
	end     context.CancelCauseFunc
	adopted AdoptedKey
}

// AdoptedKey is a key that the previous process put on a lease that was taken over.
type AdoptedKey struct {
	Key string
	// Revision is the key's mod revision.
	Revision int64
}

// ReserveKey reserves a key on a lease of duration d. It waits until such a lease is
// granted or ctx ends. The codes of its errors are etcd_unavailable and stopping.
func (c *Client) ReserveKey(ctx context.Context, d time.Duration) (*KeyReservation, error) {
	for {
		r, ready, err := c.reservations.reserve(c, d)
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

// AdoptedKeys returns reservations for the keys of executors (see [store.Keys.Active])
// on the leases that were taken over. Their leases are renewed until the reservations
// are released.
func (c *Client) AdoptedKeys() []*KeyReservation { return c.reservations.adopted }

// Lease returns the lease to attach the key to.
func (r *KeyReservation) Lease() store.LeaseID { return r.lease }

// Adopted returns the key of a reservation that was taken over; it is empty for others.
func (r *KeyReservation) Adopted() AdoptedKey { return r.adopted }

// Context returns a context that is cancelled when the reservation has ended or was
// released. The cause is a stopping problem if the client shuts down, or else states why
// the lease was lost.
func (r *KeyReservation) Context() context.Context { return r.ctx }

// ValidFor returns how long the key is sure to exist unless the lease is renewed, and
// the longest time that a process which relies on it should take to stop: see
// [Claim.ValidFor].
func (r *KeyReservation) ValidFor() (left, grace time.Duration) {
	w, ok := r.client.keeper.Validity(r.lease)
	if !ok || r.ctx.Err() != nil {
		return 0, 0
	}
	return w.Remaining(r.client.clock.Now()), lease.StopGrace(w.TTL)
}

// Release ends the reservation after the key was deleted, or if it was never put. It may
// be called more than once.
func (r *KeyReservation) Release() {
	if r.client.reservations.remove(r) {
		r.client.keeper.Release(r.lease, 1)
	}
	r.end(errReleased)
}

// Renews reports whether this client renews the lease and its validity has not ended.
func (c *Client) Renews(id store.LeaseID) bool {
	_, ok := c.keeper.Validity(id)
	return ok
}

// Store returns this client's connection to etcd and the layout of its keys, for records
// that are kept next to pools.
func (c *Client) Store() (store.Backend, store.Keys) { return c.backend, c.keys }

var errReleased = errors.New("the key reservation was released")

// reservations holds the key reservations that were not released.
type reservations struct {
	// mu guards the fields below. It is held briefly, and acquired before the keeper's
	// own.
	mu      sync.Mutex
	byLease map[store.LeaseID]map[*KeyReservation]bool
	count   int
	ready   chan struct{} // closed and replaced when leases may be ready
	refused error         // if not nil, why no more are made

	adopted []*KeyReservation // written before Open returns
}

func newReservations() reservations {
	return reservations{byLease: map[store.LeaseID]map[*KeyReservation]bool{}, ready: make(chan struct{})}
}

// reserve makes a reservation if a lease has a free key. Otherwise ready is closed when
// the caller should try again. The lock is held throughout, so that lost finds every
// reservation of its lease.
func (rs *reservations) reserve(c *Client, d time.Duration) (r *KeyReservation, ready <-chan struct{}, err error) {
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

// add adds a reservation on a lease that has counted it already.
func (rs *reservations) add(c *Client, id store.LeaseID) *KeyReservation {
	r := &KeyReservation{client: c, lease: id}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	if rs.byLease[id] == nil {
		rs.byLease[id] = map[*KeyReservation]bool{}
	}
	rs.byLease[id][r] = true
	rs.count++
	return r
}

// remove removes a reservation and reports whether it was present.
func (rs *reservations) remove(r *KeyReservation) bool {
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

// wake makes callers that wait for a lease try again.
func (rs *reservations) wake() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	close(rs.ready)
	rs.ready = make(chan struct{})
}

// lost ends the reservations on a lease whose validity has ended.
func (rs *reservations) lost(id store.LeaseID, cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.byLease[id] {
		rs.count--
		r.end(cause)
	}
	delete(rs.byLease, id)
}

// refuse makes all further reservations fail with why.
func (rs *reservations) refuse(why error) {
	rs.mu.Lock()
	rs.refused = why
	rs.mu.Unlock()
	rs.wake()
}

// endAll cancels the contexts of all reservations. They stay counted until their owners
// release them, which shows that the owners have stopped.
func (rs *reservations) endAll(cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, some := range rs.byLease {
		for r := range some {
			r.end(cause)
		}
	}
}

// len returns the number of reservations that were not released.
func (rs *reservations) len() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.count
}

// leases returns the leases that have reservations.
func (rs *reservations) leases() []store.LeaseID {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	ids := make([]store.LeaseID, 0, len(rs.byLease))
	for id := range rs.byLease {
		ids = append(ids, id)
	}
	return ids
}

// adoptReservations finds the keys of executors on the leases of the previous process.
// Writes of that process may still arrive; the owners of the keys check for keys that
// they do not know.
func (c *Client) adoptReservations(ctx context.Context, left []lease.Resumable) error {
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
	c.reservations.mu.Lock()
	defer c.reservations.mu.Unlock()
	for _, kv := range found.KVs {
		if id := store.LeaseID(kv.Lease); own[id] {
			r := c.reservations.add(c, id)
			r.adopted = AdoptedKey{Key: string(kv.Key), Revision: kv.ModRevision}
			c.reservations.adopted = append(c.reservations.adopted, r)
		}
	}
	return nil
}

// keysOn returns the number of reservations on a lease.
func (rs *reservations) keysOn(id store.LeaseID) int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.byLease[id])
}
