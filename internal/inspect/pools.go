package inspect

import (
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Pool is a pool as it is now.
type Pool struct {
	Name          string   `json:"name"`
	Status        string   `json:"status" enum:"open,closed,paused,deleted,unreadable" doc:"open grants claims. closed has limit 0. deleted has no spec while slots of it are held. unreadable has a value in etcd that can't be read, and grants nothing."`
	Limit         int      `json:"limit" doc:"Slots; -1 is unlimited, 0 closed."`
	Claimed       int      `json:"claimed" doc:"Slots that are held. Can be above the limit after the limit was lowered."`
	Waiting       int      `json:"waiting" doc:"Claims that wait."`
	LeaseDuration Duration `json:"lease_duration" doc:"How long the slots of a holder that died stay taken."`
	ReserveAfter  Duration `json:"reserve_after" doc:"How long a claim waits until free slots are reserved for it; 0s is at once, -1 never."`
	Paused        bool     `json:"paused"`
	Survives      Duration `json:"survives" doc:"About how long etcd may be unavailable before holders are stopped, in whole seconds."`
	Dispatcher    string   `json:"dispatcher,omitempty" doc:"The instance that offers slots to the waiting claims, as HOST/INSTANCE; only while claims wait."`
	Deleted       bool     `json:"deleted,omitempty" doc:"The pool was deleted while slots of it were held."`
	Problem       string   `json:"problem,omitempty" doc:"Why the pool grants nothing, if a value of it can't be read."`
	Revision      int64    `json:"-"` // of the settings, which is the ETag over HTTP; 0 if the pool was deleted
}

// PoolOf returns the record of a pool. Of one that can't be read the settings are left out:
// an instance may remember older ones.
func PoolOf(s pool.Status) Pool {
	if s.Problem != "" {
		s.Spec = pool.Spec{}
	}
	return Pool{
		Name: s.Name, Status: poolState(s), Limit: s.Limit, Claimed: s.Claimed, Waiting: s.Waiting,
		LeaseDuration: Duration(s.LeaseDuration), ReserveAfter: Duration(s.ReserveAfter),
		Paused: s.Paused, Survives: Duration(Survives(s.LeaseDuration)), Deleted: s.Deleted, Problem: s.Problem,
		Dispatcher: s.Dispatcher, Revision: s.SpecRevision,
	}
}

// DispatcherText says which instance, as HOST/INSTANCE, offers slots to the waiting claims of a pool, or that there is none.
func DispatcherText(dispatcher string) string {
	if dispatcher == "" {
		return "none: " + servedAlone
	}
	return dispatcher + " offers slots to the waiting claims"
}

// States of a pool, in the order in which they hide each other.
const (
	PoolUnreadable = "unreadable"
	PoolDeleted    = "deleted"
	PoolPaused     = "paused"
	PoolClosed     = "closed"
	PoolOpen       = "open"
)

func poolState(s pool.Status) string {
	switch {
	case s.Problem != "":
		return PoolUnreadable
	case s.Deleted:
		return PoolDeleted
	case s.Paused:
		return PoolPaused
	case s.Limit == pool.Closed:
		return PoolClosed
	}
	return PoolOpen
}

// Survives returns about how long etcd may be unavailable, with leases of a
// duration, before holders are stopped.
func Survives(leaseDuration time.Duration) time.Duration {
	return lease.Survives(leaseDuration, lease.StopGrace(leaseDuration)).Round(time.Second)
}

// PoolDetail is a pool with its holders and waiters.
type PoolDetail struct {
	Pool
	Holders []Holder `json:"holders" nullable:"false" doc:"The earliest grant first; at most 1000."`
	Waiters []Waiter `json:"waiters" nullable:"false" doc:"In the order in which they wait; at most 1000."`

	HoldersLeftOut  int `json:"holders_left_out,omitempty" doc:"How many holders are not listed. GET /v1/claims?pool= lists all."`
	WaitersLeftOut  int `json:"waiters_left_out,omitempty" doc:"How many waiters are not listed."`
	ExpiriesUnknown int `json:"expiries_unknown,omitempty" doc:"For how many of the listed holders etcd did not report in time when their lease ends."`
}

// Holder is a claim that holds slots of a pool.
type Holder struct {
	Claim     string            `json:"claim"`
	Host      string            `json:"host"`
	Instance  string            `json:"instance"`
	ClaimedBy string            `json:"claimed_by,omitempty"`
	RunID     string            `json:"run_id,omitempty"`
	StepKey   string            `json:"step_key,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots" doc:"Of this pool."`
	Since     time.Time         `json:"since"`
	ExpiresIn Duration          `json:"expires_in,omitzero" doc:"When its lease ends unless it is renewed. Left out if the lease has ended, or if that is not known: expiries_unknown counts those."`
	Fence     int64             `json:"fence"`
}

// Waiter is a claim that waits for slots of a pool.
type Waiter struct {
	Claim     string            `json:"claim"`
	Host      string            `json:"host"`
	Instance  string            `json:"instance"`
	ClaimedBy string            `json:"claimed_by,omitempty"`
	RunID     string            `json:"run_id,omitempty"`
	StepKey   string            `json:"step_key,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots" doc:"Of this pool."`
	Position  int               `json:"position"`
	Priority  int               `json:"priority"`
	Since     time.Time         `json:"since"`
	Reason    string            `json:"reason"`
}

// MaxListed bounds the holders, and the waiters, that a pool is shown with.
const MaxListed = 1000

// LeaseEnds is how long leases live unless they are renewed, as far as it is known.
type LeaseEnds map[store.LeaseID]time.Duration

// PoolDetailOf returns the record of a pool with its first [MaxListed] holders and
// waiters.
func PoolDetailOf(p pool.Detail, ends LeaseEnds) PoolDetail {
	holders, waiters := p.Holders[:min(len(p.Holders), MaxListed)], p.Waiters[:min(len(p.Waiters), MaxListed)]
	d := PoolDetail{
		Pool:    PoolOf(p.Status),
		Holders: make([]Holder, len(holders)), HoldersLeftOut: len(p.Holders) - len(holders),
		Waiters: make([]Waiter, len(waiters)), WaitersLeftOut: len(p.Waiters) - len(waiters),
	}
	for i, h := range holders {
		left, known := ends[h.Lease]
		if !known {
			d.ExpiriesUnknown++
		}
		d.Holders[i] = Holder{
			Claim: h.Claim, Host: h.Host, Instance: h.Instance, ClaimedBy: h.ClaimedBy, RunID: h.Run, StepKey: h.Step, PID: h.PID,
			Labels: h.Labels, Slots: h.Slots, Since: h.Since, ExpiresIn: Duration(left), Fence: int64(h.Fence),
		}
	}
	for i, w := range waiters {
		d.Waiters[i] = Waiter{
			Claim: w.Claim, Host: w.Host, Instance: w.Instance, ClaimedBy: w.ClaimedBy, RunID: w.Run, StepKey: w.Step, PID: w.PID,
			Labels: w.Labels, Slots: w.Slots, Position: w.Position, Priority: w.Priority, Since: w.Since.Truncate(time.Millisecond), Reason: w.Reason,
		}
	}
	return d
}
