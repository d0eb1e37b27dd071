package api

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

// PoolChange creates a pool or changes it. What is left out stays, or gets its
// default in a new pool, which needs a limit.
type PoolChange struct {
	Limit         *int      `json:"limit,omitempty" minimum:"-1" maximum:"1000000"`
	LeaseDuration *Duration `json:"lease_duration,omitempty" doc:"5s to 24h, in whole seconds."`
	ReserveAfter  *Duration `json:"reserve_after,omitempty" doc:"0s to 24h, or -1 for never."`
	Paused        *bool     `json:"paused,omitempty"`
}
