package pool

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Bounds of what a claim can ask for.
const (
	// MaxPools is how many pools a claim can name: each costs two compares, and
	// etcd takes 128 a transaction.
	MaxPools = 32
	// MaxKeys is how many slot keys a claim can need: [MaxPools] × [MaxGroups].
	MaxKeys = MaxPools * MaxGroups
	// MaxPriority and MinPriority bound a priority; higher goes first.
	MaxPriority, MinPriority = 1000, -1000
	// MaxLabels is how many labels a holder can carry.
	MaxLabels = 32
	// maxLabelBytes bounds all labels of a holder together.
	maxLabelBytes = 8 << 10
	// MaxID bounds the ids of claims and runs, and the names of the run and the step of a holder,
	// in bytes.
	MaxID = 256
	// MaxLabel bounds the key and the value of a label, in bytes.
	MaxLabel = 512
	// MaxText bounds other names, in bytes.
	MaxText = 128
	// maxPoolName bounds a pool's name, in bytes.
	maxPoolName = 63
)

// Claim is a claim that was granted. It is held until its
// context is done.
type Claim struct {
	ID    string
	Slots map[string]int
	// Fence is the fencing token: a later holder of one of the slots has a larger one.
	Fence     store.Fence
	Lease     store.LeaseID
	Holder    Holder
	Priority  int
	ClaimedAt time.Time
	// Keys is how many keys are attached to the lease.
	Keys int
	// Extra are the responses to [store.Extra.Then]: nil if the response was lost, or
	// the claim was too wide to share a batch.
	Extra []*pb.ResponseOp

	ctx    context.Context
	cancel context.CancelCauseFunc

	supervised, freed atomic.Bool
}

// Context is done when the claim has ended: released, lost or revoked.
func (c *Claim) Context() context.Context { return c.ctx }

// Err returns why the claim ended: nil after a release, and while it is held.
func (c *Claim) Err() error {
	if err := context.Cause(c.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// end closes the claim; only the first end counts. A nil error is a release.
func (c *Claim) end(err error) { c.cancel(err) }

// Begin begins the context of a claim that was granted: for the engine that has granted it.
func (c *Claim) Begin() { c.ctx, c.cancel = context.WithCancelCause(context.Background()) }

// End ends the claim; only the first end counts. A nil error is a release. It is for the engine that has granted it.
func (c *Claim) End(err error) { c.cancel(err) }

// Free records that the slots are free again: for the engine that has granted the claim.
func (c *Claim) Free() { c.freed.Store(true) }

// Supervise says whether the owner of the claim knows when its holder has stopped, as it does
// of a process that it watches. After a revocation the slots of such a claim are kept until it
// is released, however long that takes, and those of others for [RevokeGrace].
func (c *Claim) Supervise(on bool) { c.supervised.Store(on) }

// Supervised reports what [Claim.Supervise] was called with.
func (c *Claim) Supervised() bool { return c.supervised.Load() }

// Freed reports whether the slots are known to be free again.
func (c *Claim) Freed() bool { return c.freed.Load() }

// Holder identifies the owner of a claim.
type Holder struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// ClaimedBy is the identity that has made the claim, such as "user:alice".
	ClaimedBy string            `json:"claimed_by,omitempty"`
	Run       string            `json:"run,omitempty"`
	Step      string            `json:"step,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Bind says in the words of the instance how it knows that the holder
	// lives, so that it still knows after a restart.
	Bind string `json:"bind,omitempty"`
}

// Request asks for a claim.
type Request struct {
	// ID of the claim: asking twice with one id makes one claim.
	ID string
	// Chosen is set if a user has chosen the id: no two instances hold claims of it then.
	Chosen bool
	// Slots wanted of each pool, all or none. At least one pool, at most
	// [MaxPools]; each from 1 slot on.
	Slots map[string]int
	// Priority from [MinPriority] to [MaxPriority]; higher goes first.
	Priority int
	// Holder to record. Host and Instance are filled in by the engine.
	Holder Holder
	// Wait bounds the time in the wait queue; 0 refuses at once what does not fit now.
	Wait time.Duration
	// Extra goes into the transaction of the claim.
	Extra store.Extra
	// Bridge keeps the claim for another instance that may take it over. It is not
	// reported as lost if its slots are gone.
	Bridge bool
	// Sole has the claim wait in the queue only while no other claim of the same run, step
	// and bind does, of any instance: they are for one thing, and only one of them can get
	// it. Since, if it is not 0, is the revision from which such a thing has waited: its
	// place in the queue is the same whichever claim waits for it.
	Sole  bool
	Since int64
	// Helps has a sole claim wait in the queue only while no other instance has one there, as far as was read in the last
	// second: the thing belongs to another instance.
	Helps bool
	// Remote holders can outlive this machine, and with it the journal: they get no retained slots.
	Remote bool
	// Place, if it is not nil, is taken before slots are, and returned if the claim has to
	// wait. The caller returns it after the claim has ended.
	Place *Place
	// Observer, if it is not nil, is notified of the progress of the request.
	Observer Observer
}

// Validate refuses what can't be asked for, whatever pools there are.
func (r *Request) Validate() error {
	if err := r.validate(); err != nil {
		return err
	}
	return r.Holder.validateLines()
}

// validate refuses what no claim can be. Records of claims that were made before may have
// texts that are refused now: they are read as they are, or their pools would grant nothing.
func (r *Request) validate() error {
	if err := ValidateID(r.ID); err != nil {
		return err
	}
	if err := ValidateSlots(r.Slots); err != nil {
		return err
	}
	switch {
	case r.Priority < MinPriority || r.Priority > MaxPriority:
		return problem.Field("priority", "%d is out of range: use %d to %d", r.Priority, MinPriority, MaxPriority)
	case r.Wait < 0:
		return problem.Field("wait", "%s is negative: use any time from 0s (do not wait) on", r.Wait)
	}
	return r.Holder.validate()
}

// ValidateSlots refuses what can't be asked of pools, whatever pools there are.
func ValidateSlots(slots map[string]int) error {
	switch {
	case len(slots) == 0:
		return problem.Field("pools", "it names no pool: name at least one")
	case len(slots) > MaxPools:
		return problem.Field("pools", "%d pools are too many for one claim: use at most %d", len(slots), MaxPools)
	}
	for _, name := range sortedKeys(slots) {
		if err := ValidateName(name); err != nil {
			return err
		}
		if n := slots[name]; n < 1 || n > MaxLimit {
			return problem.Field("pools."+name, "%d slots can't be claimed: use 1 to %d", n, MaxLimit)
		}
	}
	return nil
}

// ValidateName refuses what can't be the name of a pool.
func ValidateName(name string) error {
	if !isPoolName(name) {
		return problem.Field("pool", "invalid pool name %q: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(name))
	}
	return nil
}

// ValidateID refuses what can't be the id of a claim.
func ValidateID(id string) error {
	if err := validateLength("id", id, MaxID); err != nil {
		return err
	}
	if !isWord(id) {
		return problem.Field("id", "%q is no claim id: use 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(id), MaxID)
	}
	return nil
}

// ValidateClaim refuses what can't name a claim: an id is wanted, or HOST/INSTANCE/ID.
func ValidateClaim(claim string) error {
	by, id, named := cutInstance(claim)
	if named && (!isPoolName(by.Host) || !isPoolName(by.Instance)) || strings.Contains(id, "/") {
		return problem.Field("id", "%q names no claim: use an id, or HOST/INSTANCE/ID", problem.Clip(claim))
	}
	return ValidateID(id)
}

func isPoolName(s string) bool {
	return len(s) <= maxPoolName && isWord(s) && strings.ToLower(s) == s
}

func isClaimID(s string) bool { return len(s) <= MaxID && isWord(s) }

// isWord reports whether s is made of letters, digits, '.', '_' and '-', and
// begins with one of the first two. It is asked for every event of a watch.
func isWord(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// IsLine reports whether a text can be shown in one line of text, also on a terminal: it
// is UTF-8 without control characters, line separators, and characters that change the
// direction in which the text around them is shown.
func IsLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	})
}

// ValidateLine refuses a text that is not [IsLine].
func ValidateLine(field, s string) error {
	if !IsLine(s) {
		return problem.Field(field, "%q can't be shown in one line of text: use text without control characters, line breaks and characters that change its direction", problem.Clip(s))
	}
	return nil
}

// validateLength refuses a text of more than most bytes.
func validateLength(field, s string, most int) error {
	if len(s) > most {
		return problem.Field(field, "it has %d bytes: use at most %d", len(s), most)
	}
	return nil
}

func (h *Holder) validate() error {
	if err := validateLength("run_id", h.Run, MaxID); err != nil {
		return err
	}
	if err := validateLength("step_key", h.Step, MaxID); err != nil {
		return err
	}
	if len(h.ClaimedBy) > access.MaxIdentity {
		return problem.Field("claimed_by", "%q is %d bytes long: use at most %d", problem.Clip(h.ClaimedBy), len(h.ClaimedBy), access.MaxIdentity)
	}
	if h.PID < 0 {
		return problem.Field("pid", "%d is no process", h.PID)
	}
	if len(h.Labels) > MaxLabels {
		return problem.Field("labels", "%d labels are too many: use at most %d", len(h.Labels), MaxLabels)
	}
	return ValidateLabels(h.Labels)
}

// ValidateLabels refuses labels without a name, and labels that are too long.
func ValidateLabels(labels map[string]string) error {
	total := 0
	for _, k := range sortedKeys(labels) {
		if k == "" {
			return problem.Field("labels", "a label has no name")
		}
		if len(k) > MaxLabel {
			return problem.Field("labels", "the name %q has %d bytes: use at most %d", problem.Clip(k), len(k), MaxLabel)
		}
		if err := validateLength("labels."+problem.Clip(k), labels[k], MaxLabel); err != nil {
			return err
		}
		total += len(k) + len(labels[k])
	}
	if total > maxLabelBytes {
		return problem.Field("labels", "together they have %d bytes: use at most %d", total, maxLabelBytes)
	}
	return nil
}

// validateLines refuses texts that would garble the lists in which holders are shown.
func (h *Holder) validateLines() error {
	if err := ValidateLine("run_id", h.Run); err != nil {
		return err
	}
	if err := ValidateLine("step_key", h.Step); err != nil {
		return err
	}
	for _, k := range sortedKeys(h.Labels) {
		if err := ValidateLine("labels", k); err != nil {
			return err
		}
		if err := ValidateLine("labels."+k, h.Labels[k]); err != nil {
			return err
		}
	}
	return nil
}

// conditional reports whether a grant depends on more than free slots, which only the
// instance itself can check.
func (r *Request) conditional() bool {
	x := &r.Extra
	return len(x.If)+len(x.Then)+len(x.Leased) > 0 || x.Stamp != nil || r.Place != nil
}

// SameAs reports whether two requests of one id ask for the same claim.
func (r *Request) SameAs(o *Request) bool { return r.sameAs(o) }

// sameAs reports whether two requests of one id ask for the same claim.
func (r *Request) sameAs(o *Request) bool {
	return maps.Equal(r.Slots, o.Slots) && r.Priority == o.Priority && r.Holder.sameAs(&o.Holder)
}

func (h *Holder) sameAs(o *Holder) bool {
	return h.ClaimedBy == o.ClaimedBy && h.Run == o.Run && h.Step == o.Step && h.PID == o.PID &&
		h.Bind == o.Bind && maps.Equal(h.Labels, o.Labels)
}

// Held returns the claims that this instance holds, by id; also those whose
// validity has ended and whose holder has not released them yet.
func (e *Engine) Held(ctx context.Context) ([]*Claim, error) {
	return query(ctx, e, func(c *core) []*Claim {
		var all []*Claim
		for _, en := range c.sorted() {
			if en.state == held {
				all = append(all, en.claim)
			}
		}
		return all
	})
}

// Lookup returns a claim that this instance holds, nil if it holds none of that
// id.
func (e *Engine) Lookup(ctx context.Context, id string) (*Claim, error) {
	return query(ctx, e, func(c *core) *Claim {
		if en := c.entries[id]; en != nil && en.state == held {
			return en.claim
		}
		return nil
	})
}

// Unfinished returns how many claims of this instance have slots, or may have
// some: those that are being granted or released included, and slots that are retained.
func (e *Engine) Unfinished(ctx context.Context) (int, error) {
	return query(ctx, e, func(c *core) (n int) {
		for _, en := range c.entries {
			if en.state != queued {
				n++
			}
		}
		return n + c.returning()
	})
}

// Places bound how many claims a holder can use at a time, of any pools: those of a
// worker, for example. A claim that has a [Place] is granted only when the place is taken,
// so no slots are taken that the holder can't use.
type Places struct {
	mu    sync.Mutex // guards free, and which places are taken
	free  int        // below 0 while more are taken by force than there are
	given chan struct{}
}

// Place is what one claim, or anything else that is to be counted with claims, takes of
// places. A nil Place is no bound.
type Place struct {
	of    *Places
	taken bool
	// lent: it was passed on, and was not given back since.
	lent bool
}

// NewPlaces returns places of which so many are free.
func NewPlaces(n int) *Places { return &Places{free: n, given: make(chan struct{}, 1)} }

// Free is how many are free, never below 0.
func (p *Places) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.free)
}

// Given has a message after a place was given back.
func (p *Places) Given() <-chan struct{} { return p.given }

// New returns a place that is not taken yet.
func (p *Places) New() *Place { return &Place{of: p} }

// Take takes the place, and reports whether it is taken: by this call or one before.
func (p *Place) Take() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken && p.of.free > 0 {
		p.taken = true
		p.of.free--
	}
	return p.taken
}

// Taken reports whether the place is taken; a nil one never is.
func (p *Place) Taken() bool {
	if p == nil {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken
}

// available reports whether the place is taken already, or could be now.
func (p *Place) available() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken || p.of.free > 0
}

// passes reports whether the place could be passed on to another one.
func (p *Place) passes(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken
}

// Force takes the place even if none is free: for what is there already.
func (p *Place) Force() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken {
		p.taken = true
		p.of.free--
	}
}

// Give gives the place back, if it is taken.
func (p *Place) Give() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.lent = false
	if !p.taken {
		return
	}
	p.taken = false
	p.of.free++
	select {
	case p.of.given <- struct{}{}:
	default: // there is a message already
	}
}

// Pass gives the place to another one, which is not taken. It reports whether it was taken,
// and so is passed on.
func (p *Place) Pass(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || to.taken {
		return false
	}
	p.taken, to.taken = false, true
	p.lent = true
	return true
}

// Return passes a place back to the one that it was passed on from. It is false if that was
// given back meanwhile: its owner would not give it back again.
func (p *Place) Return(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || !to.lent || to.taken {
		return false
	}
	p.taken, p.lent = false, false
	to.taken, to.lent = true, false
	return true
}

// maxExtra bounds what a claim can carry along: see maxChildOps.
const maxExtra = 16

// ValidateExtra refuses more conditions and writes than a claim can carry.
func ValidateExtra(x store.Extra) error {
	if len(x.If) > maxExtra || len(x.Then)+len(x.Leased) > maxExtra {
		return problem.New(problem.Internal, "a claim can carry %d conditions and %d writes more", maxExtra, maxExtra)
	}
	return nil
}
