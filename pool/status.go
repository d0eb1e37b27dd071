package pool

// Status is the state of a pool.
type Status struct {
	Name string
	Spec
	// Claimed slots, of all claims; can be above the limit after it was
	// lowered.
	Claimed int
	// Waiting claims.
	Waiting int
	// Deleted is set if the pool's spec is gone while its slots are held.
	Deleted bool
	// Revision at which this was read, and SpecRevision of the spec.
	Revision, SpecRevision int64
	// LimitSince is the revision since which the limit holds.
	LimitSince int64
	// Dispatcher is the instance that grants the claims that wait: HOST/INSTANCE, empty
	// while there is none.
	Dispatcher string
	// Problem says why the pool grants nothing, if a value of it can't be read.
	Problem string
}

// open reports whether the pool grants claims that fit.
func (s *Status) open() bool {
	return !s.Paused && s.Limit != Closed && !s.Deleted && s.Problem == ""
}

// Detail is a pool with its holders and waiters.
type Detail struct {
	Status
	Holders []HolderStatus
	Waiters []WaiterStatus
}
