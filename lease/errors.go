package lease

import (
	"errors"
	"fmt"

	"github.com/berthhq/berth/internal/store"
)

var (
	// ErrValidityEnded is the cause of a loss: no renewal succeeded in time. The
	// lease may still live in etcd, for a while. The other causes of a loss are
	// [store.ErrLeaseNotFound] and [store.ErrOtherCluster].
	ErrValidityEnded = errors.New("the validity of the lease has ended")
	// errReplaced is the cause of a loss: another etcd cluster has replaced that of the lease. A
	// lease there with the same id is not this one. It is a [store.ErrOtherCluster].
	errReplaced = fmt.Errorf("%w: the lease is of the cluster that it has replaced", store.ErrOtherCluster)
	// ErrRan: Run was called a second time.
	ErrRan = errors.New("lease: Run was called before")
)

// validityEnded is the cause of a loss, with what the last try to renew said.
func validityEnded(failure error) error {
	if failure == nil {
		return fmt.Errorf("%w: no renewal was answered in time", ErrValidityEnded)
	}
	return fmt.Errorf("%w: no renewal succeeded in time, the last said: %w", ErrValidityEnded, failure)
}

// name spells a lease for logs and messages as its key does.
func name(id store.LeaseID) string { return fmt.Sprintf("%x", uint64(id)) }
