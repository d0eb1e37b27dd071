package claims

// Keys of what is logged. Info is a claim that ends as its binding says, warn is a holder
// that has to be stopped, error is a fault.
const (
	keyError    = "error"
	keyClaim    = "claim"
	keyPID      = "pid"
	keyFile     = "file"
	keyReason   = "reason"
	keyDuration = "within"
)
