package pool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/singleflight"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool/admit"
)

// Limits and defaults of a pool.
const (
	// Unlimited is the limit of a pool that counts its holders and refuses none.
	Unlimited = admit.Unlimited
	// Closed is the limit of a pool that grants nothing and keeps its waiters.
	Closed = 0
	// MaxLimit bounds a limit. At 50 groups it is 20,000 slots a group, which
	// keeps the range that a claim compares small enough for etcd.
	MaxLimit = 1_000_000
	// DefaultLeaseDuration is how long a dead holder's slots stay taken.
	DefaultLeaseDuration = 5 * time.Minute
	// MinLeaseDuration is the shortest lease that survives a change of etcd's
	// leader and one lost renewal.
	MinLeaseDuration = 5 * time.Second
	// MaxLeaseDuration bounds how long a dead holder can block others.
	MaxLeaseDuration = 24 * time.Hour
	// DefaultReserveAfter is how long a waiter lets others pass that fit.
	DefaultReserveAfter = time.Minute
	// NeverReserve as ReserveAfter lets others that fit pass for ever.
	NeverReserve = time.Duration(-1)
	// MaxReserveAfter bounds ReserveAfter.
	MaxReserveAfter = 24 * time.Hour
	// MinRetain and MaxRetain bound how long a host may retain slots. A shorter time would
	// end before the next claim comes.
	MinRetain, MaxRetain = 10 * time.Millisecond, 10 * time.Second
	// TaskPrefix begins the names of the pools of tasks, and DefaultTaskRetain is how long hosts
	// retain their slots: a worker that ends one step of a task and takes the next keeps its slot.
	TaskPrefix        = "task."
	DefaultTaskRetain = time.Second
	// retainedLeases is how many times the time to retain must fit into the lease duration.
	retainedLeases = 3
)

// Spec is what an operator says of a pool.
type Spec struct {
	// Limit of slots: [Unlimited], [Closed], or 1 to [MaxLimit].
	Limit int
	// LeaseDuration is the time to live of the leases that claims are attached to.
	LeaseDuration time.Duration
	// ReserveAfter is the age from which on slots are reserved for a waiter. 0 is
	// at once, in strict order; [NeverReserve] is never.
	ReserveAfter time.Duration
	// Retain is how long a host may retain slots that its claims have released, and grant
	// them to its next claims without a write: 0 is not at all.
	Retain time.Duration
	// Paused pools grant nothing and keep their holders and waiters.
	Paused bool
}

// DefaultSpec is what a pool is unless something else is said. Its limit must be
// said.
func DefaultSpec() Spec {
	return Spec{LeaseDuration: DefaultLeaseDuration, ReserveAfter: DefaultReserveAfter}
}

// DefaultSpecOf is [DefaultSpec] of the pool with a name: that of a task retains its slots.
func DefaultSpecOf(name string) Spec {
	s := DefaultSpec()
	if strings.HasPrefix(name, TaskPrefix) {
		s.Retain = DefaultTaskRetain
	}
	return s
}

// Validate refuses what a pool can't be. Its error is a problem that names the
// field and what is allowed.
func (s Spec) Validate() error {
	switch {
	case s.Limit < Unlimited || s.Limit > MaxLimit:
		return problem.Field("limit", "%d is out of range: use 1 to %d, 0 (closed) and -1 (unlimited)", s.Limit, MaxLimit)
	case s.LeaseDuration < MinLeaseDuration || s.LeaseDuration > MaxLeaseDuration:
		return problem.Field("lease_duration", "%s is out of range: use %s to %s", s.LeaseDuration, MinLeaseDuration, MaxLeaseDuration)
	case s.LeaseDuration%time.Second != 0:
		return problem.Field("lease_duration", "%s is not a whole number of seconds, the unit of etcd's leases", s.LeaseDuration)
	case s.Retain != 0 && (s.Retain < MinRetain || s.Retain > MaxRetain):
		return problem.Field("retain", "%s is out of range: use %s to %s, and 0s (do not retain)", s.Retain, MinRetain, MaxRetain)
	case s.Retain > s.LeaseDuration/retainedLeases:
		return problem.Field("retain", "%s is more than a third of the lease duration, which is %s", s.Retain, s.LeaseDuration)
	case s.ReserveAfter != NeverReserve && (s.ReserveAfter < 0 || s.ReserveAfter > MaxReserveAfter):
		return problem.Field("reserve_after", "%s is out of range: use 0s to %s, and -1 (never)", s.ReserveAfter, MaxReserveAfter)
	}
	return nil
}

// reserveNever is how [NeverReserve] is written, in etcd and everywhere else.
const reserveNever = "-1"

// ParseLimit reads a limit as users write it: a decimal number from -1 to [MaxLimit]. A number with the
// sign + looks like an increase, which no limit is.
func ParseLimit(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || !text.IsDecimal(s) || n < Unlimited || n > MaxLimit {
		return 0, problem.Field("limit", "must be a number from %d to %s; to raise by one, write the new limit", Unlimited, text.Number(MaxLimit))
	}
	return n, nil
}

// LimitText writes a limit of a pool, or of runs.
func LimitText(limit int) string {
	switch limit {
	case Unlimited:
		return "unlimited"
	case Closed:
		return "0 (closed)"
	}
	return text.Number(int64(limit))
}

// ReserveText writes when free slots of a pool are reserved for a waiting claim.
func ReserveText(d time.Duration) string {
	switch d {
	case NeverReserve:
		return "never"
	case 0:
		return "at once"
	}
	return "after " + text.Duration(d)
}

// RetainText writes for how long hosts may retain slots of a pool, empty if they may not.
func RetainText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return "for up to " + text.Duration(d)
}

// FormatReserveAfter writes a ReserveAfter as users write it.
func FormatReserveAfter(d time.Duration) string {
	if d == NeverReserve {
		return reserveNever
	}
	return d.String()
}

// ParseReserveAfter reads what users write for a ReserveAfter: a duration, or
// -1 for never.
func ParseReserveAfter(s string) (time.Duration, error) {
	if s == reserveNever {
		return NeverReserve, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, problem.Field("reserve_after", "%q is no duration: write 30s, 5m, 1h30m, or -1 for never", s)
	}
	return d, nil
}

// Change is what an operator wants of a pool. What is nil stays as it is, or
// gets its default in a new pool, and with Replace in any pool.
type Change struct {
	Limit                       *int
	LeaseDuration, ReserveAfter *time.Duration
	Retain                      *time.Duration
	Paused                      *bool
	Replace                     bool
	// If is what the revision of the spec must satisfy, which is 0 for a new pool.
	If store.Condition
}

// Validate refuses what no pool can be changed to. Whether the change fits the other settings of a
// pool is known when it is carried out.
func (ch Change) Validate() error {
	return ch.apply(Spec{LeaseDuration: MaxLeaseDuration}).Validate()
}

func (ch Change) apply(s Spec) Spec {
	if ch.Limit != nil {
		s.Limit = *ch.Limit
	}
	if ch.LeaseDuration != nil {
		s.LeaseDuration = *ch.LeaseDuration
	}
	if ch.ReserveAfter != nil {
		s.ReserveAfter = *ch.ReserveAfter
	}
	if ch.Retain != nil {
		s.Retain = *ch.Retain
	}
	if ch.Paused != nil {
		s.Paused = *ch.Paused
	}
	return s
}

// Registry changes the specs of pools. Each change compares the spec that it was
// made from, so no two operators undo each other.
type Registry struct {
	Backend store.Backend
	Keys    store.Keys
}

// Put is a change that was made.
type Put struct {
	Spec     Spec
	Created  bool
	Revision int64 // at which the change holds
}

// changing is what all this does, in words for errors.
const changing = "the pool was not changed"

// Set creates a pool or changes it. A new pool needs a limit. Its errors are
// problems.
func (r Registry) Set(ctx context.Context, name string, ch Change) (Put, error) {
	return r.set(ctx, name, ch, true)
}

// Change changes a pool that exists; an unknown one is a PoolNotFound problem.
func (r Registry) Change(ctx context.Context, name string, ch Change) (Put, error) {
	return r.set(ctx, name, ch, false)
}

// set changes a pool, and may create it.
func (r Registry) set(ctx context.Context, name string, ch Change, create bool) (Put, error) {
	if err := ValidateName(name); err != nil {
		return Put{}, err
	}
	if ch.Replace && ch.Limit == nil {
		return Put{}, problem.Field("limit", "a pool needs a limit")
	}
	return store.Change(ctx, changing, func(ctx context.Context) (Put, error) {
		old, groups, since, rev, err := r.read(ctx, name)
		if err != nil {
			return Put{}, err
		}
		created := rev == 0
		switch {
		case created && !create:
			return Put{}, store.Stop(noPool(name))
		case created && ch.Limit == nil:
			return Put{}, store.Stop(problem.Field("limit", "pool '%s' does not exist yet, and a new pool needs a limit", name))
		case created:
			old = DefaultSpecOf(name)
		}
		base := old
		if ch.Replace {
			base = DefaultSpecOf(name)
		}
		spec := ch.apply(base)
		if err := spec.Validate(); err != nil {
			return Put{}, store.Stop(err)
		}
		if err := ch.If.Check(rev); err != nil {
			return Put{}, err
		}
		if !created && spec == old {
			return Put{Spec: spec, Revision: rev}, nil
		}
		switch {
		case created:
			groups, since = layoutOf(spec.Limit), 0
		case spec.Limit != old.Limit:
			groups, since = groups.change(spec.Limit), 0
		}
		key := r.Keys.Spec(name)
		at, err := store.Commit(ctx, r.Backend,
			[]*pb.Compare{store.ModEquals(key, rev)}, store.Put(key, encodeSpec(spec, groups, since), 0))
		return Put{Spec: spec, Created: created, Revision: at}, err
	})
}

// Check refuses slots that can't be granted with the present specs: of a pool that does
// not exist, or more than its limit. Its errors are problems.
func (r Registry) Check(ctx context.Context, slots map[string]int) error {
	for _, n := range needsOf(slots) {
		spec, _, _, rev, err := r.read(ctx, n.Pool)
		switch {
		case err != nil:
			return store.Problem("the pools could not be read", err)
		case rev == 0:
			err := noSuchPool(n.Pool)
			err.Field = poolField(n.Pool)
			return err
		}
		if err := spec.exceeded(n); err != nil {
			return err
		}
	}
	return nil
}

// OtherLimitError is that a pool has another limit than the one that was declared.
type OtherLimitError struct {
	Pool            string
	Declared, Limit int
}

func (e *OtherLimitError) Error() string {
	return fmt.Sprintf("pool '%s' has the limit %d, not %d", e.Pool, e.Limit, e.Declared)
}

// Declare returns what makes a pool have a limit: the condition that it is as it was read,
// and if there is none the operation that creates it. If it has another limit, that is an
// [*OtherLimitError].
func (r Registry) Declare(ctx context.Context, name string, limit int) (*pb.Compare, *pb.RequestOp, error) {
	old, _, _, rev, err := r.read(ctx, name)
	switch {
	case err != nil:
		return nil, nil, err
	case rev != 0 && old.Limit != limit:
		return nil, nil, &OtherLimitError{name, limit, old.Limit}
	}
	key := r.Keys.Spec(name)
	same := store.ModEquals(key, rev)
	if rev != 0 {
		return same, nil, nil
	}
	spec := DefaultSpecOf(name)
	spec.Limit = limit
	if err := spec.Validate(); err != nil {
		return nil, nil, err
	}
	return same, store.Put(key, encodeSpec(spec, layoutOf(limit), 0), 0), nil
}

// Delete deletes a pool's spec. Its holders keep their slots until they release
// them; its waiters are refused. An unknown pool is a PoolNotFound problem. The revision of
// the spec must satisfy the condition.
func (r Registry) Delete(ctx context.Context, name string, condition store.Condition) (revision int64, err error) {
	if err := ValidateName(name); err != nil {
		return 0, err
	}
	put, err := store.Change(ctx, changing, func(ctx context.Context) (Put, error) {
		key := r.Keys.Spec(name)
		resp, err := r.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return Put{}, err
		}
		if len(resp.Kvs) == 0 {
			return Put{}, store.Stop(noPool(name))
		}
		if err := condition.Check(resp.Kvs[0].ModRevision); err != nil {
			return Put{}, err
		}
		at, err := store.Commit(ctx, r.Backend,
			[]*pb.Compare{store.ModEquals(key, resp.Kvs[0].ModRevision)}, store.Delete(key))
		return Put{Revision: at}, err
	})
	return put.Revision, err
}

func noPool(name string) error {
	return problem.New(problem.PoolNotFound, "%w", &missing{name})
}

// read returns a spec with its layout, the revision since which its limit holds and its own
// revision, 0 if there is none.
func (r Registry) read(ctx context.Context, name string) (s Spec, l layout, since, rev int64, err error) {
	return r.readAt(ctx, name, 0)
}

// retained reports whether slots that were taken at a revision may have been granted again without a
// write. The spec at that revision tells, because slots are granted so only under the spec that they
// were taken under. If that is compacted, any later spec may be another one.
func (r Registry) retained(ctx context.Context, name string, at int64) bool {
	s, _, _, _, err := r.readAt(ctx, name, at)
	if errors.Is(err, store.ErrCompacted) {
		var rev int64
		if s, _, _, rev, err = r.readAt(ctx, name, 0); rev == 0 || rev > at {
			return true
		}
	}
	return err != nil || s.Retain > 0
}

// readAt returns a spec as it was at a revision, or as it is if that is 0.
func (r Registry) readAt(ctx context.Context, name string, at int64) (s Spec, l layout, since, rev int64, err error) {
	key := r.Keys.Spec(name)
	resp, err := r.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key), Revision: at})
	if err != nil || len(resp.Kvs) == 0 {
		return Spec{}, layout{}, 0, 0, err
	}
	kv := resp.Kvs[0]
	s, l, since, err = decodeSpec(key, kv.Value, kv.ModRevision)
	if err != nil {
		return Spec{}, layout{}, 0, 0, store.Stop(problem.New(problem.CorruptValue, "%w", err))
	}
	return s, l, since, kv.ModRevision, nil
}

const (
	// specTimeout bounds reading whether there is a pool, and specPause is for how long it is
	// not read again after a failure.
	specTimeout = 200 * time.Millisecond
	specPause   = time.Second
	// maxSpecs bounds the pools that are remembered.
	maxSpecs = 1000
)

// specs knows which pools there are, as of the last second.
type specs struct {
	flights singleflight.Group

	mu     sync.Mutex // guards what follows
	known  map[string]knownSpec
	failed time.Time // the last read that failed
}

// knownSpec is whether there was a pool at some time.
type knownSpec struct {
	exists bool
	at     time.Time
}

// of returns what is known of a pool, and whether it is to be used without reading it.
func (s *specs) of(name string) (exists, use bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[name]
	return k.exists || !ok, ok && time.Since(k.at) < shareFor || time.Since(s.failed) < specPause
}

func (s *specs) note(name string, k knownSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSpecs {
		s.known = map[string]knownSpec{}
	}
	s.known[name] = k
}

// fail notes that a pool could not be read.
func (s *specs) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = time.Now()
}

// forget has every pool read again.
func (s *specs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

// HasPool reports whether there is a pool of that name, as it was at most a second ago. While
// etcd does not answer it is what is known of it, and true if nothing is: a claim finds out.
func (e *Engine) HasPool(name string) bool {
	exists, use := e.specs.of(name)
	if use {
		return exists
	}
	seen, _, _ := e.specs.flights.Do(name, func() (any, error) { return e.readSpec(name, exists), nil })
	return seen.(bool)
}

// readSpec reads whether there is a pool, and otherwise returns what is known.
func (e *Engine) readSpec(name string, known bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), specTimeout)
	defer cancel()
	at := time.Now()
	resp, err := e.cfg.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(e.cfg.Keys.Spec(name)), CountOnly: true})
	if err != nil {
		e.specs.fail()
		return known
	}
	e.specs.note(name, knownSpec{exists: resp.Count > 0, at: at})
	return resp.Count > 0
}
