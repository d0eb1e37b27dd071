package pool

import (
	"time"
)

// EventType is the kind of an [Event].
type EventType string

// The types of events.
const (
	// PoolChanged: a pool's spec, holders or waiters changed, on any host. See
	// [Engine.SubscribePools].
	PoolChanged EventType = "PoolChanged"
	// ClaimWaiting, and what follows, are claims of this instance. See [Engine.Subscribe].
	ClaimWaiting EventType = "ClaimWaiting"
	ClaimGranted EventType = "ClaimGranted"
	// ClaimRenewed: the lease of a claim that carries a run was renewed, for the first
	// time, or for the first time after a gap, as its Reason says then.
	ClaimRenewed  EventType = "ClaimRenewed"
	ClaimReleased EventType = "ClaimReleased"
	ClaimEnded    EventType = "ClaimEnded" // lost or revoked: see Reason
)

// Event is something that happened to pools or claims.
type Event struct {
	Type EventType `json:"type"`
	// Pools concerned.
	Pools []string `json:"pools"`
	// Claim is the claim's id, empty for a pool; Run and Step are what it is for.
	Claim string `json:"claim,omitempty"`
	Run   string `json:"run,omitempty"`
	Step  string `json:"step,omitempty"`
	// ClaimedBy is the identity that has made the claim, and Bind how it is bound: see [Holder].
	ClaimedBy string `json:"-"`
	Bind      string `json:"-"`
	// Reason why a claim waits, or ended, or was renewed only now.
	Reason string `json:"reason,omitempty"`
	// Lagged is set if events before this one were dropped, because the reader was
	// too slow: read the state again.
	Lagged bool `json:"lagged,omitempty"`
}

// Observer is notified of the progress of a request, by the goroutine that plans: its methods
// must not block.
type Observer interface {
	// Waits is called when the request has to wait, and may be called again.
	Waits(since time.Time)
	// Written is called on the first of the observers of a transaction that has granted their
	// requests, before the requests are answered. It is not called for a grant by the dispatcher
	// of another instance, for one without a write, and for one whose answer was lost.
	Written(w Write)
}

// Write is a transaction that has granted claims.
type Write struct {
	Sent, Answered time.Time
	Revision       int64
	// Grants and Releases are how many the transaction has, of any claims.
	Grants, Releases int
	// Observers are those of the requests that it has granted.
	Observers []Observer
}
