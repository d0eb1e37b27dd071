package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/server"
)

// holders are the claims that were made through a server, each with its binding,
// from the grant until its slots are given back.
type holders struct {
	clock   lease.Clock
	log     hclog.Logger
	hub     *server.Hub
	files   bindFiles
	procs   *watcher
	metrics *metrics

	quit    context.Context // ends with leave
	abandon context.CancelFunc
	tasks   sync.WaitGroup // releases that nobody waits for

	// mu guards what follows, and the holders. It is taken before any lock but
	// those of claims.
	mu     sync.Mutex
	byID   map[string]*holder
	ended  endedLog
	closed bool
}

func newHolders(cfg *Config, hub *server.Hub, procs *watcher, m *metrics) *holders {
	hs := &holders{
		clock: lease.BootClock(), log: cfg.Logger, hub: hub, procs: procs, metrics: m,
		files: newBindFiles(cfg.Options.StateDir, cfg.Options.Instance, cfg.Logger),
		byID:  map[string]*holder{}, ended: newEndedLog(),
	}
	m.stateWritable(func() bool { return hs.files.writable() == nil })
	hs.quit, hs.abandon = context.WithCancel(context.Background())
	return hs
}

// holder is one claim with its binding.
type holder struct {
	claim *berth.Claim
	// unhook keeps the end of the claim from being told; true if it was not yet.
	unhook func() bool

	// What follows is guarded by mu of holders.

	bind  binding
	saved bool          // bind stands in a file
	lease time.Duration // duration of the claim's lease; 0 if not known yet
	proc  *process      // nil unless bound to one
	// expires is when the ttl has passed; 0 without one.
	expires time.Duration
	// why trust has ended; nil while the claim is held.
	why *problem.Error
	// releasing: its slots are being given back.
	releasing bool
	// killAt is when its process is killed, once it was told to stop.
	killAt time.Duration
	gone   bool // no longer among the holders

	// reports are the answers that say that it holds, less those that are known not to
	// have come to their clients; heard tells that its holder was heard of since.
	reports int
	heard   bool
	// unheardAt is when it is given back, since nobody may know of it; 0 if somebody does.
	unheardAt time.Duration
}

// is tells whether a holder's claim is the one with a fence. 0 is any.
func (h *holder) is(fence int64) bool { return fence == 0 || h.claim.Fence() == fence }

// add takes a claim that was granted, or that an earlier process left. If it is
// there already, its ttl begins anew, and the process is closed.
func (hs *holders) add(claim *berth.Claim, bind binding, proc *process) *holder {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.byID[claim.ID]; h != nil {
		if h.claim.Fence() == claim.Fence() {
			proc.close()
			hs.extend(h)
			return h
		}
		hs.drop(h)
	}
	hs.ended.forget(claim.ID)
	h := &holder{claim: claim, bind: bind, proc: proc}
	hs.byID[claim.ID] = h
	hs.extend(h)
	hs.publish(EventClaimGranted, h)
	h.unhook = context.AfterFunc(claim.Context(), func() { hs.claimEnded(h) })
	if proc != nil {
		proc.notify(func() { hs.processEnded(h, proc) })
	}
	return h
}

// extend begins the ttl anew.
func (hs *holders) extend(h *holder) {
	if h.lease == 0 {
		h.lease = h.claim.LeaseDuration()
	}
	h.expires = 0
	if ttl := h.bind.ttlOf(h.lease); ttl > 0 {
		h.expires = hs.clock.Now() + ttl
	}
}

// drop forgets a holder whose slots are given back.
func (hs *holders) drop(h *holder) {
	if h.gone {
		return
	}
	h.gone = true
	h.unhook()
	h.proc.close()
	if hs.byID[h.claim.ID] == h {
		delete(hs.byID, h.claim.ID)
	}
	hs.forget(h)
	if h.why != nil {
		hs.ended.add(h.claim.ID, h.claim.Fence(), h.why, hs.clock.Now())
	}
	hs.publish(EventClaimReleased, h)
}

// publish tells the streams of a holder.
func (hs *holders) publish(event string, h *holder) {
	ev := Event{Type: event, Claim: h.claim.ID, Pools: poolsOf(h.claim.Slots)}
	if event == EventClaimEnded {
		ev.Code, ev.Reason = string(h.why.Code), h.why.Error()
	}
	hs.hub.Publish(noticeOf(ev))
}

// held returns a holder whose claim is held. An error says why it is not;
// neither is there for an unknown one.
func (hs *holders) held(id string) (*holder, error) {
	h := hs.byID[id]
	if h == nil {
		if why := hs.ended.why(id, hs.clock.Now()); why != nil {
			return nil, why
		}
		return nil, problem.New(problem.ClaimNotFound, "no claim %s is held here", quote(id))
	}
	if h.why != nil {
		return nil, h.why
	}
	// The claim may have ended a moment ago.
	if err := h.claim.Err(); err != nil {
		return nil, problemError(err)
	}
	if h.releasing {
		return nil, problem.New(problem.ClaimNotFound, "claim %s is being released", quote(id))
	}
	return h, nil
}

// hasEnded reports whether the claim with a fence was held here and was lost, or revoked.
func (hs *holders) hasEnded(id string, fence int64) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.ended.has(id, fence, hs.clock.Now())
}

// problemError returns the problem in an error.
func problemError(err error) *problem.Error {
	if e, ok := err.(*problem.Error); ok {
		return e
	}
	return problem.New(problem.CodeOf(err), "%w", err)
}
