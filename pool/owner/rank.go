package owner

import (
	"cmp"
	"slices"
)

// rank is demands of one kind, in the order in which they are served.
type rank struct{ list []*demand }

// add adds a demand that is known to be in etcd, if it is not there yet.
func (r *rank) add(d *demand) {
	if i, ok := slices.BinarySearchFunc(r.list, d, before); !ok {
		r.list = slices.Insert(r.list, i, d)
	}
}

// remove removes a demand that ends, if it is there.
func (r *rank) remove(d *demand) {
	if i, ok := slices.BinarySearchFunc(r.list, d, before); ok {
		r.list = slices.Delete(r.list, i, i+1)
	}
}

// first returns the first demand that waits, nil if there is none, or if it is to be put into etcd again: none behind it passes it
// meanwhile.
func (r *rank) first() *demand {
	i := slices.IndexFunc(r.list, func(d *demand) bool { return d.claim.state == waiting })
	if i < 0 || r.list[i].ref().Created == 0 {
		return nil
	}
	return r.list[i]
}

// before ranks by priority, stamp and the id of the claim, as the dispatcher does.
func before(a, b *demand) int {
	sa, _ := a.stamped()
	sb, _ := b.stamped()
	ra, rb := a.claim.request, b.claim.request
	return cmp.Or(cmp.Compare(rb.Priority, ra.Priority), sa.Compare(sb), cmp.Compare(ra.ID, rb.ID))
}
