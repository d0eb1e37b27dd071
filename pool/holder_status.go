package pool

import (
	"time"

	"github.com/berthhq/berth/internal/store"
)

// HolderStatus is one claim that holds slots of a pool, or of several.
type HolderStatus struct {
	Claim string
	Holder
	// Slots of the pool that was asked for; Pools has all.
	Slots    int
	Pools    map[string]int
	Priority int
	Since    time.Time
	Fence    store.Fence
	// Granted is the revision of the grant, or one a moment before.
	Granted int64
	Lease   store.LeaseID
}
