package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/berthhq/berth/internal/store"
)

const (
	// bridgeMargin is how much longer a bridge lease lives than an admitted run may
	// wait for its executor, and bridgeFor for how long it takes more keys: so that
	// what is put on it lasts.
	bridgeMargin = 30 * time.Second
	bridgeFor    = 15 * time.Second
	// bridgeKeys bounds the keys on one lease: etcd pays for all of them with each.
	bridgeKeys = 300
	// bridgePause is the longest pause between tries to get one.
	bridgePause = 5 * time.Second
)

// bridgeLeases are what slots of admitted runs hang on until their executors come:
// leases that live for as long as a run may wait, and that nobody renews. If nobody
// comes, the slots are free again whatever becomes of the coordinator.
type bridgeLeases struct {
	backend store.Backend
	ttl     time.Duration
	wanted  chan struct{} // holds one when a lease is needed

	mu      sync.Mutex // guards what follows
	lease   store.LeaseID
	left    int       // keys that it has room for
	until   time.Time // when it takes no more
	trouble error
}

func newBridgeLeases(b store.Backend, startTimeout time.Duration) *bridgeLeases {
	return &bridgeLeases{backend: b, ttl: startTimeout + bridgeMargin, wanted: make(chan struct{}, 1)}
}

// Acquire takes room for some keys, on whatever duration a pool's leases have: the
// claim is not to outlive the wait for its executor.
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

// Release does nothing: room that was given back is not worth the lease's time.
func (l *bridgeLeases) Release(store.LeaseID, int) {}

// Keeps is false: nobody renews these leases, so that what they hold ends by itself.
func (l *bridgeLeases) Keeps(store.LeaseID) bool { return false }

// Suspect has the next claim take another lease.
func (l *bridgeLeases) Suspect(ids ...store.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if id == l.lease {
			l.left = 0
		}
	}
}

// Trouble is why there is no lease.
func (l *bridgeLeases) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// run makes leases when they are wanted, and tells by ready, until ctx ends.
func (l *bridgeLeases) run(ctx context.Context, ready func()) error {
	for {
		select {
		case <-l.wanted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause := backoff.NewExponentialBackOff()
		pause.InitialInterval, pause.MaxInterval = doorPause, bridgePause
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
		l.lease, l.left, l.until = id, bridgeKeys, begun.Add(bridgeFor)
	}
	return err
}
