package dispatch

import (
	"cmp"
	"slices"

	"github.com/berthhq/berth/pool/wire"
)

// Follower is an instance that shall dispatch after one that ends. The zero value is none.
type Follower struct{ Host, Instance string }

// Candidate is an instance with demands.
type Candidate struct {
	Follower
	// Kind of its process; one that is not known counts as a command.
	Kind wire.Kind
	// Youngest is the revision that created its youngest demand.
	Youngest int64
}

// ChooseFollower returns which instance shall follow: one that stays, else one that ends with a command, and in either
// case that with the youngest demand, which ends last as a rule. It is none without candidates.
func ChooseFollower(all []Candidate) Follower {
	if len(all) == 0 {
		return Follower{}
	}
	return slices.MaxFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.stays(), b.stays()), cmp.Compare(a.Youngest, b.Youngest))
	}).Follower
}

func (c Candidate) stays() int {
	return min(ranks[c.Kind], ranks[wire.Service])
}
