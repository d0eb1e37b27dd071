package sidecar

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// waits are the requests for claims that have neither been refused nor got a
// holder. They can be ended by the claim's id, or all at once.
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
	over   chan struct{} // closed when it has left
	cause  error         // why it was ended from here; guarded by mu of waits
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
	one := &wait{id: id, cancel: cancel, over: make(chan struct{})}
	w.byID[id] = append(w.byID[id], one)
	return ctx, one, nil
}

// ended returns why a wait was ended from here; nil if it was not.
func (w *waits) ended(one *wait) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return one.cause
}

// leave ends a wait of which all is done.
func (w *waits) leave(one *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.byID[one.id], func(x *wait) bool { return x == one })
	if w.byID[one.id] = all; len(all) == 0 {
		delete(w.byID, one.id)
	}
	one.cancel(context.Canceled)
	close(one.over)
}

// of returns the waits for one claim.
func (w *waits) of(id string) []*wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.byID[id])
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

// endID ends those for one claim, and returns when they have left, or ctx has
// ended. It reports whether there were any. What was granted meanwhile is released,
// or has a holder.
func (w *waits) endID(ctx context.Context, id string, cause error) (bool, error) {
	all := w.of(id)
	for _, one := range all {
		w.end(one, cause)
	}
	for _, one := range all {
		select {
		case <-one.over:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
	return len(all) > 0, nil
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

// parseWait reads how long a request waits: usual if the parameter was left out, and at most
// so long.
func parseWait(text string, usual, most time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 || wait > most {
		return 0, problem.Field("wait", "%s is no time to wait: allowed are 0s to %s, as in 2s", problem.Quote(text), api.Duration(most))
	}
	return wait, nil
}
