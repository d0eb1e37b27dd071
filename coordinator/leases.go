package coordinator

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/berthhq/berth/internal/store"
)

const (
	// bridgeMargin is how much longer a bridge lease lives than an admitted run may wait
	// for its executor. For bridgeFor it takes more keys, which then live long enough.
	bridgeMargin = 30 * time.Second
	bridgeFor    = 15 * time.Second
	// bridgeKeys bounds the keys on one lease: with RBAC, a put costs time in proportion.
	bridgeKeys = 300
	// bridgePause is the longest pause between attempts to get one.
	bridgePause = 5 * time.Second
)

// bridgeLeases provides the leases of the slots of admitted runs until they are started:
// leases that live as long as a run may wait, and are never renewed. If the run is not
// started, they expire, even without a coordinator.
type bridgeLeases struct {
	backend store.Backend
	ttl     time.Duration
	wanted  chan struct{} // signals that a lease is needed

	mu      sync.Mutex // guards what follows
	lease   store.LeaseID
	left    int                         // keys that can still be attached
	until   time.Time                   // when it takes no more
	valid   map[store.LeaseID]time.Time // until when leases take what was reserved
	trouble error
}

func newBridgeLeases(b store.Backend, startTimeout time.Duration) *bridgeLeases {
	return &bridgeLeases{backend: b, ttl: startTimeout + bridgeMargin, wanted: make(chan struct{}, 1), valid: map[store.LeaseID]time.Time{}}
}

// Acquire reserves keys. The lease duration of the pools does not matter: the claim must
// not outlive the wait for its executor.
func (l *bridgeLeases) Acquire(_ time.Duration, keys int) (store.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 || l.left < keys && l.left < bridgeKeys || time.Now().After(l.until) {
		select {
		case l.wanted <- struct{}{}:
		default:
		}
		return 0, false
	}
	l.left = max(0, l.left-keys)
	return l.lease, true
}

// Release does nothing: the lease takes new keys only for a short time.
func (l *bridgeLeases) Release(store.LeaseID, int) {}

// Valid reports whether a lease lives for long enough.
func (l *bridgeLeases) Valid(id store.LeaseID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.valid[id])
}

// Suspect makes the next claim use another lease.
func (l *bridgeLeases) Suspect(ids ...store.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if delete(l.valid, id); id == l.lease {
			l.left = 0
		}
	}
}

// Trouble returns why there is no lease.
func (l *bridgeLeases) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// run grants leases when they are needed, and calls ready, until ctx ends.
func (l *bridgeLeases) run(ctx context.Context, ready func()) error {
	for {
		select {
		case <-l.wanted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause := backoff.NewExponentialBackOff()
		pause.InitialInterval, pause.MaxInterval = fencePause, bridgePause
		_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, l.grant(ctx) },
			backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
		if err != nil {
			return context.Cause(ctx)
		}
		ready()
	}
}

func (l *bridgeLeases) grant(ctx context.Context) error {
	begun := time.Now()
	try, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	id, _, err := l.backend.Grant(try, l.ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = err
	if err == nil {
		maps.DeleteFunc(l.valid, func(_ store.LeaseID, until time.Time) bool { return begun.After(until) })
		l.lease, l.left, l.until = id, bridgeKeys, begun.Add(bridgeFor)
		l.valid[id] = begun.Add(bridgeMargin)
	}
	return err
}
