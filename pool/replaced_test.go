package pool_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// replacing has something happen before a transaction is sent, once.
type replacing struct {
	store.Backend
	before func()
	err    error // of that transaction
}

func (r *replacing) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	before := r.before
	if r.before = nil; before == nil {
		return r.Backend.Txn(ctx, req)
	}
	before()
	resp, err := r.Backend.Txn(ctx, req)
	r.err = err
	return resp, err
}

// loseAll forgets all leases, and returns them.
func (l *plainLeases) loseAll() []store.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Collect(maps.Values(l.by))
	clear(l.by)
	return ids
}

// A write that was made of what is known of one cluster is not sent to the one that replaces it, which
// has the same guard, the same leases and the same slots.
func TestAWriteForAClusterIsNotSentToTheOneThatReplacesIt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(2)
		var sends *replacing
		b.wrap = func(by store.Backend) store.Backend { sends = &replacing{Backend: by}; return sends }
		one := b.engine("one")
		first := b.got(<-one.ask("first", 1, 0))
		sends.before = func() {
			b.root.Do(func(e *storetest.Etcd) {
				e.Restore(e.Save(), 0)
				e.SetCluster(2)
			})
			for _, by := range []*storetest.Backend{b.root, one.by} {
				if _, err := by.TimeToLive(t.Context(), 1); !errors.Is(err, store.ErrOtherCluster) {
					t.Errorf("the other cluster answers: %v", err)
				}
			}
			for _, id := range one.leases.loseAll() {
				one.LeaseLost(id, store.ErrOtherCluster)
			}
		}
		second := one.ask("second", 1, time.Minute)
		if !errors.Is(sends.err, store.ErrOtherCluster) {
			t.Errorf("the write for the cluster before: %v", sends.err)
		}
		if err := first.Err(); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("the claim of the cluster before has ended with %v", err)
		}
		claim := b.got(<-second)
		if claim.Lease == first.Lease {
			t.Error("it is on a lease of the cluster before")
		}
		time.Sleep(5 * time.Second)
		if busy, err := one.Restoring(t.Context()); err != nil || busy {
			t.Errorf("it still reads everything: %t, %v", busy, err)
		}
		b.release(one, first) // its holder has stopped
		b.sound(1)
		b.release(one, claim)
		b.sound(0)
	})
}

// silent carries out a transaction, and answers none from then on until it is back.
type silent struct {
	store.Backend

	mu   sync.Mutex // guards what follows
	from func()     // called after the transaction; nil: it answers
	away bool
}

func (s *silent) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return nil, store.ErrUnavailable
	}
	resp, err := s.Backend.Txn(ctx, req)
	s.mu.Lock()
	from := s.from
	s.from, s.away = nil, s.away || from != nil
	s.mu.Unlock()
	if from != nil {
		from()
		return nil, store.ErrUnavailable
	}
	return resp, err
}

// leave has it not answer the next transaction, nor any after that, and call a function then.
func (s *silent) leave(from func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = from
}

// back has it answer again.
func (s *silent) back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

// A write had no answer, and its lease was lost. Etcd is back later, restored with that lease.
func TestAGrantIsNotFoundOnALeaseThatWasLostLongBefore(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		var etcd *silent
		b.wrap = func(by store.Backend) store.Backend { etcd = &silent{Backend: by}; return etcd }
		one := b.engine("one")
		var lost []store.LeaseID
		var saved *storetest.Saved
		etcd.leave(func() {
			b.root.Do(func(e *storetest.Etcd) { saved = e.Save() })
			lost = one.leases.loseAll()
		})
		asked := one.ask("claim", 1, 24*time.Hour)
		for _, id := range lost {
			one.LeaseLost(id, store.ErrOtherCluster)
		}
		time.Sleep(30 * time.Minute)
		b.root.Do(func(e *storetest.Etcd) {
			e.Restore(saved, 1000)
			e.SetCluster(2)
		})
		etcd.back()
		claim := b.got(<-asked)
		if slices.Contains(lost, claim.Lease) && claim.Err() == nil {
			t.Errorf("it is held on lease %d, which was lost", claim.Lease)
		}
	})
}
