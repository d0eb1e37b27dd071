package list

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// report collects what should not be.
type report []pool.Violation

func (r *report) add(key, format string, args ...any) {
	*r = append(*r, pool.Violation{Key: key, Problem: fmt.Sprintf(format, args...)})
}

// sorted returns what was collected, by key.
func (r report) sorted() []pool.Violation {
	slices.SortFunc(r, func(a, b pool.Violation) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Problem, b.Problem))
	})
	return r
}

// verifier checks a state.
type verifier struct {
	*State
	report
}

// Verify checks the invariants from what etcd holds alone, and returns what violates them, by key. All pools must have
// been read, with the ids and demands of all instances:
//
//   - Every key and value can be read.
//   - No number of a pool is held twice, by slot keys and blocks together, and none at or above the limit
//     that was taken after the limit was set.
//   - No pool holds more slots than its limit if one of its holders came after the limit was set.
//     More may be held after it was lowered.
//   - Every claim is whole: all the keys that it lists, and no other, at one revision and on one lease, adding up to what
//     it claimed.
//   - Every chosen id is that of a claim, on its lease.
//   - Every demand has a key in each of its pools, created at one revision, on one lease.
//   - Every key that is to end with its instance is on a lease.
func (s *State) Verify() []pool.Violation {
	v := &verifier{State: s}
	for key, b := range s.bad {
		v.add(key, "%v", b.err)
	}
	for _, p := range s.pools {
		v.numbers(p)
		v.limit(p)
	}
	v.allClaims()
	v.allIDs()
	for _, d := range s.demands {
		v.demandsOf(d)
	}
	for key, lease := range s.leased() {
		if _, bad := s.bad[key]; lease == 0 && !bad {
			v.add(key, "it hangs on no lease and would never end")
		}
	}
	return v.sorted()
}

// OnLeases returns the keys on some leases that etcd does not have, by key: nothing would ever delete them.
func (s *State) OnLeases(gone map[store.LeaseID]bool) []pool.Violation {
	var r report
	for key, lease := range s.leased() {
		if gone[lease] {
			r.add(key, "it hangs on lease %x, which etcd does not have, and would never end", int64(lease))
		}
	}
	return r.sorted()
}

// leased iterates over the keys that are to be on a lease, in no order, and over those that can't be read.
func (s *State) leased() iter.Seq2[string, store.LeaseID] {
	return func(yield func(string, store.LeaseID) bool) {
		for _, p := range s.pools {
			for ref, is := range p.slots {
				if !yield(ref.Key(s.keys), is.lease) {
					return
				}
			}
		}
		for name, d := range s.demands {
			if !yield(s.keys.Demand(name), d.lease) {
				return
			}
		}
		for key, lease := range s.leases {
			if !yield(key, lease) {
				return
			}
		}
		for key, b := range s.bad {
			if !yield(key, b.lease) {
				return
			}
		}
	}
}
