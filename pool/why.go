package pool

import "github.com/berthhq/berth/internal/store"

// Why explains one claim, of any host: what it holds, or why it waits.
type Why struct {
	Claim string
	Held  *HolderStatus
	// All has every claim of that id that is held, Held included, the oldest first.
	// More than one instance holds one only if they were granted it at the same
	// moment. Held is then that of the instance that was asked, or else the oldest.
	All    []HolderStatus
	Waiter *WaiterStatus
	Reason Reason // of a waiter
}

// Each calls f with all claims that have the id, until it returns an error.
func (w Why) Each(f May) error {
	for _, h := range w.All {
		if err := f(h.Holder, h.Pools); err != nil {
			return err
		}
	}
	if w.Waiter != nil {
		return f(w.Waiter.Holder, w.Waiter.Pools)
	}
	return nil
}

// Fenced returns the claim that is held with a fence, nil if there is none.
func (w Why) Fenced(fence store.Fence) *HolderStatus {
	for i := range w.All {
		if w.All[i].Fence == fence {
			return &w.All[i]
		}
	}
	return nil
}
