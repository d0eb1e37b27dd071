package list

import (
	"context"
	"errors"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Stuck returns the keys on some leases that nothing would ever delete, because etcd does not have the lease.
func Stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]pool.Violation, error) {
	// The leases are read before the keys: the keys of a lease that has ended are deleted.
	gone := map[store.LeaseID]bool{}
	for _, id := range ids {
		_, err := b.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return nil, store.Problem("the leases could not be read", err)
		}
		if err != nil {
			gone[id] = true
		}
	}
	if len(gone) == 0 {
		return nil, nil
	}
	s, err := Read(ctx, b, keys)
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	return s.OnLeases(gone), nil
}
