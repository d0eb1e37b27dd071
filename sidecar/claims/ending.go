package claims

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/pool"
)

// claimEnded takes that a claim has ended by itself.
func (hs *Holders) claimEnded(h *Holder) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.gone {
		return
	}
	if err := h.claim.Err(); err != nil {
		hs.distrust(h, problem.Of(err))
	} else if !h.releasing {
		hs.drop(h)
	}
}

// distrust ends trust in a claim: its holder is told to stop. Its slots stay
// taken until it has.
func (hs *Holders) distrust(h *Holder, why *problem.Error) {
	if h.gone || h.releasing || h.why != nil {
		return
	}
	h.why = why
	hs.publish(Ended, h)
	switch {
	case h.proc != nil:
		hs.tellToStop(h)
	case h.expires == 0:
		// Nobody will say when this one has stopped. Its slots go with the lease;
		// with it goes what is remembered of it.
		h.expires = hs.clock.Now() + max(h.lease, pool.MinLeaseDuration)
	}
}

// keepUnheard is how long a claim is kept of which nobody may know, for who asks again:
// as long as a waiter's place is.
const keepUnheard = 10 * time.Second

// Reported counts an answer that says that a claim is held.
func (hs *Holders) Reported(h *Holder) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.reports++
	h.unheardAt = 0
}

// Unread takes that such an answer did not come to its client. If no other did, the
// claim is given back: at once, or if nobody asks again for a claim that has a name.
func (hs *Holders) Unread(h *Holder, named bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.reports--; h.reports > 0 || h.heard || h.gone || h.releasing {
		return
	}
	if named {
		h.unheardAt = hs.clock.Now() + keepUnheard
		return
	}
	hs.giveBackUnheard(h)
}

func (hs *Holders) giveBackUnheard(h *Holder) {
	hs.log.Info("a claim is given back, since its client was gone before it was answered", keyClaim, h.claim.ID)
	hs.giveBack(h)
}

// processEnded takes that the process has ended that a claim was bound to.
func (hs *Holders) processEnded(h *Holder, process *proc.Process) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.proc != process || h.gone {
		return
	}
	hs.log.Debug("the process of a claim has ended", keyClaim, h.claim.ID, keyPID, process.ID().PID)
	if !h.releasing {
		hs.giveBack(h)
	}
}

// giveBack releases a claim that nobody asks to be released, or goes on with a
// release whose asker has gone away.
func (hs *Holders) giveBack(h *Holder) {
	if h.gone || hs.closed {
		return
	}
	hs.beginRelease(h)
	hs.tasks.Go(func() { _ = hs.finish(hs.quit, h) }) // an error is the end of the server
}

// beginRelease begins to give a claim back. Its binding is forgotten first: the next server
// would take a claim that was released for one that was lost.
func (hs *Holders) beginRelease(h *Holder) {
	h.releasing = true
	h.unhook()
	hs.forget(h)
}

// forget removes the file of a holder.
func (hs *Holders) forget(h *Holder) {
	if h.saved {
		h.saved = false
		hs.files.Remove(h.claim.ID)
	}
}

// finish releases a claim, and forgets it if that came to an end.
func (hs *Holders) finish(ctx context.Context, h *Holder) error {
	err := h.claim.Release(ctx)
	if err == nil {
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.drop(h)
	}
	return err
}

// Release gives a claim back as its holder asks, and returns when its slots are
// free. It is false if there is no such claim here: none with that fence, unless
// it is 0.
func (hs *Holders) Release(ctx context.Context, id string, fence int64) (bool, error) {
	hs.mu.Lock()
	h := hs.byID[id]
	if h == nil || !h.Is(fence) {
		hs.mu.Unlock()
		return false, nil
	}
	first := !h.releasing
	hs.beginRelease(h)
	hs.mu.Unlock()
	err := hs.finish(ctx, h)
	if err != nil && first {
		// Its asker has gone away, or the server stops. It is released all the same.
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.giveBack(h)
	}
	return true, err
}
