package lease

import (
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// renew tries once to renew a lease, and notes what came of it.
func (k *Keeper) renew(ctx context.Context, try renewal) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(try.ttl))
	defer cancel()
	ttl, err := k.cfg.Backend.Renew(limited, try.id)
	switch {
	case err == nil:
		k.metrics.renewals.WithLabelValues(outcomeOK).Inc()
		k.noteSuccess(try, ttl)
	case errors.Is(err, store.ErrLeaseNotFound):
		k.metrics.renewals.WithLabelValues(outcomeGone).Inc()
		k.lock()
		k.book.gone(try.id, err)
		k.mu.Unlock()
		k.poke()
	case ctx.Err() != nil:
		// Stopping; the try says nothing about etcd.
	default:
		k.metrics.renewals.WithLabelValues(outcomeFailed).Inc()
		k.noteFailure(try, err)
	}
}

// noteSuccess makes Run act at once on a success: a set may have been refused for want
// of this lease.
func (k *Keeper) noteSuccess(try renewal, ttl time.Duration) {
	k.lock()
	recovered := k.book.renewed(k.clock.Now(), try, ttl)
	k.mu.Unlock()
	if recovered {
		k.log.Info("a lease could be renewed again", "lease", name(try.id))
	}
	k.poke()
}

// noteFailure leaves the next try to a tick.
func (k *Keeper) noteFailure(try renewal, err error) {
	k.lock()
	first := k.book.unrenewed(k.clock.Now(), try, err)
	k.mu.Unlock()
	if first {
		k.log.Warn("a lease could not be renewed, trying again", "lease", name(try.id), "error", err)
		return
	}
	k.log.Debug("a lease could still not be renewed", "lease", name(try.id), "error", err)
}
