package sidecar

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Bounds of what a claim over HTTP can ask for.
const (
	// MinTTL leaves time for a renewal to be tried twice.
	MinTTL = time.Second
	// MaxTTL bounds how long a dead holder that names no process can block
	// others.
	MaxTTL = 24 * time.Hour
)

// Slots is how many slots of each pool a claim takes.
type Slots map[string]int

// UnmarshalJSON reads slots. Its error names the pool.
func (s *Slots) UnmarshalJSON(data []byte) error {
	var m map[string]int
	err := json.Unmarshal(data, &m)
	if err == nil {
		*s = m
		return nil
	}
	var each map[string]json.RawMessage
	if json.Unmarshal(data, &each) != nil {
		return &json.UnmarshalTypeError{Value: kindOf(data), Type: slotsType}
	}
	for _, name := range slices.Sorted(maps.Keys(each)) {
		var n int
		if json.Unmarshal(each[name], &n) != nil {
			return &json.UnmarshalTypeError{Value: kindOf(each[name]), Type: reflect.TypeFor[int](), Field: name}
		}
	}
	return err
}

var slotsType = reflect.TypeFor[Slots]()

// Schema describes slots in the OpenAPI document.
func (Slots) Schema(huma.Registry) *huma.Schema {
	least, most := 1.0, float64(pool.MaxLimit)
	pools := pool.MaxPools
	return &huma.Schema{
		Type:                 huma.TypeObject,
		Description:          "Slots by pool.",
		AdditionalProperties: &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: &least, Maximum: &most},
		MaxProperties:        &pools,
		Examples:             []any{map[string]int{"db": 2}},
	}
}

// ClaimRequest asks for a claim.
type ClaimRequest struct {
	ID       string            `json:"id,omitempty" maxLength:"128" doc:"Asking again with the same id and the same request finds the same claim. Made up if left out."`
	Pools    Slots             `json:"pools" doc:"Slots wanted of each pool, all or none."`
	Priority int               `json:"priority,omitempty" minimum:"-1000" maximum:"1000" doc:"Higher goes first."`
	Wait     *Duration         `json:"wait,omitempty" doc:"Bounds the time in line, at most 8760h (a year); 0s refuses at once what does not fit now. The server's claim timeout if left out."`
	TTL      *Duration         `json:"ttl,omitempty" doc:"The claim ends unless it is renewed within this time, 1s to 24h; 0s is untimed, and needs an id unless a pid is named. The lease duration if left out, or untimed if a pid is named."`
	PID      int               `json:"pid,omitempty" minimum:"1" doc:"The claim ends with this process. Over the unix socket only, and for processes of the asking user."`
	OnlyKill bool              `json:"only_kill,omitempty" doc:"The process is not told to stop (SIGTERM), since the asker does that itself when it hears that the claim has ended; it is only killed if it still runs when the grace is over. Beside a pid only."`
	Asker    string            `json:"asker,omitempty" maxLength:"128" doc:"Tells two apart that ask for the same with one id: who has another asker is refused with id_in_use. A random text that stays the same when asking again."`
	RunID    string            `json:"run_id,omitempty" maxLength:"128"`
	StepKey  string            `json:"step_key,omitempty" maxLength:"128"`
	Labels   map[string]string `json:"labels,omitempty" maxProperties:"32" doc:"What else is worth knowing about the holder."`
}

// RenewRequest says that a holder lives, and may change how that is known from
// now on. What is left out stays, but to name a process drops a ttl that is not
// named beside it.
type RenewRequest struct {
	TTL *Duration `json:"ttl,omitempty" doc:"1s to 24h; 0s is untimed."`
	PID int       `json:"pid,omitempty" minimum:"1" doc:"The claim ends with this process. Over the unix socket only."`
	// OnlyKill goes with PID, and is dropped by a pid without it.
	OnlyKill bool `json:"only_kill,omitempty" doc:"The process is not told to stop, only killed when the grace is over. Beside a pid only."`
	// Fence of the claim that is meant, 0 for whichever has the id.
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"Renews only the claim with this fence: one that has the id by now, but another fence, is claim_lost."`
}

// RevokeRequest takes a claim of any host back.
type RevokeRequest struct {
	Force bool `json:"force,omitempty" doc:"Frees the slots at once, although the holder may still run."`
	// Host and Instance say which claim is meant where several instances hold one id.
	Host     string `json:"host,omitempty" doc:"The host of the claim, with instance: needed only where several instances hold claims of this id."`
	Instance string `json:"instance,omitempty" doc:"The instance of the claim on its host."`
}

// States of a claim.
const (
	StateHeld      = "held"
	StateWaiting   = "waiting"
	StateReleasing = "releasing"
)

// Claim is a claim that is held or waits, here or elsewhere.
type Claim struct {
	ID       string            `json:"id"`
	State    string            `json:"state" enum:"held,waiting,releasing"`
	Pools    Slots             `json:"pools"`
	Priority int               `json:"priority"`
	Host     string            `json:"host"`
	Instance string            `json:"instance"`
	RunID    string            `json:"run_id,omitempty"`
	StepKey  string            `json:"step_key,omitempty"`
	PID      int               `json:"pid,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`

	// Fence is larger for every later holder of a slot. 0 while it waits.
	Fence int64 `json:"fence,omitempty" doc:"Larger for every later holder of a slot."`
	// ClaimedAt is when a claim was granted, QueuedAt since when one waits, by
	// the wall clock of its host.
	ClaimedAt time.Time `json:"claimed_at,omitzero"`
	QueuedAt  time.Time `json:"queued_at,omitzero"`

	// What follows is known of claims held through this server only.

	// TrustedFor is for how many milliseconds after the request was sent the
	// claim can be believed to be held unless it is renewed; TrustedUntil is the
	// same by the server's wall clock, which can be set. 0 and none say that it
	// can't be believed, nil that this server does not know.
	TrustedFor   *int64    `json:"trusted_for,omitempty" doc:"Milliseconds from the sending of the request for which the claim can be believed to be held unless it is renewed; 0 if it can't. Left out of claims that wait or are not held through this server: only their own knows."`
	TrustedUntil time.Time `json:"trusted_until,omitzero"`
	// Grace is how many milliseconds a holder should take to stop at most: one
	// that needs them must begin that much before trust ends.
	// It is a sixth of the ttl or of the lease's duration, whichever is less.
	Grace int64 `json:"grace_ms,omitempty" doc:"Milliseconds that a holder should take to stop at most: it must begin that much before trust ends. A sixth of the ttl or of the lease duration, whichever is less, and at most 10000."`
	// LeaseDuration is how long the slots stay taken if the server dies.
	LeaseDuration Duration  `json:"lease_duration,omitzero"`
	TTL           *Duration `json:"ttl,omitempty" doc:"Within which the claim must be renewed; 0s if it need not be."`

	// Of a claim that waits.

	Position int    `json:"position,omitempty"`
	Reason   string `json:"reason,omitempty"`

	// until is when trust ends, on this machine's clock; set by a Client.
	until time.Duration
	// ofRun tells that it holds the slots of a run or a step instance, with which they
	// are given back.
	ofRun bool
}

// Trust tells for how long from now a claim that a [Client] answered can be
// believed to be held, on a clock that counts through suspend, and how long its
// holder should take to stop at most. It is 0 from then on, and for a claim that
// is not held through that client's server.
func (c *Claim) Trust() (left, grace time.Duration) {
	left = max(0, c.until-lease.BootClock().Now())
	if c.until == 0 || left == 0 {
		return 0, 0
	}
	return left, milliseconds(c.Grace)
}

// Revocation is what became of the wish to have a claim back.
type Revocation struct {
	ID       string `json:"id"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Fence    int64  `json:"fence"`
	Forced   bool   `json:"forced"`
	Detail   string `json:"detail" doc:"What to expect now."`
}

// Why tells what a claim of any host holds, or why it waits.
type Why struct {
	Claim  Claim   `json:"claim"`
	Reason *Reason `json:"reason,omitempty" doc:"Of a claim that waits."`
}

// Reason tells why a claim waits, or was refused.
type Reason struct {
	Text     string      `json:"text"`
	Position int         `json:"position,omitempty" doc:"In line, from 1 on."`
	Line     int         `json:"line,omitempty" doc:"How many wait in all."`
	Since    time.Time   `json:"since,omitzero"`
	Pools    []Shortage  `json:"pools,omitempty" nullable:"false"`
	Holders  []HolderRef `json:"holders,omitempty" nullable:"false" doc:"Who holds what is short, up to ten a pool."`
}

// Shortage is one pool that a claim waits for.
type Shortage struct {
	Pool    string `json:"pool"`
	Wanted  int    `json:"wanted"`
	Limit   int    `json:"limit"`
	Claimed int    `json:"claimed"`
	Short   int    `json:"short" doc:"Slots that are missing; 0 if there are enough, but others are first."`
	Paused  bool   `json:"paused,omitempty"`
}

// HolderRef names a holder of what is short.
type HolderRef struct {
	Pool    string `json:"pool"`
	Claim   string `json:"claim"`
	Host    string `json:"host"`
	RunID   string `json:"run_id,omitempty"`
	StepKey string `json:"step_key,omitempty"`
	Slots   int    `json:"slots"`
}
