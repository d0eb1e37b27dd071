package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// revokers is how many leases [Keeper.RevokeAll] ends at a time.
const revokers = 16

// giveBack ends a lease that has no keys of claims. If that fails the lease runs
// out; if it was kept from it by a stop, RevokeAll tries again.
func (k *Keeper) giveBack(ctx context.Context, id store.LeaseID) {
	limited, cancel := context.WithTimeout(ctx, maxTry)
	defer cancel()
	err := k.cfg.Backend.Revoke(limited, id)
	if err == nil {
		k.log.Debug("gave a lease back", "lease", name(id))
		return
	}
	k.log.Debug("a lease could not be given back and will run out", "lease", name(id), "error", err)
	if ctx.Err() != nil {
		k.mu.Lock()
		k.unfinished = append(k.unfinished, id)
		k.mu.Unlock()
	}
}

// forgetUnfinished forgets the leases that a stop kept from being given back. The lock is held.
func (k *Keeper) forgetUnfinished() { k.unfinished = nil }

// RevokeAll ends all leases, and with them every key on them: it is for a
// graceful stop, when the holders are gone. Until then keep Run running, so that
// the leases of those that take their time are renewed.
//
// From now on Acquire is refused, and no loss is reported. A lease that can't be
// revoked before ctx ends runs out by itself; the error names it. The leases to keep run out
// by themselves, too.
func (k *Keeper) RevokeAll(ctx context.Context, keep ...store.LeaseID) error {
	k.lock()
	k.closed = true
	ctx = store.WithCluster(ctx, k.book.cluster)
	ids := append(k.book.clear(), k.unfinished...)
	k.forgetUnfinished()
	k.mu.Unlock()
	ids = slices.DeleteFunc(ids, func(id store.LeaseID) bool { return slices.Contains(keep, id) })

	errs := make([]error, len(ids))
	places := make(chan struct{}, revokers)
	var tasks sync.WaitGroup
	for i, id := range ids {
		places <- struct{}{}
		tasks.Go(func() {
			defer func() { <-places }()
			if err := revoke(ctx, k.cfg.Backend, id); err != nil {
				errs[i] = fmt.Errorf("lease %s: %w", name(id), err)
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// End ends a lease, and with it all keys on it. A lease that has ended is no error.
func End(ctx context.Context, b store.Backend, id store.LeaseID) error {
	if err := revoke(ctx, b, id); err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
		return fmt.Errorf("lease %s: %w", name(id), err)
	}
	return nil
}

// revoke ends a lease however many tries that takes, each of which may go through
// another endpoint, until ctx ends. Its error is that of the last try.
func revoke(ctx context.Context, b store.Backend, id store.LeaseID) (err error) {
	between := pauses()
	for {
		try, cancel := context.WithTimeout(ctx, maxTry)
		err = b.Revoke(try, id)
		cancel()
		if !store.OutcomeUnknown(err) {
			return err
		}
		select {
		case <-time.After(between.NextBackOff()):
		case <-ctx.Done():
			return err
		}
	}
}
