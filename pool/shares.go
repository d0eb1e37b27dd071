package pool

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// lacking is a waiter that finds too few free slots.
type lacking struct {
	lease   store.LeaseID // for its slots
	n       int           // the slots that it lacks
	since   time.Duration // how long it has lacked them
	reserve bool
}

// evenPart divides the time to retain: after that part of it, slots are recalled for an instance that
// has less than an equal share of them.
const evenPart = 4

// keeps reports whether a recall is urgent. If it is, keep lists the leases that have to give slots
// back, with the number of used slots that each keeps; if keep is nil, all leases give back all slots
// that are released. The decision can change after next; if next is 0, it does not change by itself.
//
// A waiter is late after half of the time to retain, or after a quarter of it if its instance has less
// than an equal share of the limit. The instance of a late waiter gives back as many slots as its own
// waiters lack, because they get these slots in no other way. If it has less than an equal share, the
// leases with the most slots give back the rest. So the shares become equal, and nearly all claims wait
// on their own instance, about as long on each. But slots of the leases with the most can be held for
// long: after the whole time to retain, and at once for a waiter that reserves, keep is nil.
func keeps(used map[store.LeaseID]int, waits []lacking, limit int, retain time.Duration) (urgent bool, keep map[string]int, next time.Duration) {
	all := maps.Clone(used)
	for _, w := range waits {
		all[w.lease] += 0
	}
	share, late := max(1, limit/len(all)), map[store.LeaseID]int{}
	for _, w := range waits {
		within := retain / 2
		if used[w.lease] < share {
			within = retain / evenPart
		}
		switch {
		case w.reserve, w.since >= retain:
			return true, nil, 0
		case w.since >= within:
			late[w.lease] += w.n
			within = retain
		}
		if left := within - w.since; next == 0 || left < next {
			next = left
		}
	}
	if len(late) == 0 {
		return false, nil, next
	}
	left, others := maps.Clone(used), 0
	for id, n := range late {
		own := min(n, used[id])
		left[id] -= own
		others += max(0, min(n-own, share-used[id]))
	}
	takeFromMost(left, others)
	keep = map[string]int{}
	for id, n := range used {
		if left[id] < n {
			keep[strconv.FormatInt(int64(id), 16)] = left[id]
		}
	}
	return true, keep, next
}

// takeFromMost subtracts n in all from the numbers, always from the largest one.
func takeFromMost(of map[store.LeaseID]int, n int) {
	most := slices.SortedFunc(maps.Keys(of), func(a, b store.LeaseID) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	level := of[most[0]]
	for width := 1; ; width++ {
		next := 0
		if width < len(most) {
			next = of[most[width]]
		}
		if all := width * (level - next); n > all && width < len(most) {
			n, level = n-all, next
			continue
		}
		for i, id := range most[:width] {
			of[id] = max(0, level-n/width)
			if i < n%width {
				of[id] = max(0, of[id]-1)
			}
		}
		return
	}
}
