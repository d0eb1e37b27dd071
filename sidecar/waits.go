package sidecar

import (
	"context"
	"slices"
	"sync"
)

// waits are the requests for claims that are not answered yet. They can be ended
// by the claim's id, or all at once.
type waits struct {
	// mu guards what follows.
	mu      sync.Mutex
	byID    map[string][]*wait
	stopped error // why no more may wait; nil while they may
}

// wait is one such request.
type wait struct {
	id     string
	cancel context.CancelCauseFunc
	cause  error // why it was ended from here; guarded by mu of waits
}

func newWaits() *waits { return &waits{byID: map[string][]*wait{}} }

// enter begins a wait under a context that it may end, until leave.
func (w *waits) enter(ctx context.Context, id string) (context.Context, *wait, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped != nil {
		return nil, nil, w.stopped
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &wait{id: id, cancel: cancel}
	w.byID[id] = append(w.byID[id], one)
	return ctx, one, nil
}

// leave ends a wait, and returns why if it was ended before.
func (w *waits) leave(one *wait) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.byID[one.id], func(x *wait) bool { return x == one })
	if w.byID[one.id] = all; len(all) == 0 {
		delete(w.byID, one.id)
	}
	one.cancel(context.Canceled)
	return one.cause
}

// end ends one wait.
func (w *waits) end(one *wait, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.end(cause)
}

func (one *wait) end(cause error) {
	if one.cause == nil {
		one.cause = cause
		one.cancel(cause)
	}
}

// endID ends those for one claim, and tells whether there were any.
func (w *waits) endID(id string, cause error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byID[id] {
		one.end(cause)
	}
	return len(w.byID[id]) > 0
}

// stop ends all, and lets no more in.
func (w *waits) stop(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = cause
	for _, all := range w.byID {
		for _, one := range all {
			one.end(cause)
		}
	}
}
