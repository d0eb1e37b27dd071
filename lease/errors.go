package lease

import (
	"errors"
	"fmt"

	"github.com/berthhq/berth/internal/store"
)

var (
	// ErrValidityEnded is the cause of a loss: no renewal succeeded in time. The
	// lease may still live in etcd, for a while. The other cause of a loss is
	// [store.ErrLeaseNotFound].
	ErrValidityEnded = errors.New("the validity of the lease has ended")
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
