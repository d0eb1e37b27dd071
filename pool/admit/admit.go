// Package admit decides which of the claims that wait may have slots now. It is pure: all that decide about the
// same capacities and waiters decide the same.
package admit

import "slices"

// Unlimited is the limit of a pool without one.
const Unlimited = -1

// unlimitedCapacity is the free slots of a pool without a limit: more than can ever be held.
const unlimitedCapacity = 1 << 40

// Capacity is what a [Walk] needs to know of a pool.
type Capacity struct {
	// Limit of slots, or [Unlimited].
	Limit int
	// Used slots; may exceed the limit after it was lowered.
	Used int
	// Open pools grant. Unknown, paused and unreadable ones do not.
	Open bool
}

// Need is how many slots a waiter needs of the pool with that index.
type Need struct{ Pool, N int }

// Waiter is what a [Walk] needs to know of a waiter.
type Waiter struct {
	Needs []Need
	// Reserve keeps together what the waiter needs while it does not fit.
	Reserve bool
}

// Verdict is what a waiter gets.
type Verdict int

// Verdicts: the waiter can't be granted as things are; it does not fit; it does not fit, and what is free
// is kept for it; it fits, and its slots are taken.
const (
	Impossible Verdict = iota
	Short
	Reserves
	Fit
)

// Walk decides which waiters may take slots now, one by one, in their order. All that see the same capacities and waiters
// decide the same. Order depends on it; safety does not: each grant is committed under compares of its own.
//
// For each waiter, first to last:
//  1. It takes nothing and keeps nothing if it can't be granted as things are.
//  2. If it fits in all its pools, it takes its slots.
//  3. Else, if it reserves and no waiter before it has reserved in one of its
//     pools, its slots are kept together: what is free now and what becomes so
//     go to nobody behind it.
type Walk struct {
	capacities []Capacity
	free       []int
	reserved   []bool
}

// NewWalk returns a walk over waiters for pools of these capacities.
func NewWalk(capacities []Capacity) *Walk {
	return &Walk{capacities: capacities, free: FreeSlots(capacities), reserved: make([]bool, len(capacities))}
}

// Next decides about the next waiter.
func (k *Walk) Next(w *Waiter) Verdict {
	switch {
	case !possible(k.capacities, w):
		return Impossible
	case fits(k.free, w):
		take(k.free, w)
		return Fit
	case w.Reserve && !anyOf(k.reserved, w):
		take(k.free, w)
		for _, n := range w.Needs {
			k.reserved[n.Pool] = true
		}
		return Reserves
	}
	return Short
}

// Free returns the free slots of each pool after the waiters so far.
func (k *Walk) Free() []int { return k.free }

// Reserved says of each pool whether a waiter so far has reserved in it.
func (k *Walk) Reserved() []bool { return k.reserved }

// AnyFree reports whether any pool has a free slot after the waiters so far.
func (k *Walk) AnyFree() bool {
	return slices.ContainsFunc(k.free, func(n int) bool { return n > 0 })
}

// FreeSlots returns the free slots of each pool, below 0 after a limit was lowered.
func FreeSlots(capacities []Capacity) []int {
	free := make([]int, len(capacities))
	for i, r := range capacities {
		free[i] = r.Limit - r.Used
		if r.Limit == Unlimited {
			free[i] = unlimitedCapacity
		}
	}
	return free
}

// possible reports whether the waiter could be granted if nothing else were held.
func possible(capacities []Capacity, w *Waiter) bool {
	for _, n := range w.Needs {
		r := capacities[n.Pool]
		if !r.Open || r.Limit != Unlimited && n.N > r.Limit {
			return false
		}
	}
	return true
}

// fits reports whether a waiter fits in the free slots of its pools.
func fits(free []int, w *Waiter) bool {
	for _, n := range w.Needs {
		if free[n.Pool] < n.N {
			return false
		}
	}
	return true
}

func take(free []int, w *Waiter) {
	for _, n := range w.Needs {
		free[n.Pool] -= n.N
	}
}

// anyOf reports whether a pool that the waiter needs is set.
func anyOf(capacities []bool, w *Waiter) bool {
	for _, n := range w.Needs {
		if capacities[n.Pool] {
			return true
		}
	}
	return false
}
