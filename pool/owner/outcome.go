package owner

import (
	"errors"

	"github.com/berthhq/berth/internal/problem"
)

// Outcome is what has become of a claim.
type Outcome int

// The outcomes. Waits is followed by another one, and Granted by Released or Lost.
const (
	Waits     Outcome = iota // it is in the wait queue
	Granted                  // it has its slots
	Refused                  // it is not granted: see [Result.Err]
	Withdrawn                // it was withdrawn while it waited
	Released                 // its slots are free; see [ErrGone]
	Lost                     // its lease has ended
	Stays                    // it is held: its combined release has not happened, see [Result.Err]
)

// Why says why a claim waits.
type Why string

// The reasons.
const (
	Full    Why = "full"      // a pool has too few free slots
	Pending Why = "pending"   // others wait for a pool
	Races   Why = "races"     // other instances took the slots that it tried
	Paused  Why = "paused"    // a pool is paused
	Closed  Why = "closed"    // the limit of a pool is 0
	Wide    Why = "scattered" // its free slots are in too many parts for one transaction
)

// Result is the news of a claim.
type Result struct {
	Claim   *Claim
	Outcome Outcome
	// Err is why a claim was refused, or that the slots of one that was to be released were gone.
	Err error
	// Revision in which a claim was released; 0 if it is not known.
	Revision int64
	// Why it waits.
	Why Why
}

// Whys are all reasons.
func Whys() []Why { return []Why{Full, Pending, Races, Paused, Closed, Wide} }

// ErrGone tells that the slots of a claim were gone before it was released.
var ErrGone = errors.New("its slots are no longer in etcd")

// outcomes collects results, and counts what they come from.
type outcomes struct {
	news   todo[Result]
	counts *Counts
}

// problem returns the error for a claim that does not wait.
func (v verdict) problem(c *Claim) error {
	name := v.pools[0]
	switch v.why {
	case Pending:
		return problem.New(problem.NoCapacity, "others wait for pool '%s'", name)
	case Paused, Closed:
		return problem.New(problem.NoCapacity, "pool '%s' is %s", name, v.why)
	case Races:
		return problem.New(problem.NoCapacity, "%d races for slots of pool '%s' were lost", c.races, name)
	case Wide:
		return problem.New(problem.NoCapacity, "the free slots of pool '%s' are in too many parts", name)
	}
	return problem.New(problem.NoCapacity, "pool '%s' has no %d free slots", name, c.request.Slots[name])
}
