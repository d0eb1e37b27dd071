package pool

import (
	"time"

	"github.com/berthhq/berth/internal/store"
)

// WaiterStatus is one claim that waits.
type WaiterStatus struct {
	Claim string
	Holder
	Slots    int // of the pool that was asked for
	Pools    map[string]int
	Priority int
	Position int
	Since    time.Time
	Reserve  bool
	Reason   string
	Lease    store.LeaseID // 0 while it is not in etcd
}
