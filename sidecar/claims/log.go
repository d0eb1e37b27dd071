package claims

// Keys of log lines. The level is info for a claim that ends according to its binding, warn for a
// holder that has to be stopped, and error for a fault.
const (
	keyError    = "error"
	keyClaim    = "claim"
	keyPID      = "pid"
	keyFile     = "file"
	keyReason   = "reason"
	keyDuration = "within"
)
