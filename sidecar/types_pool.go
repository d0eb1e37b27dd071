package sidecar

import "time"

// Pool is a pool as it is now.
type Pool struct {
	Name          string   `json:"name"`
	Limit         int      `json:"limit" doc:"Slots; -1 is unlimited, 0 closed."`
	Claimed       int      `json:"claimed" doc:"Slots that are held; can be above the limit after it was lowered."`
	Waiting       int      `json:"waiting" doc:"Claims in line."`
	LeaseDuration Duration `json:"lease_duration" doc:"How long a dead holder's slots stay taken."`
	ReserveAfter  Duration `json:"reserve_after" doc:"The age at which a waiter's room is kept together; 0s is at once, -1 never."`
	Paused        bool     `json:"paused"`
	Survives      Duration `json:"survives" doc:"About how long etcd may be away without a holder being stopped."`
	Deleted       bool     `json:"deleted,omitempty" doc:"The pool is gone, and slots of it are still held."`
	Problem       string   `json:"problem,omitempty" doc:"Why the pool grants nothing, if a value of it can't be read."`
}

// PoolDetail is a pool with who holds it and who waits.
type PoolDetail struct {
	Pool
	Holders []Holder `json:"holders" nullable:"false" doc:"First come first; at most 1000."`
	Waiters []Waiter `json:"waiters" nullable:"false" doc:"In line; at most 1000."`

	HoldersLeftOut  int `json:"holders_left_out,omitempty" doc:"How many holders there are beyond those that are shown. GET /v1/claims?pool= lists all."`
	WaitersLeftOut  int `json:"waiters_left_out,omitempty" doc:"How many waiters there are beyond those that are shown."`
	ExpiriesUnknown int `json:"expiries_unknown,omitempty" doc:"Of how many of the holders that are shown etcd did not tell in time when their leases end."`
}

// Holder is a claim that holds slots of a pool.
type Holder struct {
	Claim     string            `json:"claim"`
	Host      string            `json:"host"`
	Instance  string            `json:"instance"`
	RunID     string            `json:"run_id,omitempty"`
	StepKey   string            `json:"step_key,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots" doc:"Of this pool."`
	Since     time.Time         `json:"since"`
	ExpiresIn Duration          `json:"expires_in,omitzero" doc:"What is left of its lease unless it is renewed. Left out if it is gone, or not known: expiries_unknown counts those."`
	Fence     int64             `json:"fence"`
}

// Waiter is a claim in line.
type Waiter struct {
	Claim    string            `json:"claim"`
	Host     string            `json:"host"`
	Instance string            `json:"instance"`
	RunID    string            `json:"run_id,omitempty"`
	StepKey  string            `json:"step_key,omitempty"`
	PID      int               `json:"pid,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Slots    int               `json:"slots" doc:"Of this pool."`
	Position int               `json:"position"`
	Priority int               `json:"priority"`
	Since    time.Time         `json:"since"`
	Reason   string            `json:"reason"`
}

// PoolChange creates a pool or changes it. What is left out stays, or gets its
// default in a new pool, which needs a limit.
type PoolChange struct {
	Limit         *int      `json:"limit,omitempty" minimum:"-1" maximum:"1000000"`
	LeaseDuration *Duration `json:"lease_duration,omitempty" doc:"5s to 24h, in whole seconds."`
	ReserveAfter  *Duration `json:"reserve_after,omitempty" doc:"0s to 24h, or -1 for never."`
	Paused        *bool     `json:"paused,omitempty"`
}

// Host is an instance of berth that is seen now.
type Host struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Role     string    `json:"role,omitempty"`
	Version  string    `json:"version,omitempty"`
	PID      int       `json:"pid,omitempty"`
	State    string    `json:"state,omitempty" enum:"working,draining,drained,stopping,stopped" doc:"Of a worker: whether it works; draining and stopping while it has something still."`
	Capacity int       `json:"capacity" doc:"How many step instances it runs at a time; 0 of one that runs none."`
	Queues   []string  `json:"queues,omitempty" nullable:"false" doc:"Queues that it takes step instances from; left out of one that takes none by itself."`
	Since    time.Time `json:"since,omitzero" doc:"When it took its name."`

	ActiveSteps int  `json:"active_steps" doc:"Step instances that it runs now, or that were taken through it."`
	ActiveRuns  int  `json:"active_runs" doc:"Runs that were started through it, and run now."`
	Leader      bool `json:"leader,omitempty" doc:"It is the coordinator that admits runs."`

	Gone     bool     `json:"gone,omitempty" doc:"It is not seen any more, and has something that is its own still. Nothing else is known of it."`
	WorkLeft Duration `json:"work_left,omitzero" doc:"Of one that is gone: how long that stays its own unless it comes back. Then it is lost, and tried again where there are retries left."`
}

// List is what lists are answered as.
type List[T any] struct {
	Items []T    `json:"items" nullable:"false"`
	Next  string `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter cursor."`
}
