package executor

// Keys of what is logged. Info is an attempt that ends as its time to live says, warn is one
// that is lost otherwise, error is a fault.
const (
	keyError    = "error"
	keyRun      = "run"
	keyFence    = "fence"
	keyClaim    = "claim"
	keyReason   = "reason"
	keyDuration = "within"
	keyEvents   = "events"
)
