package pool

// Capacity is what [Admit] needs to know of a pool.
type Capacity struct {
	// Limit of slots, or [Unlimited].
	Limit int
	// Used slots; may exceed the limit after it was lowered.
	Used int
	// Open pools grant. Unknown, paused and unreadable ones do not.
	Open bool
}

// PoolNeed is how many slots a waiter needs of the pool with that index.
type PoolNeed struct{ Pool, N int }

// Waiting is what [Admit] needs to know of a waiter.
type Waiting struct {
	Needs []PoolNeed
	// Mine is set for waiters of this instance, which are granted here; others only keep their place.
	Mine bool
	// By identifies the instance: 0 is this one.
	By int
	// Reserve keeps together what the waiter needs while it does not fit.
	Reserve bool
	// Exclusive waiters have lost one race after the other: while one fits and
	// has not gone, nobody behind it gets into its pools.
	Exclusive bool
	// Yielded waiters are of an instance that kept slots from others and was silent: see
	// [otherInstance].
	Yielded bool
}

// Decision is the answer of [Admit]: indexes into the waiters it was given, in
// order.
type Decision struct {
	// Grants are waiters of this instance that may take their slots now.
	Grants []int
	// Fits are waiters of others that may: their slots are kept for them.
	Fits []int
	// Keeps are waiters of others that do not fit and have what they need reserved.
	Keeps []int
	// Free is the free slots of each pool after all waiters, and Reserved says of
	// each pool whether a waiter has reserved in it.
	Free     []int
	Reserved []bool
}

// Admit decides which waiters may take slots now. It is pure, and all instances
// that see the same capacities and waiters decide the same. Order depends on it;
// safety does not: each grant is committed under compares of its own.
//
// For each waiter, first to last:
//  1. It takes nothing and keeps nothing if it can't be granted as things are,
//     or if it has yielded.
//  2. If it fits in all its pools, its slots are taken: it is granted if it is
//     ours, and else keeps its place. One that is exclusive closes its pools to
//     those behind it.
//  3. Else, if it reserves and no waiter before it has reserved in one of its
//     pools, its slots are kept together: what is free now and what becomes so
//     go to nobody behind it.
func Admit(capacities []Capacity, waiters []*Waiting) Decision {
	free, reserved := freeSlots(capacities), make([]bool, len(capacities))
	d := Decision{Free: free, Reserved: reserved}
	if len(waiters) == 0 || !anyFree(free) {
		return d
	}
	for i, w := range waiters {
		if w.Yielded || !possible(capacities, w) {
			continue
		}
		switch {
		case fits(free, w):
			take(free, w)
			if w.Exclusive {
				closePools(free, w)
			}
			if w.Mine {
				d.Grants = append(d.Grants, i)
			} else {
				d.Fits = append(d.Fits, i)
			}
			if !anyFree(free) {
				return d // nobody behind fits
			}
		case w.Reserve && !anyOf(reserved, w):
			take(free, w)
			for _, n := range w.Needs {
				reserved[n.Pool] = true
			}
			if !w.Mine {
				d.Keeps = append(d.Keeps, i)
			}
		}
	}
	return d
}

// blocker is a waiter for which slots are kept that would do for one of another instance
// behind it.
type blocker struct {
	index int
	ours  bool // it is one of this instance that they would do for
}

// blockers returns the waiters of other instances that keep slots from waiters that are
// not of their own, last to first.
func (d Decision) blockers(capacities []Capacity, waiters []*Waiting) (blockers []blocker) {
	kept := merge(d.Fits, d.Keeps)
	if len(kept) == 0 {
		return nil
	}
	free, wanted := freeSlots(capacities), make([]wanting, len(capacities))
	grants := d.Grants
	for i := len(waiters) - 1; len(kept) > 0; i-- {
		w := waiters[i]
		switch {
		case i == kept[len(kept)-1]:
			kept = kept[:len(kept)-1]
			others, ours := false, false
			for _, n := range w.Needs {
				others = others || wanted[n.Pool].other(w.By)
				ours = ours || wanted[n.Pool].ours
			}
			if others {
				blockers = append(blockers, blocker{i, ours})
			}
		case len(grants) > 0 && i == grants[len(grants)-1]:
			grants = grants[:len(grants)-1]
		case !w.Yielded && possible(capacities, w) && fits(free, w):
			for _, n := range w.Needs {
				wanted[n.Pool].add(w)
			}
		}
	}
	return blockers
}

// wanting holds which instances have waiters that would fit into a pool.
type wanting struct {
	any, several, ours bool
	by                 int
}

func (n *wanting) add(w *Waiting) {
	n.several = n.several || n.any && n.by != w.By
	n.any, n.by, n.ours = true, w.By, n.ours || w.Mine
}

// other reports whether an instance other than that has any.
func (n *wanting) other(by int) bool { return n.several || n.any && n.by != by }

// freeSlots returns the free slots of each pool; below 0 after a limit was lowered.
func freeSlots(capacities []Capacity) []int {
	free := make([]int, len(capacities))
	for i, r := range capacities {
		free[i] = r.Limit - r.Used
		if r.Limit == Unlimited {
			free[i] = unlimitedCapacity
		}
	}
	return free
}

// anyFree reports whether any pool has a free slot.
func anyFree(free []int) bool {
	for _, n := range free {
		if n > 0 {
			return true
		}
	}
	return false
}

// possible reports whether the waiter could be granted if nothing else were held.
func possible(capacities []Capacity, w *Waiting) bool {
	for _, n := range w.Needs {
		r := capacities[n.Pool]
		if !r.Open || r.Limit != Unlimited && n.N > r.Limit {
			return false
		}
	}
	return true
}

func fits(free []int, w *Waiting) bool {
	for _, n := range w.Needs {
		if free[n.Pool] < n.N {
			return false
		}
	}
	return true
}

func take(free []int, w *Waiting) {
	for _, n := range w.Needs {
		free[n.Pool] -= n.N
	}
}

// closePools leaves no free slots in the waiter's pools for later waiters.
func closePools(free []int, w *Waiting) {
	for _, n := range w.Needs {
		free[n.Pool] = min(free[n.Pool], 0)
	}
}

// anyOf reports whether a pool that the waiter needs is set.
func anyOf(capacities []bool, w *Waiting) bool {
	for _, n := range w.Needs {
		if capacities[n.Pool] {
			return true
		}
	}
	return false
}
