package owner

import (
	"cmp"
	"slices"
)

// rank is demands of one kind, in the order in which they are served. One that has ended stays until it is found.
type rank struct{ list []*demand }

// add adds a demand that is known to be in etcd, if it is not there yet.
func (r *rank) add(d *demand) {
	if i, ok := slices.BinarySearchFunc(r.list, d, before); !ok {
		r.list = slices.Insert(r.list, i, d)
	}
}

// first returns the first demand that waits, nil if there is none. Those that have ended are dropped on the way.
func (r *rank) first() (first *demand) {
	kept, i := 0, 0
	for ; i < len(r.list) && first == nil; i++ {
		d := r.list[i]
		if d.over {
			continue
		}
		if d.claim.state == waiting && d.ref().Created != 0 {
			first = d
		}
		r.list[kept] = d
		kept++
	}
	r.list = slices.Delete(r.list, kept, i)
	return first
}

// empty reports whether there is none.
func (r *rank) empty() bool { return len(r.list) == 0 }

// before ranks by priority, stamp and the id of the claim, as the dispatcher does.
func before(a, b *demand) int {
	sa, _ := a.stamped()
	sb, _ := b.stamped()
	ra, rb := a.claim.request, b.claim.request
	return cmp.Or(cmp.Compare(rb.Priority, ra.Priority), sa.Compare(sb), cmp.Compare(ra.ID, rb.ID))
}
