package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// Backend is one client of an [Etcd]. Its methods may be called by several
// goroutines. It needs closing.
//
// Under testing/synctest it has to be made inside the bubble; then leases end by
// the bubble's clock.
type Backend struct {
	hub  *hub
	wg   sync.WaitGroup // watches, and requests under way on their own
	done chan struct{}  // closed by Close

	// Guarded by hub.mu.
	inject       func(Call) Fault
	down, frozen bool
	closed       bool
	watches      map[*watch]struct{}
	restored     bool // etcd was, and no response has shown it yet
	history      uint64
	cluster      uint64        // of the first answer, or of the etcd that has replaced that one; 0 before it
	replaced     chan struct{} // closed when another cluster replaces that one
}

var _ store.Backend = (*Backend)(nil)

// NewBackend returns a client of e. From now on e must be used through [Backend.Do]
// alone. Time passes in e as it does in package time.
func NewBackend(e *Etcd) *Backend { return newHub(e, false).client() }

// NewManualBackend is [NewBackend] with an e in which time passes only where a
// test calls [Etcd.Advance] through [Backend.Do].
func NewManualBackend(e *Etcd) *Backend { return newHub(e, true).client() }

// Peer returns another client of the same etcd, without the faults of this one.
func (b *Backend) Peer() *Backend { return b.hub.client() }

// Do calls f with the etcd behind all clients, while none of them uses it.
func (b *Backend) Do(f func(*Etcd)) { b.hub.do(f) }

// Inject has f asked what happens to each request of this client. It is called
// by the goroutine that makes the request. Nil is no faults.
func (b *Backend) Inject(f func(Call) Fault) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	b.inject = f
}

// Freeze stops the delivery of this client's watches, progress included. What
// happens meanwhile waits; requests for progress are lost. A reader who is
// already waiting may still get what is on its way to it.
func (b *Backend) Freeze() { b.set(func() { b.frozen = true }) }

// Thaw ends [Backend.Freeze].
func (b *Backend) Thaw() { b.set(func() { b.frozen = false }) }

// Down cuts this client off: its requests fail at once with
// [store.ErrUnavailable] and its watches fall silent. Leases go on ending.
func (b *Backend) Down() { b.set(func() { b.down = true }) }

// Up ends [Backend.Down]. Watches go on where they were.
func (b *Backend) Up() { b.set(func() { b.down = false }) }

// BreakWatches ends all watches of this client with err, frozen or not.
func (b *Backend) BreakWatches(err error) {
	b.set(func() {
		for w := range b.watches {
			w.broken = err
		}
	})
}

// Restore replaces the etcd behind all clients by e, which then must be used through
// [Backend.Do] alone: as a restore from a backup does. Watches go on in e after what
// they have delivered. If e is at an earlier revision, the next answer that carries
// one is [store.ErrRestored] to each client. If e is another cluster, the next request of
// each client is refused with [store.ErrOtherCluster], and its watches end.
func (b *Backend) Restore(e *Etcd) {
	h := b.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		c.restored = c.restored || e.Revision() < h.etcd.Revision()
		for w := range c.watches {
			w.follower = e.Follow(w.follower.keys, w.follower.next)
		}
	}
	h.etcd, h.notified, h.clock = e, e.Revision(), time.Now()
	for c := range h.clients {
		c.wake()
	}
}

// History counts the responses that showed a restore.
func (b *Backend) History() uint64 {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	return b.history
}

// Cluster returns the cluster of the last answer.
func (b *Backend) Cluster() (id uint64, replaced <-chan struct{}) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	return b.cluster, b.replaced
}

// belongs checks that etcd is the cluster that the client works with, and worked with when a
// request was made for that cluster: as [store.Client] does, before the request is sent. The lock
// is held.
func (b *Backend) belongs(to uint64) error {
	switch id := b.hub.etcd.opts.ClusterID; {
	case b.cluster == 0:
		b.cluster = id
	case b.cluster != id:
		b.cluster, b.restored = id, false
		b.history++
		close(b.replaced)
		b.replaced = make(chan struct{})
		b.wake()
		return store.ErrOtherCluster
	case to != 0 && to != id:
		return store.ErrOtherCluster
	}
	return nil
}

// check tells of a restore, once.
func (b *Backend) check(op Op) error {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	if !b.restored {
		return nil
	}
	b.restored = false
	b.history++
	return fmt.Errorf("%s: %w", op, store.ErrRestored)
}

// checked is an answer that carries a revision.
func checked[T any](b *Backend, op Op, answer T, err error) (T, error) {
	if err == nil {
		err = b.check(op)
	}
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// set changes what watches depend on and has them poll.
func (b *Backend) set(change func()) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	change()
	b.wake()
}

// Close ends the watches of this client and drops its requests that are still
// under way. It returns when all its goroutines have. Requests made later fail
// with [store.ErrUnavailable].
func (b *Backend) Close() {
	b.hub.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.done)
		b.hub.leave(b)
	}
	b.hub.mu.Unlock()
	b.wg.Wait()
}

// fault decides about one request.
func (b *Backend) fault(c Call) (Fault, error) {
	b.hub.mu.Lock()
	inject, off := b.inject, b.down || b.closed
	b.hub.mu.Unlock()
	if off {
		return Fault{}, down(c.Op)
	}
	if inject == nil {
		return Fault{}, nil
	}
	return inject(c), nil
}

// later carries a request out when its fault lets it, unless the client is
// closed before.
func (b *Backend) later(f Fault, do func(*Etcd)) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	if b.closed {
		return
	}
	b.wg.Go(func() {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.done:
			return
		}
		if f.Hold != nil {
			select {
			case <-f.Hold:
			case <-b.done:
				return
			}
		}
		b.hub.do(do)
	})
}

// Txn sends one transaction.
func (b *Backend) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := call(ctx, b, Call{Op: OpTxn, Txn: req}, func(e *Etcd, c Call) (*pb.TxnResponse, error) {
		return e.Txn(c.Txn)
	})
	return checked(b, OpTxn, resp, err)
}

// Range reads keys.
func (b *Backend) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, err := call(ctx, b, Call{Op: OpRange, Range: req}, func(e *Etcd, c Call) (*pb.RangeResponse, error) {
		return e.Range(c.Range)
	})
	return checked(b, OpRange, resp, err)
}

// Grant makes a lease.
func (b *Backend) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	type granted struct {
		id  store.LeaseID
		ttl time.Duration
	}
	g, err := call(ctx, b, Call{Op: OpGrant, TTL: ttl}, func(e *Etcd, c Call) (g granted, err error) {
		g.id, g.ttl, err = e.Grant(c.TTL)
		return g, err
	})
	return g.id, g.ttl, err
}

// Renew restarts a lease.
func (b *Backend) Renew(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	return call(ctx, b, Call{Op: OpRenew, Lease: id}, func(e *Etcd, c Call) (time.Duration, error) {
		return e.Renew(c.Lease)
	})
}

// Revoke ends a lease.
func (b *Backend) Revoke(ctx context.Context, id store.LeaseID) error {
	_, err := call(ctx, b, Call{Op: OpRevoke, Lease: id}, func(e *Etcd, c Call) (struct{}, error) {
		err := e.Revoke(c.Lease)
		if errors.Is(err, store.ErrLeaseNotFound) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}

// TimeToLive returns the remaining time of a lease.
func (b *Backend) TimeToLive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	return call(ctx, b, Call{Op: OpTimeToLive, Lease: id}, func(e *Etcd, c Call) (time.Duration, error) {
		return e.TimeToLive(c.Lease)
	})
}

// LeaseKeys returns the keys that are attached to a lease.
func (b *Backend) LeaseKeys(ctx context.Context, id store.LeaseID) ([]string, error) {
	return call(ctx, b, Call{Op: OpTimeToLive, Lease: id}, func(e *Etcd, c Call) ([]string, error) {
		return e.LeaseKeys(c.Lease)
	})
}
