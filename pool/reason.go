package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reason is why a claim waits, as data and in one sentence that is the same
// wherever it is shown.
type Reason struct {
	// Text is the sentence: pool 'db' full (3/3 slots).
	Text string `json:"text"`
	// Position in the wait queue, from 1 on, of Waiting claims that wait for one
	// of the same pools, this one included.
	Position int `json:"position,omitempty"`
	Waiting  int `json:"waiting,omitempty"`
	// Since when it waits.
	Since time.Time `json:"since,omitzero"`
	// Dispatcher grants it: HOST/INSTANCE, empty while there is none.
	Dispatcher string `json:"dispatcher,omitempty"`
	// Pools that keep it from being granted.
	Pools []Shortage `json:"pools,omitempty"`
}

// Shortage is one pool that a claim waits for.
type Shortage struct {
	Pool    string `json:"pool"`
	Wanted  int    `json:"wanted"`
	Limit   int    `json:"limit"`
	Claimed int    `json:"claimed"`
	// Short is how many slots are missing: 0 if there are enough, but others
	// are first.
	Short   int         `json:"short"`
	Paused  bool        `json:"paused,omitempty"`
	Holders []HolderRef `json:"holders,omitempty"`
}

// shortage is one with what else makes its text.
type shortage struct {
	Shortage
	unknown, unreadable bool
}

// HolderRef names a holder in a reason.
type HolderRef struct {
	Claim string `json:"claim"`
	Host  string `json:"host"`
	Run   string `json:"run,omitempty"`
	Step  string `json:"step,omitempty"`
	Slots int    `json:"slots"`
}

// maxReasonHolders bounds the holders that a reason names for one pool.
const maxReasonHolders = 10

// reason returns why an entry is not granted.
func (c *core) reason(e *entry) Reason {
	r := c.view.reasonFor(e.req.Slots, maxReasonHolders, own{})
	r.Since = e.arrived
	r.Position, r.Waiting = c.position(e.order, e.req.Slots)
	if r.Text == "" {
		r.Text = turn(r, c.leases.Trouble())
	}
	return r
}

// turn explains a claim that fits and is not granted yet. Trouble is why no lease could be
// made for it.
func turn(r Reason, trouble error) string {
	if trouble != nil {
		return fmt.Sprintf("no lease could be made: %v", trouble)
	}
	return fmt.Sprintf("waiting its turn (position %d of %d)", r.Position, r.Waiting)
}

// reasonFor returns which pools block a claim of these slots, and up to so many
// holders of each. Its text is empty if the claim fits.
func (v *view) reasonFor(slots map[string]int, holders int, o own) Reason {
	var r Reason
	var all []shortage
	for i, need := range needsOf(slots) {
		p := v.pool(need.Pool)
		if i == 0 {
			r.Dispatcher = p.dispatcher.String() // that of the first pool grants claims of several
		}
		s := shortage{
			Shortage: Shortage{
				Pool: p.name, Wanted: need.N, Limit: p.spec.Limit, Claimed: p.used, Paused: p.spec.Paused,
				Short: short(p.spec.Limit, p.used, need.N),
			},
			unknown: !p.known(), unreadable: p.corrupt > 0,
		}
		if s.Short == 0 && p.grants() {
			continue
		}
		if holders > 0 {
			s.Holders = p.holderRefs(v, holders, o)
		}
		r.Pools, all = append(r.Pools, s.Shortage), append(all, s)
	}
	r.Text = shortageText(all)
	return r
}

// short is how many slots of a pool are missing for so many more.
func short(limit, used, wanted int) int {
	if limit == Unlimited {
		return 0
	}
	return max(0, used+wanted-limit)
}

func shortageText(pools []shortage) string {
	var full []string
	for _, s := range pools {
		switch {
		case s.unknown:
			return fmt.Sprintf("pool '%s' does not exist", s.Pool)
		case s.unreadable:
			return fmt.Sprintf("pool '%s' has a value that can't be read", s.Pool)
		case s.Paused:
			return fmt.Sprintf("pool '%s' is paused", s.Pool)
		case s.Limit == Closed:
			return fmt.Sprintf("pool '%s' is closed", s.Pool)
		case exceedsLimit(s.Limit, s.Wanted):
			return fmt.Sprintf("pool '%s' has a limit of %d, this claim needs %d", s.Pool, s.Limit, s.Wanted)
		}
		full = append(full, fmt.Sprintf("'%s' (%d/%d slots)", s.Pool, s.Claimed, s.Limit))
	}
	switch len(full) {
	case 0:
		return ""
	case 1:
		s := pools[0]
		if s.Claimed < s.Limit {
			return fmt.Sprintf("pool '%s' has too few free slots (%d/%d slots, %d wanted)", s.Pool, s.Claimed, s.Limit, s.Wanted)
		}
		return fmt.Sprintf("pool '%s' full (%d/%d slots)", s.Pool, s.Claimed, s.Limit)
	}
	return "pools full: " + strings.Join(full, ", ")
}

// holderRefs names up to so many holders of a pool, first come first.
func (p *poolView) holderRefs(v *view, most int, o own) []HolderRef {
	first := make([]slot, 0, most+1)
	for _, g := range p.groups {
		for _, s := range g.slots {
			i, _ := slices.BinarySearchFunc(first, s, func(a, b slot) int {
				return cmp.Or(cmp.Compare(a.rev, b.rev), cmp.Compare(a.claim.id, b.claim.id), a.claim.main.compare(b.claim.main))
			})
			if i >= most || slices.ContainsFunc(first, func(o slot) bool { return o.claim == s.claim }) {
				continue
			}
			first = slices.Insert(first, i, s)
			first = first[:min(len(first), most)]
		}
	}
	var refs []HolderRef
	for _, s := range first {
		h := v.holder(v.claim(s.claim), o)
		refs = append(refs, HolderRef{Claim: h.Claim, Host: h.Host, Run: h.Run, Step: h.Step, Slots: h.Pools[p.name]})
	}
	return refs
}

// position of a waiter among those that wait for one of its pools.
func (c *core) position(o Order, slots map[string]int) (pos, waiters int) {
	pos, waiters = 1, 1
	count := func(other Order, pools map[string]int) {
		if other.Claim == o.Claim || !overlap(pools, slots) {
			return
		}
		waiters++
		if o.Since == 0 || other.Compare(o) < 0 {
			pos++
		}
	}
	for _, w := range c.view.waiters {
		if !c.ours(w) {
			count(w.order, w.value.Pools)
		}
	}
	for _, e := range c.queue {
		if e.state == queued && e.order.Since > 0 {
			count(e.order, e.req.Slots)
		}
	}
	return pos, waiters
}

// overlap reports whether two claims have a pool in common.
func overlap(a, b map[string]int) bool {
	for name := range a {
		if _, ok := b[name]; ok {
			return true
		}
	}
	return false
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m)) // once: iterators would grow it
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
