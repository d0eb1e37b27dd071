package enginetest

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Opener makes the engine that is judged.
type Opener interface {
	Engine(cfg Config) Engine
	Registry(b store.Backend, keys store.Keys) Registry
	Revoker(b store.Backend, keys store.Keys) Revoker
	Read(ctx context.Context, b store.Backend, keys store.Keys) (Reader, error)
	// Stuck returns the keys on some leases that nothing would ever delete, because etcd does not have the lease.
	Stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]pool.Violation, error)
	Follower(b store.Backend, keys store.Keys) Follower

	// Known returns the behaviors that this engine is known not to have, by name, with the reason.
	Known() map[string]string
	Damager
}

// Value is a kind of value that can be damaged.
type Value int

const (
	// SlotValue is an additional slot that no claim has.
	SlotValue Value = iota
	// SpecValue is the spec.
	SpecValue
	// WaiterValue is an additional claim that waits, of the highest priority.
	WaiterValue
)

// Damager does to the keys of an engine's own layout what no engine does.
type Damager interface {
	// Damage has a value of a pool be one that can't be read, and returns its key.
	Damage(ctx context.Context, b store.Backend, keys store.Keys, pool string, what Value) (key string, err error)
	// Erase deletes keys of a claim without any compare, as etcdctl does: at most n of them, all if n is 0.
	Erase(ctx context.Context, b store.Backend, keys store.Keys, claim string, n int) error
	// Orphan copies a claim's slot of a pool to another slot, on a lease, under an id that no instance knows.
	Orphan(ctx context.Context, b store.Backend, keys store.Keys, claim, id, pool string, on store.LeaseID) error
	// Queued counts the keys in etcd that are there only because claims wait, or waited.
	Queued(ctx context.Context, b store.Backend, keys store.Keys) (int, error)
}

// Leases provides leases, as a lease.Keeper does.
type Leases interface {
	Acquire(d time.Duration, keys int) (store.LeaseID, bool)
	Release(id store.LeaseID, keys int)
	Valid(id store.LeaseID) bool
	Suspect(ids ...store.LeaseID)
	Trouble() error
}

// Config is what an engine is made of.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host and Instance name the instance.
	Host, Instance string
	// Leases are those of claims, and WaiterLeases those of what ends with the process within 10 s.
	Leases, WaiterLeases Leases
	// PollInterval is how often a waiting claim is checked without an event; 0 is seldom.
	PollInterval, PollJitter time.Duration
	Logger                   hclog.Logger
	Registerer               prometheus.Registerer
}
