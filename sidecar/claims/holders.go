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
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Config is what is needed to keep claims.
type Config struct {
	// StateDir is where bindings are kept, in a folder of the instance. Empty: they are
	// not kept.
	StateDir, Instance string
	Log                hclog.Logger
	Procs              *proc.Watcher
	Metrics            *Metrics
	// Notify is called with everything that happens to a claim, in order. It must not
	// call the holders.
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

// Change is something that has happened to a claim.
type Change struct {
	Kind  Kind
	Claim string
	Pools []string
	Why   *problem.Error // of one that has ended
}

// Holders are the claims that were made through a server, each with its binding,
// from the grant until its slots are free.
type Holders struct {
	clock   lease.Clock
	log     hclog.Logger
	notify  func(Change)
	files   Files
	procs   *proc.Watcher
	metrics *Metrics

	quit    context.Context // ends with leave
	abandon context.CancelFunc
	tasks   sync.WaitGroup // releases that no request waits for

	// mu guards the fields below, and the holders. It is taken before any lock but those of
	// claims.
	mu     sync.Mutex
	byID   map[string]*Holder
	ended  EndedLog
	closed bool
}

// New returns holders without any claim.
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
	// unhook cancels the call at the end of the claim; true if that was not made yet.
	unhook func() bool

	// The fields below are guarded by mu of Holders.

	bind  Binding
	saved bool          // bind is in a file
	lease time.Duration // duration of the claim's lease; 0 if not known yet
	proc  *proc.Process // nil unless bound to one
	// unseen is why a process that it is bound to, and that may live, can't be watched; nil
	// if there is none. Meanwhile its holder must renew it, but its slots are not freed.
	unseen error
	// over is closed when it is no longer among the holders.
	over chan struct{}
	// expires is when the ttl has passed; 0 without one.
	expires time.Duration
	// why the claim has ended; nil while it is held.
	why *problem.Error
	// releasing: its slots are being released.
	releasing bool
	// killAt is when its process is killed, after SIGTERM.
	killAt time.Duration
	// unstopped is why its process could not be signaled the last time; empty if it could.
	unstopped string
	gone      bool // no longer among the holders

	// reports counts the answers with the grant, less those that did not reach their
	// clients; known means that its holder has renewed it since.
	reports int
	known   bool
	// unreadAt is when it is released because no client has read its grant; 0 if one has.
	unreadAt time.Duration
}

// Is reports whether a holder's claim is the one with a fence. 0 is any.
func (h *Holder) Is(fence store.Fence) bool { return fence == 0 || h.claim.Fence() == fence }

// Add adds a claim that was granted, or that was taken over from an earlier server. If it is
// there already, its ttl begins again, and the process is closed.
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
		// Its slots are gone, and there is no time left for its process to stop.
		if h.proc != nil && (process == nil || !h.proc.ID().Same(process.ID())) {
			hs.signal(h, syscall.SIGKILL)
		}
		hs.drop(h)
	}
	hs.ended.Forget(claim.ID)
	h := &Holder{claim: claim, bind: bind, over: make(chan struct{})}
	hs.byID[claim.ID] = h
	hs.watch(h, process)
	hs.extend(h)
	hs.publish(Granted, h)
	h.unhook = context.AfterFunc(claim.Context(), func() { hs.claimEnded(h) })
	return h
}

// watch watches the process of a holder; nil if there is none.
func (hs *Holders) watch(h *Holder, process *proc.Process) {
	h.proc.Close()
	h.proc, h.unseen, h.killAt, h.unstopped = process, nil, 0, ""
	h.claim.Supervise(process != nil)
	if process != nil {
		process.Notify(func() { hs.processEnded(h, process) })
	}
}

// ttl is within which a holder must renew; 0 if it need not, or if that is not known yet.
func (h *Holder) ttl() time.Duration {
	if h.unseen != nil && h.bind.ttl == 0 {
		return h.lease
	}
	return h.bind.ttlOf(h.lease)
}

// extend begins the ttl again.
func (hs *Holders) extend(h *Holder) {
	if h.lease == 0 {
		h.lease = h.claim.LeaseDuration()
	}
	h.expires = 0
	if ttl := h.ttl(); ttl > 0 {
		h.expires = hs.clock.Now() + ttl
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
		e := hs.ended.add(h.claim.ID, h.claim.Fence(), h.why, hs.clock.Now())
		e.holder, e.slots = h.claim.Holder, h.claim.Slots
	}
	hs.publish(Released, h)
}

// publish notifies of a change of a holder.
func (hs *Holders) publish(kind Kind, h *Holder) {
	c := Change{Kind: kind, Claim: h.claim.ID, Pools: slices.Sorted(maps.Keys(h.claim.Slots))}
	if kind == Ended {
		c.Why = h.why
	}
	hs.notify(c)
}

// held returns a holder whose claim is held, or an error that says why it is not.
func (hs *Holders) held(id string) (*Holder, error) {
	h := hs.byID[id]
	if h == nil {
		if why := hs.ended.Why(id, hs.clock.Now()); why != nil {
			return nil, why
		}
		return nil, problem.New(problem.ClaimNotFound, "no claim %s is held here", problem.Quote(id))
	}
	if h.why != nil {
		return nil, h.why
	}
	// The claim may have ended a moment ago.
	if err := h.claim.Err(); err != nil {
		return nil, problem.Of(err)
	}
	if h.releasing {
		return nil, problem.New(problem.ClaimNotFound, "claim %s is being released", problem.Quote(id))
	}
	return h, nil
}

// Check returns why a caller may not ask for what it does about the claim with an id; nil if
// none of that id is known.
func (hs *Holders) Check(c Caller, id string) error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.checkCaller(c, id)
}

func (hs *Holders) checkCaller(c Caller, id string) error {
	if h := hs.byID[id]; h != nil {
		return c.Check(h.claim.Holder, h.claim.Slots)
	}
	if !hs.ended.stale(id, hs.clock.Now()) {
		e := hs.ended.byID[id]
		return c.Check(e.holder, e.slots)
	}
	return nil
}

// HasEnded reports whether the claim with a fence was held here and was lost, or revoked.
func (hs *Holders) HasEnded(id string, fence store.Fence) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.ended.has(id, fence, hs.clock.Now())
}

// Find returns a holder, nil if there is none; an error says why its claim has
// ended.
func (hs *Holders) Find(id string) (*Holder, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byID[id]
	_, err := hs.held(id)
	if problem.CodeOf(err) == problem.ClaimNotFound {
		return h, nil // there is none, or it is being released
	}
	return h, err
}

// Renew records that a holder lives, and how the server is to know that from now on: by the
// process, if there is one. Only its owner can bind a claim to another process than before.
func (hs *Holders) Renew(c Caller, id string, fence store.Fence, life Life, process *proc.Process) (h *Holder, err error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if err = hs.checkCaller(c, id); err != nil {
		process.Close()
		return nil, err
	}
	h, err = hs.held(id)
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

// rebind changes a binding, if the renewal changes it. A binding that can't be recorded is
// refused: a later server would use the one before, and so does this one.
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

// View is a holder at one moment.
type View struct {
	Claim     *instance.Claim
	PID       int // of the process that it is bound to; 0 for none
	Releasing bool
	// Lease is the duration of its lease; 0 if it is not known yet.
	Lease time.Duration
	// TTL is the time within which the claim must be renewed, and 0 if it need not be;
	// nil if it is not known yet.
	TTL *time.Duration
	// Left is for how long the claim is valid from At on, unless it is renewed, and
	// Grace how long its holder may take to stop. Left is 0 if the claim is not valid.
	At          time.Time
	Left, Grace time.Duration
}

// View returns a holder as it is now.
func (hs *Holders) View(h *Holder) View {
	now := time.Now() // before what is left from then on: this process may be suspended in between
	hs.mu.Lock()
	defer hs.mu.Unlock()
	v := View{Claim: h.claim, PID: h.bind.proc.PID, Releasing: h.releasing, Lease: h.lease, At: now}
	ttl := h.ttl()
	if ttl > 0 || h.unseen == nil && !h.bind.lease {
		v.TTL = &ttl
	}
	if h.unseen != nil {
		v.PID = 0
	}
	left, grace := h.claim.ValidFor()
	if h.expires > 0 {
		left = min(left, max(0, h.expires-hs.clock.Now()))
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

// Writable reports why bindings can't be kept now; nil if they can.
func (hs *Holders) Writable() error { return hs.files.writable() }
