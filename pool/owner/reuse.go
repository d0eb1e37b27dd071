package owner

// reuse is what one transaction knows of claims by their kind: which of those that are released can be taken over, and for
// which kinds there are no free slots.
type reuse struct {
	free map[string][]*Claim
	full map[string]*known // a pool that has too few slots, by kind
}

func newReuse() *reuse {
	return &reuse{map[string][]*Claim{}, map[string]*known{}}
}

// add adds a claim that is released.
func (r *reuse) add(c *Claim) { r.free[c.kind] = append(r.free[c.kind], c) }

// first returns the first claim of a kind that can be taken over, nil if there is none.
func (r *reuse) first(kind string) *Claim {
	if all := r.free[kind]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// take records that the first claim of a kind is taken over.
func (r *reuse) take(kind string) { r.free[kind] = r.free[kind][1:] }

// short records that a pool has too few slots for a claim of a kind. Claims of blocks have none.
func (r *reuse) short(kind string, k *known) {
	if kind != "" {
		r.full[kind] = k
	}
}
