package wire

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Waiting is the fencing token in the revocation of a claim that waits.
const Waiting store.Fence = -1

// RevocationTTL is how long a revocation stays if its host does not act on it: the host is dead then, and the claim ends
// with its lease.
const RevocationTTL = 10 * time.Minute

// Revocation asks a host to end a claim. It names the grant of the claim, so that it ends no later claim of the same id.
type Revocation struct {
	// Fence is the fencing token of the claim, or [Waiting].
	Fence store.Fence `json:"fence"`
	// Forced is set if the slots were freed together with the put of the revocation.
	Forced bool `json:"forced,omitempty"`
}

type revocationValue struct {
	store.V
	Revocation
}

// EncodeRevocation returns the value of the key of a revocation. Its version is 1: it is not below pools/.
func EncodeRevocation(r Revocation) []byte { return store.Encode(revocationValue{store.Now, r}) }

// DecodeRevocation reads the value of the key of a revocation.
func DecodeRevocation(key string, data []byte) (Revocation, error) {
	var v revocationValue
	if err := store.Decode(key, data, &v); err != nil {
		return Revocation{}, err
	}
	if v.Fence < Waiting || v.Fence == 0 {
		return Revocation{}, &store.CorruptError{Key: key, Reason: fmt.Errorf("fence must be %d, or above 0", Waiting)}
	}
	return v.Revocation, nil
}
