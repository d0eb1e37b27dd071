package claims

import (
	"context"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Config configures [Holders].
type Config struct {
	// StateDir is the folder in which each instance has a folder for its bindings. If it is empty,
	// bindings are not stored.
	StateDir, Instance string
	Log                hclog.Logger
	Procs              *proc.Watcher
	Metrics            *Metrics
	// Notify is called with each change of a claim, in order. It must not call methods of the
	// holders.
	Notify func(Change)
}

func (c *Config) files() Files { return NewFiles(c.StateDir, c.Instance, bindFolder, c.Log) }

// Kind is a kind of [Change].
type Kind int

// Kinds of changes.
const (
	Granted  Kind = iota
	Ended         // it is no longer valid, and its holder has to stop
	Released      // its slots are released, or freed with its lease
)

// Change is a change of a claim's state.
type Change struct {
	Kind  Kind
	Claim string
	Owner Owner
	Pools []string
	Why   *problem.Error // of one that has ended
}

// Holders holds the claims that were made through a server, each with its binding, from the grant
// until its slots are free.
type Holders struct {
	clock   lease.Clock
	log     hclog.Logger
	gone    lograte.Limit // of the log of claims that their clients have left
	notify  func(Change)
	files   Files
	procs   *proc.Watcher
	metrics *Metrics

	quit    context.Context // ends with leave
	abandon context.CancelFunc
	tasks   sync.WaitGroup // releases that no request waits for

	// mu guards the fields below, and the holders. It must be locked before all other locks except
	// those of claims.
	mu     sync.Mutex
	byID   map[string]*Holder
	ended  EndedLog
	closed bool
}

// New returns holders without claims.
func New(cfg Config) *Holders {
	hs := &Holders{
		clock: lease.BootClock(), log: cfg.Log, notify: cfg.Notify, procs: cfg.Procs, metrics: cfg.Metrics,
		files: cfg.files(), byID: map[string]*Holder{}, ended: NewEndedLog(),
	}
	hs.metrics.stateWritable(func() bool { return hs.Writable() == nil })
	hs.quit, hs.abandon = context.WithCancel(context.Background())
	return hs
}

// Holder is one claim with its binding.
type Holder struct {
	claim *instance.Claim
	// unhook cancels the call at the end of the claim, and returns true if the call was not made
	// yet.
	unhook func() bool

	// The fields below are guarded by mu of Holders.

	bind  Binding
	saved bool          // bind is in a file
	lease time.Duration // duration of the claim's lease; 0 if not known yet
	proc  *proc.Process // nil unless bound to one
	// unseen is why the claim's process, which may be alive, can't be watched; otherwise nil. While
	// it is set, the holder must renew the claim, but the slots are not freed.
	unseen error
	// over is closed when the claim is removed from the holders.
	over chan struct{}
	// expires is the time at which the ttl ends; 0 without a ttl.
	expires time.Duration
	// why is the reason why the claim has ended; nil while it is held.
	why *problem.Error
	// releasing reports that the slots are being released.
	releasing bool
	// killAt is the time at which the process is killed, after SIGTERM.
	killAt time.Duration
	// unstopped is why the last signal to the process failed; empty if it did not.
	unstopped string
	gone      bool // no longer among the holders

	// reports is the number of answers with the grant, without those that did not reach their
	// clients. known means that the holder has renewed the claim since.
	reports int
	known   bool
	// unreadAt is the time at which the claim is released because no client has read its grant; 0
	// if a client has.
	unreadAt time.Duration
}

// Is reports whether the holder's claim has the fence. A fence of 0 matches any claim.
func (h *Holder) Is(fence store.Fence) bool { return fence == 0 || h.claim.Fence() == fence }

// Add adds a claim that was granted, or taken over from an earlier server. If the claim was already
// added, its ttl begins again, and Add closes the process.
func (hs *Holders) Add(claim *instance.Claim, bind Binding, process *proc.Process) *Holder {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.byID[claim.ID]; h != nil {
		if h.claim.Fence() == claim.Fence() {
			if h.bind.unproven && !bind.unproven && h.bind.proc.Same(bind.proc) {
				h.bind = bind // its client has named the process again
			}
			process.Close()
			hs.extend(h)
			return h
		}
		// Its slots are already lost, so its process has no time left to stop.
		if h.proc != nil && (process == nil || !h.proc.ID().Same(process.ID())) {
			hs.signal(h, syscall.SIGKILL)
		}
		hs.drop(h)
	}
	hs.ended.forget(claim.ID, claim.Holder)
	h := &Holder{claim: claim, bind: bind, over: make(chan struct{})}
	hs.byID[claim.ID] = h
	hs.watch(h, process)
	hs.extend(h)
	hs.publish(Granted, h)
	h.unhook = context.AfterFunc(claim.Context(), func() { hs.claimEnded(h) })
	return h
}

// watch watches the process of a holder; a nil process is ignored.
func (hs *Holders) watch(h *Holder, process *proc.Process) {
	h.proc.Close()
	h.proc, h.unseen, h.killAt, h.unstopped = process, nil, 0, ""
	h.claim.Supervise(process != nil)
	if process != nil {
		process.Notify(func() { hs.processEnded(h, process) })
	}
}

// ttl returns the time within which a holder must renew; 0 if it need not renew, or if the time is
// not known yet.
func (h *Holder) ttl() time.Duration {
	if h.unseen != nil && h.bind.ttl == 0 {
		return h.lease
	}
	return h.bind.ttlOf(h.lease)
}

// extend restarts the ttl.
func (hs *Holders) extend(h *Holder) {
	now := hs.clock.Now()
	if h.lease == 0 {
		w, _ := h.claim.ValidityAt(now)
		h.lease = w.TTL
	}
	h.expires = 0
	if ttl := h.ttl(); ttl > 0 {
		h.expires = now + ttl
	}
}

// drop removes a holder whose slots are free.
func (hs *Holders) drop(h *Holder) {
	if h.gone {
		return
	}
	h.gone = true
	close(h.over)
	h.unhook()
	h.proc.Close()
	if hs.byID[h.claim.ID] == h {
		delete(hs.byID, h.claim.ID)
	}
	hs.forget(h)
	if err := h.claim.Err(); h.why == nil && err != nil {
		h.why = problem.Of(err) // it has ended a moment before it was released
	}
	if h.why != nil {
		hs.ended.add(&endedClaim{
			id: h.claim.ID, fence: h.claim.Fence(), why: h.why, holder: h.claim.Holder, slots: h.claim.Slots,
		}, hs.clock.Now())
	}
	hs.publish(Released, h)
}

// publish reports a change of a holder to [Config.Notify].
func (hs *Holders) publish(kind Kind, h *Holder) {
	c := Change{Kind: kind, Claim: h.claim.ID, Owner: OwnerOf(h.claim.Holder), Pools: slices.Sorted(maps.Keys(h.claim.Slots))}
	if kind == Ended {
		c.Why = h.why
	}
	hs.notify(c)
}

// record is what is known of an id: a claim that is held, or one that has ended.
type record struct {
	held  *Holder
	ended *endedClaim
}

// recordOf returns what a caller may send its request about: of the claims with an id that of the
// caller before any other, and one that is held before one that has ended. The record is empty if
// there is none; the error is then why the caller may not send it about the claims of others.
func (hs *Holders) recordOf(c Caller, id string) (record, error) {
	h, now := hs.byID[id], hs.clock.Now()
	if h != nil && c.Owns(h.claim.Holder) {
		return record{held: h}, nil
	}
	if e := hs.ended.last(id, now, func(e *endedClaim) bool { return c.Owns(e.holder) }); e != nil {
		return record{ended: e}, nil
	}
	var refused error
	if h != nil {
		if refused = c.Check(h.claim.Holder, h.claim.Slots); refused == nil {
			return record{held: h}, nil
		}
	}
	e := hs.ended.last(id, now, func(e *endedClaim) bool {
		err := c.Check(e.holder, e.slots)
		if refused == nil {
			refused = err
		}
		return err == nil
	})
	if e != nil {
		return record{ended: e}, nil
	}
	return record{}, refused
}

// heldBy returns the holder of a claim about which a caller may send its request, or the reason why
// it is not held.
func (hs *Holders) heldBy(c Caller, id string) (*Holder, error) {
	r, err := hs.recordOf(c, id)
	switch {
	case err != nil:
		return nil, err
	case r.ended != nil:
		return nil, r.ended.why
	case r.held == nil:
		return nil, problem.New(problem.ClaimNotFound, "no claim %s is held here", problem.Quote(id))
	}
	return r.held, r.held.valid()
}

// valid returns why the claim of a holder is not held.
func (h *Holder) valid() error {
	if h.why != nil {
		return h.why
	}
	// The claim may have ended a moment ago.
	if err := h.claim.Err(); err != nil {
		return problem.Of(err)
	}
	if h.releasing {
		return problem.New(problem.ClaimNotFound, "claim %s is being released", problem.Quote(h.claim.ID))
	}
	return nil
}

// Owned reports whether the last claim with an id that a caller made through this server is held or
// has ended. Neither is true if there is none.
func (hs *Holders) Owned(c Caller, id string) (held, ended bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	r, _ := hs.recordOf(c, id)
	return r.held != nil && c.Owns(r.held.claim.Holder), r.ended != nil && c.Owns(r.ended.holder)
}

// HasEnded reports whether the claim with a fence was held through this server, and was then lost
// or revoked.
func (hs *Holders) HasEnded(id string, fence store.Fence) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.ended.has(id, fence, hs.clock.Now())
}

// Find returns the holder of a claim about which a caller may send its request, or nil if there is
// none. If the claim has ended, the error is the reason. If there are only claims about which the
// caller may not send it, refused is true, and the error says why.
func (hs *Holders) Find(c Caller, id string) (h *Holder, refused bool, err error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	r, err := hs.recordOf(c, id)
	switch {
	case err != nil:
		return nil, true, err
	case r.ended != nil:
		return nil, false, r.ended.why
	case r.held == nil:
		return nil, false, nil
	}
	if err = r.held.valid(); problem.CodeOf(err) == problem.ClaimNotFound {
		err = nil // it is being released
	}
	return r.held, false, err
}

// Fenced returns the holder of the claim with an id and a fence if it is held, otherwise nil.
func (hs *Holders) Fenced(id string, fence store.Fence) *Holder {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byID[id]
	if h == nil || !h.Is(fence) {
		return nil
	}
	if err := h.valid(); err != nil && problem.CodeOf(err) != problem.ClaimNotFound {
		return nil
	}
	return h
}

// Renew records that a holder is alive, and changes how the server detects that from now on: by the
// process, if there is one. Only the owner can bind a claim to another process.
func (hs *Holders) Renew(c Caller, id string, fence store.Fence, life Life, process *proc.Process) (h *Holder, err error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h, err = hs.heldBy(c, id)
	if h == nil {
		process.Close()
		return nil, err
	}
	if err == nil && !h.Is(fence) {
		err = problem.New(problem.ClaimLost, "claim %q is lost: its id is that of a later claim", id)
	}
	if err == nil && process != nil && (h.proc != nil && !h.proc.ID().Same(process.ID()) || h.unseen != nil) && !c.Owns(h.claim.Holder) {
		err = problem.New(problem.Forbidden, "claim %q of %s is bound to process %d already, which only its owner can change: revoke the claim to have that process stopped", id, h.claim.Holder.ClaimedBy, h.bind.proc.PID)
	}
	if err == nil {
		err = hs.rebind(h, life, process)
	}
	if err == nil || problem.CodeOf(err) == problem.StateUnwritable {
		hs.extend(h) // its holder lives, even if the renewal is refused
		h.known, h.unreadAt = true, 0
	}
	if err != nil {
		process.Close()
		return nil, err
	}
	return h, nil
}

// rebind changes the binding if the renewal requests another one. If the new binding can't be
// stored, rebind returns an error, and the old one stays in force, as it would for a later server.
func (hs *Holders) rebind(h *Holder, life Life, process *proc.Process) error {
	bind, err := h.bind.renewed(life)
	if err != nil {
		return err
	}
	if process != nil {
		bind.proc = process.ID()
	}
	if bind == h.bind {
		process.Close()
		return nil
	}
	if err := hs.save(h, bind); err != nil {
		return problem.New(problem.StateUnwritable, "what claim %q is bound to stays as it was: %w", h.claim.ID, err)
	}
	h.bind = bind
	if process != nil {
		hs.watch(h, process)
	}
	return nil
}

// View is a snapshot of a holder.
type View struct {
	Claim     *instance.Claim
	PID       int // of the process that it is bound to; 0 for none
	Releasing bool
	// Lease is the lease duration of the claim; 0 if it is not known yet.
	Lease time.Duration
	// TTL is the time within which the claim must be renewed: 0 if it need not be renewed, nil if
	// the time is not known yet.
	TTL *time.Duration
	// Left is how long the claim is valid after At, unless it is renewed; 0 if it is not valid.
	// Grace is how long its holder may take to stop.
	At          time.Time
	Left, Grace time.Duration
}

// View returns a snapshot of the holder.
func (hs *Holders) View(h *Holder) View {
	at, now := time.Now(), hs.clock.Now() // in this order: this process may be suspended in between; the margin covers the age of a reading
	hs.mu.Lock()
	defer hs.mu.Unlock()
	v := View{Claim: h.claim, PID: h.bind.proc.PID, Releasing: h.releasing, Lease: h.lease, At: at}
	ttl := h.ttl()
	if ttl > 0 || h.unseen == nil && !h.bind.lease {
		v.TTL = &ttl
	}
	if h.unseen != nil {
		v.PID = 0
	}
	w, _ := h.claim.ValidityAt(now)
	left, grace := w.Remaining(now), lease.StopGrace(w.TTL)
	if h.expires > 0 {
		left = min(left, max(0, h.expires-now))
	}
	if left <= 0 || h.releasing {
		return v
	}
	if ttl > 0 {
		grace = min(grace, lease.StopGrace(ttl)) // or it would have to stop as soon as it holds
	}
	v.Left, v.Grace = left, grace
	return v
}

// Writable returns an error if bindings can't be stored now.
func (hs *Holders) Writable() error { return hs.files.writable() }
