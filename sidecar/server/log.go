package server

// Keys of what is logged.
const (
	keyMethod = "method"
	keyPath   = "path"
	keyStatus = "status"
	keyTook   = "took"
	keyFrom   = "from"
	keyError  = "error"
	keyStack  = "stack"
)
