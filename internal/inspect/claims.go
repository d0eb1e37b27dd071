package inspect

import (
	"time"

	"github.com/berthhq/berth/pool"
)

// States of a claim.
const (
	ClaimHeld      = "held"
	ClaimWaiting   = "waiting"
	ClaimReleasing = "releasing"
)

// Claim is a claim of any host that is held or waits.
type Claim struct {
	ID       string `json:"id"`
	Status   string `json:"status" enum:"held,waiting,releasing"`
	Pools    Slots  `json:"pools"`
	Priority int    `json:"priority"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// ClaimedBy is the identity that has made the claim.
	ClaimedBy string            `json:"claimed_by,omitempty" doc:"Who has made the claim: user:NAME over the unix socket, token:NAME, cert:NAME, or anonymous; etcd:NAME or unauthenticated for a process with a connection to etcd."`
	RunID     string            `json:"run_id,omitempty"`
	StepKey   string            `json:"step_key,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`

	// Fence is the fencing token: it is larger for every later holder of a slot. A
	// waiting claim has 0.
	Fence int64 `json:"fence,omitempty" doc:"The fencing token: larger for every later holder of a slot. It orders the holders of a pool of one slot only."`
	// ClaimedAt is when the claim was granted, and QueuedAt when it began to wait, by
	// the wall clock of its host.
	ClaimedAt time.Time `json:"claimed_at,omitzero"`
	QueuedAt  time.Time `json:"queued_at,omitzero"`

	// ValidFor is how long the claim is valid unless it is renewed, from when its client
	// sent the request, in milliseconds rounded down; 0 if it is not valid. It is nil if
	// this server does not hold the claim. ValidUntil is the same by the server's wall
	// clock, which can be set.
	ValidFor   *Duration `json:"valid_for,omitempty" doc:"How long the claim is valid unless it is renewed, from the sending of the request; 0s if it is not valid. Only the server that holds the claim knows it; a claim that waits has none."`
	ValidUntil time.Time `json:"valid_until,omitzero" doc:"The same as an instant of the server's clock."`
	// Grace is how long a holder may take to stop: a sixth of the ttl or of the lease
	// duration, whichever is less, and at most 10 s. A holder that needs it begins to stop
	// that much before the validity ends.
	Grace Duration `json:"grace,omitzero" doc:"How long the holder may take to stop; it must begin that much before the validity ends. A sixth of the ttl or of the lease duration, whichever is less, and at most 10s."`
	// LeaseDuration is how long the slots stay taken if the server dies.
	LeaseDuration Duration  `json:"lease_duration,omitzero"`
	TTL           *Duration `json:"ttl,omitempty" doc:"Within which the claim must be renewed; 0s if it need not be."`

	// Position and Reason are of a waiting claim.
	Position int    `json:"position,omitempty"`
	Reason   string `json:"reason,omitempty"`

	// Deadline is when the validity ends, on the boot clock of the client's machine.
	// The Go client sets it.
	Deadline time.Duration `json:"-"`
	// Bind is [pool.Holder.Bind] of a claim that is held.
	Bind string `json:"-"`
}

// Remaining returns how long the claim is still valid, and how long its holder may take to
// stop. Both are 0 if the claim is not valid, or if the server that answered does not hold it.
func (c *Claim) Remaining() (left, grace time.Duration) { return remaining(c.Deadline, c.Grace) }

// SetHolder sets who holds the claim, or waits for it.
func (c *Claim) SetHolder(h pool.Holder) {
	c.Host, c.Instance, c.ClaimedBy = h.Host, h.Instance, h.ClaimedBy
	c.RunID, c.StepKey, c.PID, c.Labels = h.Run, h.Step, h.PID, h.Labels
}

// HeldClaimOf returns the record of a claim that is held.
func HeldClaimOf(h pool.HolderStatus) Claim {
	c := Claim{
		ID: h.Claim, Status: ClaimHeld, Pools: h.Pools, Priority: h.Priority,
		Fence: int64(h.Fence), ClaimedAt: h.Since, Bind: h.Bind,
	}
	if c.Pools == nil { // its main key can't be read
		c.Pools = Slots{}
	}
	c.SetHolder(h.Holder)
	return c
}

// WaitingClaimOf returns the record of a claim that waits.
func WaitingClaimOf(w pool.WaiterStatus) Claim {
	c := Claim{
		ID: w.Claim, Status: ClaimWaiting, Pools: w.Pools, Priority: w.Priority,
		QueuedAt: w.Since.Truncate(time.Millisecond), Position: w.Position, Reason: w.Reason,
	}
	c.SetHolder(w.Holder)
	return c
}

// Why explains what a claim holds, or why it waits.
type Why struct {
	Claim  Claim   `json:"claim"`
	Reason *Reason `json:"reason,omitempty" doc:"Why a waiting claim waits."`
}

// WhyOf returns the record of an explanation.
func WhyOf(w pool.Why) Why {
	if w.Waiter == nil {
		return Why{Claim: HeldClaimOf(*w.Held)}
	}
	r := ReasonOf(w.Reason)
	return Why{Claim: WaitingClaimOf(*w.Waiter), Reason: &r}
}

// Reason is why a claim waits, or was refused.
type Reason struct {
	Text     string     `json:"text"`
	Position int        `json:"position,omitempty" doc:"Among the waiting claims, from 1."`
	Waiting  int        `json:"waiting,omitempty" doc:"How many claims wait."`
	Since    time.Time  `json:"since,omitzero"`
	Pools    []Shortage `json:"pools,omitempty" nullable:"false"`
	// Dispatcher offers slots to the claim in its turn.
	Dispatcher string      `json:"dispatcher,omitempty" doc:"The instance that offers slots to the waiting claims of the pool, as HOST/INSTANCE."`
	Holders    []HolderRef `json:"holders,omitempty" nullable:"false" doc:"The holders of the slots that are short, up to ten for each pool."`
}

// Shortage is one pool that a claim waits for.
type Shortage struct {
	Pool    string `json:"pool"`
	Wanted  int    `json:"wanted"`
	Limit   int    `json:"limit"`
	Claimed int    `json:"claimed"`
	Short   int    `json:"short" doc:"How many slots are missing; 0 if enough are free and other claims are first."`
	Paused  bool   `json:"paused,omitempty"`
}

// HolderRef names a holder of slots that are short.
type HolderRef struct {
	Pool    string `json:"pool"`
	Claim   string `json:"claim"`
	Host    string `json:"host"`
	RunID   string `json:"run_id,omitempty"`
	StepKey string `json:"step_key,omitempty"`
	Slots   int    `json:"slots"`
}

// ReasonOf returns the record of a reason.
func ReasonOf(r pool.Reason) Reason {
	why := Reason{Text: r.Text, Position: r.Position, Waiting: r.Waiting, Since: r.Since.Truncate(time.Millisecond), Dispatcher: r.Dispatcher}
	for _, s := range r.Pools {
		why.Pools = append(why.Pools, Shortage{
			Pool: s.Pool, Wanted: s.Wanted, Limit: s.Limit, Claimed: s.Claimed, Short: s.Short, Paused: s.Paused,
		})
		for _, h := range s.Holders {
			why.Holders = append(why.Holders, HolderRef{
				Pool: s.Pool, Claim: h.Claim, Host: h.Host, RunID: h.Run, StepKey: h.Step, Slots: h.Slots,
			})
		}
	}
	return why
}

// Revocation is the outcome of a revocation.
type Revocation struct {
	ID       string `json:"id"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Fence    int64  `json:"fence"`
	Forced   bool   `json:"forced"`
	Detail   string `json:"detail" doc:"What happens next."`
}
