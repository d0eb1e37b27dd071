package server

// Keys of what is logged.
const (
	keyMethod = "method"
	keyPath   = "path"
	keyStatus = "status"
	keyTook   = "took"
	keyWho    = "who"
	keyFrom   = "from"
	keyError  = "error"
	keyStack  = "stack"
	keyFiles  = "files"
	keyConns  = "connections"

	// What identifies a request: see [LogArgs].
	keyRequest = "request_id"
	keyTrace   = "trace_id"
)
