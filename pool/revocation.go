package pool

import "github.com/berthhq/berth/internal/grace"

import (
	"github.com/berthhq/berth/internal/store"
)

// Revocation is the result of a revocation.
type Revocation struct {
	Claim    string
	Host     string
	Instance string
	Fence    store.Fence
	// Forced is set if the slots were freed although the holder may still run, and Unnotified
	// if etcd is full then, so that its host can't be notified.
	Forced, Unnotified bool
}

// May returns why a caller may not do something to a claim with those slots; nil if it may.
type May func(of Holder, slots map[string]int) error

// RevokeGrace is how long after a revocation slots are kept for a holder to stop that is not supervised.
const RevokeGrace = grace.Revoke
