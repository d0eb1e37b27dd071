package pool

import (
	"fmt"
	"strconv"
	"time"

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
	// TaskPrefix begins the names of the pools of tasks.
	TaskPrefix = "task."
)

// RetainRemoved is what users read who still give the setting "retain".
const RetainRemoved = "this setting was removed, because hosts no longer retain released slots: leave it out; " +
	"to claim less often, hold a claim for many requests"

// Spec is what an operator says of a pool.
type Spec struct {
	// Limit of slots: [Unlimited], [Closed], or 1 to [MaxLimit].
	Limit int
	// LeaseDuration is the time to live of the leases that claims are attached to.
	LeaseDuration time.Duration
	// ReserveAfter is the age from which on slots are reserved for a waiter. 0 is
	// at once, in strict order; [NeverReserve] is never.
	ReserveAfter time.Duration
	// Paused pools grant nothing and keep their holders and waiters.
	Paused bool
}

// DefaultSpec is what a pool is unless something else is said. Its limit must be
// said.
func DefaultSpec() Spec {
	return Spec{LeaseDuration: DefaultLeaseDuration, ReserveAfter: DefaultReserveAfter}
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
	case s.ReserveAfter != NeverReserve && (s.ReserveAfter < 0 || s.ReserveAfter > MaxReserveAfter):
		return problem.Field("reserve_after", "%s is out of range: use 0s to %s, and -1 (never)", s.ReserveAfter, MaxReserveAfter)
	}
	return nil
}

// exceedsLimit reports whether so many slots are more than a limit. A closed pool has waiters for any number.
func exceedsLimit(limit, n int) bool { return limit > 0 && n > limit }

// Exceeded refuses what a pool can never give while its limit is what it is.
func (s Spec) Exceeded(n Need) error {
	if !exceedsLimit(s.Limit, n.N) {
		return nil
	}
	err := problem.New(problem.ExceedsLimit, "pool '%s' can never grant %d slots: its limit is %d", n.Pool, n.N, s.Limit)
	err.Field = poolField(n.Pool)
	return err
}

// poolField is the field of what is asked of a pool.
func poolField(name string) string { return "pools." + name }

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
	Paused                      *bool
	Replace                     bool
	// If is what the revision of the spec must satisfy, which is 0 for a new pool.
	If store.Condition
}

// Validate refuses what no pool can be changed to. Whether the change fits the other settings of a
// pool is known when it is carried out.
func (ch Change) Validate() error {
	return ch.Apply(Spec{LeaseDuration: MaxLeaseDuration}).Validate()
}

// Apply returns the spec that a spec is changed to.
func (ch Change) Apply(s Spec) Spec {
	if ch.Limit != nil {
		s.Limit = *ch.Limit
	}
	if ch.LeaseDuration != nil {
		s.LeaseDuration = *ch.LeaseDuration
	}
	if ch.ReserveAfter != nil {
		s.ReserveAfter = *ch.ReserveAfter
	}
	if ch.Paused != nil {
		s.Paused = *ch.Paused
	}
	return s
}

// Put is a change that was made.
type Put struct {
	Spec     Spec
	Created  bool
	Revision int64 // at which the change holds
}

// OtherLimitError is that a pool has another limit than the one that was declared.
type OtherLimitError struct {
	Pool            string
	Declared, Limit int
}

func (e *OtherLimitError) Error() string {
	return fmt.Sprintf("pool '%s' has the limit %d, not %d", e.Pool, e.Limit, e.Declared)
}
