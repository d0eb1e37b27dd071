// Package engine makes the claims of one instance: it connects the state machines of claims (pool/owner) and of the
// dispatcher (pool/dispatch) to etcd, to leases and to callers.
//
// One goroutine, the loop, owns all state. Callers, answers of etcd and watches put functions into its inbox. After each
// round it delivers what has become of claims, and sends what the state machines want to send: each half of the
// writer, the dispatcher and the succession have one transaction under way at a time.
package engine
