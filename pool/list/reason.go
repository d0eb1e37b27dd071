package list

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

const (
	// maxReasonHolders bounds the holders that a reason names for one pool.
	maxReasonHolders = 10
	// manyBefore is how many claims are before one at least if the reason says so instead of the position.
	manyBefore = 1000
)

// Reason returns why a demand waits, as its instance knows it. All others are shown as etcd has them. If the claim is held it is a
// ClaimNotFound problem.
func (s *State) Reason(d OwnDemand) (pool.Reason, error) {
	s = s.By(Own{Host: d.Holder.Host, Instance: d.Holder.Instance, Waiting: []OwnDemand{d}})
	own := s.own.waiters(s)
	if len(own) == 0 {
		return pool.Reason{}, problem.New(problem.ClaimNotFound, "claim %q does not wait", d.Claim)
	}
	w, queue := own[0], s.waiting()
	i := slices.IndexFunc(queue, w.same)
	if i < 0 {
		i, _ = slices.BinarySearchFunc(queue, w, (*waiter).compare)
		queue = slices.Insert(slices.Clone(queue), i, w)
	}
	return s.reason(queue, i), nil
}

// reason returns why a waiter of a queue is not granted.
func (s *State) reason(queue []*waiter, i int) pool.Reason {
	w := queue[i]
	r := pool.Reason{Since: w.Since, Position: 1, Waiting: 1, Dispatcher: dispatcher(s.role).String()}
	for n, other := range queue {
		if n != i && overlap(other.Pools, w.Pools) {
			r.Waiting++
			if n < i {
				r.Position++
			}
		}
	}
	r.Pools, r.Text = s.blocked(w)
	var trouble error
	if s.own.is(w.by) {
		trouble = s.own.Trouble
	}
	switch {
	case r.Text != "":
	case s.part && trouble == nil:
		r.Text = "waiting its turn"
	default:
		r.Text = r.Turn(trouble)
	}
	if s.part {
		r = beyond(r)
	}
	for n := range r.Pools {
		r.Pools[n].Holders = s.oldest(r.Pools[n].Pool)
	}
	return r
}

// beyond returns a reason of which only a part of the wait queue is known: it has no position, but says so if that part is
// long.
func beyond(r pool.Reason) pool.Reason {
	if r.Position > manyBefore {
		r.Text += ", at least " + text.Number(manyBefore) + " before it"
	}
	r.Position, r.Waiting = 0, 0
	return r
}

// blocked returns the pools that keep a waiter from being granted, and what does in words; it is empty if nothing does
// but others that wait.
func (s *State) blocked(w *waiter) ([]pool.Shortage, string) {
	pools, text := pool.Blocked(w.Pools, s.brief)
	switch {
	case text != "":
	case s.heldBy(w.by, w.Claim) != nil: // of an earlier life of the instance
		text = fmt.Sprintf("claim id %q is held already by %s", w.Claim, w.by)
	case s.passed(w.by):
		text = fmt.Sprintf("%s does not answer, and others pass its claims", w.by)
	}
	return pools, text
}

// heldBy returns the claim that an instance holds under an id, nil if there is none.
func (s *State) heldBy(by instance, id string) *claim {
	if all := s.heldAs(by, id); len(all) > 0 {
		return all[0]
	}
	return nil
}

// oldest names up to [maxReasonHolders] holders of a pool, the oldest first.
func (s *State) oldest(name string) []pool.HolderRef {
	p := s.pools[name]
	if p == nil {
		return nil
	}
	first := make([]slot, 0, maxReasonHolders+1) // one of each claim
	for _, is := range p.slots {
		if same := slices.IndexFunc(first, func(o slot) bool { return o.claim == is.claim }); same >= 0 {
			if first[same].rev <= is.rev {
				continue
			}
			first = slices.Delete(first, same, same+1)
		}
		i, _ := slices.BinarySearchFunc(first, is, compareAge)
		if i < maxReasonHolders {
			first = slices.Insert(first, i, is)
			first = first[:min(len(first), maxReasonHolders)]
		}
	}
	var refs []pool.HolderRef
	for _, is := range first {
		h := is.claim.status()
		refs = append(refs, pool.HolderRef{Claim: h.Claim, Host: h.Host, Run: h.Run, Step: h.Step, Slots: h.Pools[name]})
	}
	return refs
}

// compareAge ranks a slot first that was put first.
func compareAge(a, b slot) int {
	return cmp.Or(cmp.Compare(a.rev, b.rev), cmp.Compare(a.claim.id, b.claim.id), a.claim.main.Compare(b.claim.main))
}
