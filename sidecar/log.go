package sidecar

// Keys of what is logged.
//
// Levels: debug is each request and each claim's end; info is what an operator
// did, and requests that the guard refused; warn is a claim's holder that had to
// be stopped, and etcd that does not answer; error is a fault.
const (
	keyMethod   = "method"
	keyPath     = "path"
	keyStatus   = "status"
	keyCode     = "code"
	keyTook     = "took"
	keyFrom     = "from"
	keyError    = "error"
	keyClaim    = "claim"
	keyPool     = "pool"
	keyPID      = "pid"
	keyFile     = "file"
	keyAddress  = "address"
	keyReason   = "reason"
	keyClaims   = "claims"
	keyStack    = "stack"
	keyMode     = "mode"
	keyDuration = "within"
	keyOp       = "operation"
	keyHost     = "host"
	keyForce    = "force"
	keyLimit    = "limit"
	keyLease    = "lease_duration"
	keyReserve  = "reserve_after"
	keyPaused   = "paused"

	keyRun       = "run"
	keyFence     = "fence"
	keyMaxRuns   = "max_concurrent_runs"
	keyTagLimits = "tag_limits"
	keyRuns      = "runs"
	keyEvents    = "events"
)
