package api

// Types of events.
const (
	// EventHello is the first of each stream: read the state now.
	EventHello = "hello"
	// EventLagged means that events before it were dropped: read the state again.
	EventLagged = "lagged"
	// EventStopping means that the server is about to stop.
	EventStopping = "stopping"
	// EventPoolChanged: a pool's spec, holders or waiters changed, on any host.
	EventPoolChanged = "PoolChanged"
	// EventClaimWaiting and what follows are claims made through this server.
	EventClaimWaiting  = "ClaimWaiting"
	EventClaimGranted  = "ClaimGranted"
	EventClaimReleased = "ClaimReleased"
	// EventClaimEnded: the claim is no longer valid, or its wait without a connection has
	// failed; Code says why.
	EventClaimEnded = "ClaimEnded"
)

// Events that end a stream of a run's events, as [EventStopping] does.
const (
	// EventRunEnd is the last: the run has ended, and its events were sent.
	EventRunEnd = "end"
	// EventRunFailed is the last, too: the events can't be read, and its data is a
	// [Problem].
	EventRunFailed = "failed"
)

// Event is something that happened to pools or to claims of this server.
type Event struct {
	Type  string   `json:"type"`
	Pools []string `json:"pools,omitempty"`
	Claim string   `json:"claim,omitempty"`
	// Status of the claim that was asked for, in a hello: held, waiting, ended or
	// unknown.
	Status string `json:"status,omitempty"`
	// Code and Reason say why a claim ended; Reason also why one waits.
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Host and Instance of the server, in a hello.
	Host     string `json:"host,omitempty"`
	Instance string `json:"instance,omitempty"`
}
