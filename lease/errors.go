package lease

import (
	"errors"
	"fmt"

	"github.com/berthhq/berth/internal/store"
)

var (
	// ErrTrustEnded is the cause of a loss: no renewal succeeded in time. The
	// lease may still live in etcd, for a while. The other cause of a loss is
	// [store.ErrLeaseNotFound].
	ErrTrustEnded = errors.New("trust in the lease has ended")
	// ErrRan tells that Run was called a second time.
	ErrRan = errors.New("lease: Run was called before")
)

// trustEnded is the cause of a loss, with what the last try to renew said.
func trustEnded(failure error) error {
	if failure == nil {
		return fmt.Errorf("%w: no renewal was answered in time", ErrTrustEnded)
	}
	return fmt.Errorf("%w: no renewal succeeded in time, the last said: %w", ErrTrustEnded, failure)
}

// name spells a lease for logs and messages as its key does.
func name(id store.LeaseID) string { return fmt.Sprintf("%x", uint64(id)) }
