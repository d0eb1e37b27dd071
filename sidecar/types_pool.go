package sidecar

// PoolChange creates a pool or changes it. What is left out stays, or gets its
// default in a new pool, which needs a limit.
type PoolChange struct {
	Limit         *int      `json:"limit,omitempty" minimum:"-1" maximum:"1000000"`
	LeaseDuration *Duration `json:"lease_duration,omitempty" doc:"5s to 24h, in whole seconds."`
	ReserveAfter  *Duration `json:"reserve_after,omitempty" doc:"0s to 24h, or -1 for never."`
	Paused        *bool     `json:"paused,omitempty"`
}
