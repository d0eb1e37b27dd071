package pool

import (
	"sync"
	"time"
)

// urgent is what must not wait behind claims and reads: tidings of leases. To
// add never blocks, so the keeper of the leases can go on renewing.
type urgent struct {
	wake chan struct{} // coalesces

	mu  sync.Mutex
	ops []func(*core, time.Time)
}

func (u *urgent) add(op func(*core, time.Time)) {
	u.mu.Lock()
	u.ops = append(u.ops, op)
	u.mu.Unlock()
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run does all that was added, in order.
func (u *urgent) run(c *core) {
	u.mu.Lock()
	ops := u.ops
	u.ops = nil
	u.mu.Unlock()
	for _, op := range ops {
		op(c, time.Now())
	}
}
