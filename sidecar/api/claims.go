package api

// ClaimRequest asks for a claim.
type ClaimRequest struct {
	ID          string            `json:"id,omitempty" maxLength:"256" doc:"The same request with the same id finds the same claim. Generated if left out."`
	Pools       Slots             `json:"pools" doc:"Slots wanted of each pool, all or none."`
	Priority    int               `json:"priority,omitempty" minimum:"-1000" maximum:"1000" doc:"Higher goes first."`
	Wait        *Duration         `json:"wait,omitempty" doc:"How long the claim may wait, at most 8760h (a year); with 0s a claim that does not fit now is refused at once. The server's claim timeout if left out."`
	TTL         *Duration         `json:"ttl,omitempty" doc:"The claim ends unless it is renewed within this time, 1s to 24h; 0s is untimed, and needs an id unless a pid is named. The lease duration if left out, or untimed if a pid is named."`
	PID         int               `json:"pid,omitempty" minimum:"1" doc:"The claim ends with this process. Over the unix socket only, and for processes of the calling user."`
	OnlyKill    bool              `json:"only_kill,omitempty" doc:"The server does not send SIGTERM to the process, since the client does that itself when the claim has ended; it only sends SIGKILL if the process still runs when the grace is over. Only with a pid."`
	ClientToken string            `json:"client_token,omitempty" maxLength:"128" doc:"Shows that the claim is the client's own: a request with the same id and another client_token is refused with id_in_use, and later requests about the claim of a caller without an identity must show it as the header Berth-Client-Token. A random text that stays the same when the request is sent again. Only a hash of it is kept."`
	RunID       string            `json:"run_id,omitempty" maxLength:"256"`
	StepKey     string            `json:"step_key,omitempty" maxLength:"256"`
	Labels      map[string]string `json:"labels,omitempty" maxProperties:"32" doc:"Further facts about the holder. A key and a value have at most 512 bytes each, all of them 8192."`
}

// ClientTokenHeader is the header in which a caller without an identity shows the client_token
// of its claim.
const ClientTokenHeader = "Berth-Client-Token"

// RenewRequest reports that a holder lives, and may change the binding. A field that is left
// out stays, but a process without a ttl removes the ttl.
type RenewRequest struct {
	TTL *Duration `json:"ttl,omitempty" doc:"1s to 24h; 0s is untimed."`
	PID int       `json:"pid,omitempty" minimum:"1" doc:"The claim ends with this process. Over the unix socket only."`
	// OnlyKill goes with PID, and a pid without it removes it.
	OnlyKill bool `json:"only_kill,omitempty" doc:"The server does not send SIGTERM to the process, only SIGKILL when the grace is over. Only with a pid."`
	// Fence of the claim, 0 for any that has the id.
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"Renews only the claim with this fence: one that has the id by now, but another fence, is claim_lost."`
}

// RevokeRequest revokes a claim of any host.
type RevokeRequest struct {
	Force bool `json:"force,omitempty" doc:"Frees the slots at once, although the holder may still run."`
	// Host and Instance identify the claim where several instances hold one id.
	Host     string `json:"host,omitempty" doc:"The host of the claim, with instance: needed only where several instances hold claims of this id."`
	Instance string `json:"instance,omitempty" doc:"The instance of the claim on its host."`
}

// PoolChange changes a pool: a field that is left out stays. In a PUT it is the whole pool: such
// a field has its default, and the limit is needed.
type PoolChange struct {
	Limit         *int      `json:"limit,omitempty" minimum:"-1" maximum:"1000000"`
	LeaseDuration *Duration `json:"lease_duration,omitempty" doc:"5s to 24h, in whole seconds."`
	ReserveAfter  *Duration `json:"reserve_after,omitempty" doc:"0s to 24h, or -1 for never."`
	Paused        *bool     `json:"paused,omitempty"`
}
