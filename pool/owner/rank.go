package owner

import (
	"slices"

	"github.com/berthhq/berth/pool/wire"
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

// before ranks as the dispatcher does.
func before(a, b *demand) int {
	return a.rank().Compare(b.rank())
}

func (d *demand) rank() *wire.Rank {
	stamp, _ := d.stamped()
	return &wire.Rank{Priority: d.claim.request.Priority, Stamp: stamp, Claim: d.claim.request.ID}
}
