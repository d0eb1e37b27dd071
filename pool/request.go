package pool

import (
	"maps"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Bounds of what a claim can ask for.
const (
	// MaxPools is how many pools a claim can name: each costs up to three compares, and etcd takes 128 a transaction.
	MaxPools = 32
	// WaiterTTL is how long the claims of an instance that wait outlive it.
	WaiterTTL = 10 * time.Second
	// MaxPriority and MinPriority bound a priority; higher goes first.
	MaxPriority, MinPriority = 1000, -1000
	// MaxLabels is how many labels a holder can carry.
	MaxLabels = 32
	// maxLabelBytes bounds all labels of a holder together.
	maxLabelBytes = 8 << 10
	// MaxID bounds the ids of claims and runs, and the names of the run and the step of a holder,
	// in bytes.
	MaxID = 256
	// MaxLabel bounds the key and the value of a label, in bytes.
	MaxLabel = 512
	// MaxText bounds other names, in bytes.
	MaxText = 128
	// maxPoolName bounds a pool's name, in bytes.
	maxPoolName = 63
)

// Request asks for a claim.
type Request struct {
	// ID of the claim: asking twice with one id makes one claim.
	ID string
	// Chosen is set if a user has chosen the id: no two instances hold claims of it then.
	Chosen bool
	// Slots wanted of each pool, all or none. At least one pool, at most
	// [MaxPools]; each from 1 slot on.
	Slots map[string]int
	// Priority from [MinPriority] to [MaxPriority]; higher goes first.
	Priority int
	// Holder to record. Host and Instance are filled in by the engine.
	Holder Holder
	// Wait bounds the time in the wait queue; 0 refuses at once what does not fit now.
	Wait time.Duration
	// Extra goes into the transaction of the claim.
	Extra store.Extra
	// Bridge keeps the claim for another instance that may take it over. It is not
	// reported as lost if its slots are gone.
	Bridge bool
	// Sole has the claim wait in the queue only while no other claim of the same run, step
	// and bind does, of any instance: they are for one thing, and only one of them can get
	// it. Since, if it is not 0, is the revision from which such a thing has waited: its
	// place in the queue is the same whichever claim waits for it.
	Sole  bool
	Since int64
	// Helps has a sole claim wait in the queue only while no other instance has one there, as far as was read in the last
	// second: the thing belongs to another instance.
	Helps bool
	// Place, if it is not nil, is taken before slots are, and returned if the claim has to
	// wait. The caller returns it after the claim has ended.
	Place *Place
	// Observer, if it is not nil, is notified of the progress of the request.
	Observer Observer
}

// Validate refuses what can't be asked for, whatever pools there are.
func (r *Request) Validate() error {
	if err := r.validate(); err != nil {
		return err
	}
	return r.Holder.validateLines()
}

// validate refuses what no claim can be. Records of claims that were made before may have
// texts that are refused now: they are read as they are, or their pools would grant nothing.
func (r *Request) validate() error {
	if err := ValidateID(r.ID); err != nil {
		return err
	}
	if err := ValidateSlots(r.Slots); err != nil {
		return err
	}
	switch {
	case r.Priority < MinPriority || r.Priority > MaxPriority:
		return problem.Field("priority", "%d is out of range: use %d to %d", r.Priority, MinPriority, MaxPriority)
	case r.Wait < 0:
		return problem.Field("wait", "%s is negative: use any time from 0s (do not wait) on", r.Wait)
	}
	return r.Holder.validate()
}

// ValidateSlots refuses what can't be asked of pools, whatever pools there are.
func ValidateSlots(slots map[string]int) error {
	switch {
	case len(slots) == 0:
		return problem.Field("pools", "it names no pool: name at least one")
	case len(slots) > MaxPools:
		return problem.Field("pools", "%d pools are too many for one claim: use at most %d", len(slots), MaxPools)
	}
	for _, name := range sortedKeys(slots) {
		if err := ValidateName(name); err != nil {
			return err
		}
		if n := slots[name]; n < 1 || n > MaxLimit {
			return problem.Field("pools."+name, "%d slots can't be claimed: use 1 to %d", n, MaxLimit)
		}
	}
	return nil
}

// SameAs reports whether two requests of one id ask for the same claim.
func (r *Request) SameAs(o *Request) bool {
	return maps.Equal(r.Slots, o.Slots) && r.Priority == o.Priority && r.Holder.sameAs(&o.Holder)
}

// Need is how many slots of one pool a claim takes.
type Need struct {
	Pool string
	N    int
}

// needsOf returns what slots asks for, by the names of the pools.
func needsOf(slots map[string]int) (needs []Need) {
	for _, name := range sortedKeys(slots) {
		needs = append(needs, Need{name, slots[name]})
	}
	return needs
}
