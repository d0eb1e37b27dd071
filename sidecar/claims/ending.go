package claims

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// claimEnded records that a claim has ended without a release.
func (hs *Holders) claimEnded(h *Holder) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.gone {
		return
	}
	if err := h.claim.Err(); err != nil {
		hs.invalidate(h, problem.Of(err))
	} else if !h.releasing {
		hs.drop(h)
	}
}

// Expect removes the record of why an earlier claim with an id ended, since another claim of its
// owner with that id waits.
func (hs *Holders) Expect(id string, of pool.Holder) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.ended.forget(id, of)
}

// Refused records why a claim without a waiting client was not granted, so that its client can read
// the reason later. It does not record claims that were withdrawn. Alone means that no other request
// waits for the id: if one does, a claim that was refused since its id is in use was none of its own.
func (hs *Holders) Refused(id string, of pool.Holder, slots map[string]int, why *problem.Error, alone bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byID[id]
	if h != nil && SameOwner(h.claim.Holder, of) {
		return // its client reads of that claim
	}
	if why.Code == problem.IDInUse && (h != nil || !alone) {
		return // it was never a claim of its own
	}
	c := Change{Kind: Released, Claim: id, Owner: OwnerOf(of), Pools: slices.Sorted(maps.Keys(slots))}
	if why.Code != problem.ClaimCanceled {
		hs.ended.add(&endedClaim{id: id, why: why, holder: of, slots: slots}, hs.clock.Now())
		c.Kind, c.Why = Ended, why
	}
	hs.notify(c)
}

// invalidate ends the validity of a claim: its holder has to stop. The slots stay claimed until it
// has stopped.
func (hs *Holders) invalidate(h *Holder, why *problem.Error) {
	if h.gone || h.releasing || h.why != nil {
		return
	}
	h.why = why
	hs.publish(Ended, h)
	switch {
	case h.proc != nil:
		hs.stop(h)
	case h.unseen != nil:
		hs.log.Error("a claim has ended whose process may still run and can't be stopped; its slots stay claimed until it is released, or revoked by force",
			keyClaim, h.claim.ID, keyReason, why, keyError, h.unseen)
	case h.expires == 0:
		// No event reports when this holder has stopped. Its slots are freed with the lease, and it
		// is removed then.
		h.expires = hs.clock.Now() + max(h.lease, pool.MinLeaseDuration)
	}
}

// keepUnread is how long a claim whose grant was not read is kept for a repeated request: as long
// as the place of a waiter.
const keepUnread = 10 * time.Second

// Reported counts an answer with the grant of a claim.
func (hs *Holders) Reported(h *Holder) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.reports++
	h.unreadAt = 0
}

// Unread records that such an answer did not reach its client. If no other answer did, the claim is
// released: at once or, if the request had an id, unless it is requested again within 10 s.
func (hs *Holders) Unread(h *Holder, named bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.reports--; h.reports > 0 || h.known || h.gone || h.releasing {
		return
	}
	if named {
		h.unreadAt = hs.clock.Now() + keepUnread
		return
	}
	hs.releaseUnread(h)
}

func (hs *Holders) releaseUnread(h *Holder) {
	hs.gone.Log(hs.log, hclog.Info, "unread", "a claim is released, since its client was gone before it was answered", keyClaim, h.claim.ID)
	hs.releaseAsync(h)
}

// processEnded records that the process to which a claim was bound has ended.
func (hs *Holders) processEnded(h *Holder, process *proc.Process) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.proc != process || h.gone {
		return
	}
	hs.log.Debug("the process of a claim has ended", keyClaim, h.claim.ID, keyPID, process.ID().PID)
	if !h.releasing {
		hs.releaseAsync(h)
	}
}

// releaseAsync releases a claim without a request, or continues a release whose client has
// disconnected.
func (hs *Holders) releaseAsync(h *Holder) {
	if h.gone || hs.closed {
		return
	}
	hs.beginRelease(h)
	hs.tasks.Go(func() { _ = hs.finish(hs.quit, h) }) // an error is the end of the server
}

// beginRelease begins to release a claim. It removes the binding first: otherwise the next server
// would mistake a released claim for a lost one.
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

// finish releases a claim, and then removes its holder.
func (hs *Holders) finish(ctx context.Context, h *Holder) error {
	err := h.claim.Release(ctx)
	if err == nil {
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.drop(h)
	}
	return err
}

// Release releases a claim, and returns when its slots are free. For the owner, it releases at once
// and does not stop the process. For another caller, it first stops the process as after a
// revocation, and waits until the process has ended, for at most [pool.RevokeGrace]. It returns
// false if this server has no claim with the id and the fence that the caller may release; a fence
// of 0 matches any. The error is then why it may not release the one of another caller, if there is
// one.
func (hs *Holders) Release(ctx context.Context, c Caller, id string, fence store.Fence) (bool, error) {
	hs.mu.Lock()
	r, err := hs.recordOf(c, id)
	h := r.held
	if fence != 0 {
		if h = hs.byID[id]; h != nil && h.Is(fence) {
			err = c.Check(h.claim.Holder, h.claim.Slots)
		} else {
			h, err = nil, nil
		}
	}
	if h == nil || err != nil {
		hs.mu.Unlock()
		return false, err
	}
	if !c.Owns(h.claim.Holder) && !h.releasing && (h.proc != nil || h.unseen != nil) {
		hs.invalidate(h, problem.New(problem.ClaimRevoked, "claim %q was released by %s, who is not its owner", id, c.Name))
		hs.mu.Unlock()
		return true, h.untilOver(ctx)
	}
	first := !h.releasing
	hs.beginRelease(h)
	hs.mu.Unlock()
	err = hs.finish(ctx, h)
	if err != nil && first {
		// The client has hung up, or the server is stopping. The claim is released in any case.
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.releaseAsync(h)
	}
	return true, err
}

// untilOver waits until the process of a holder has ended and its slots are free.
func (h *Holder) untilOver(ctx context.Context) error {
	late := time.NewTimer(pool.RevokeGrace)
	defer late.Stop()
	select {
	case <-h.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return problem.New(problem.Unavailable, "the process of claim %q was to stop and has not ended within %s: its slots are free when it has, or if the claim is revoked by force", h.claim.ID, pool.RevokeGrace)
	}
}
