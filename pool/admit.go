package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Capacity is what [Admit] needs to know of a pool.
type Capacity struct {
	// Limit of slots, or [Unlimited].
	Limit int
	// Used slots; may exceed the limit after it was lowered.
	Used int
	// Open pools grant. Unknown, paused and unreadable ones do not.
	Open bool
}

// PoolNeed is how many slots a waiter needs of the pool with that index.
type PoolNeed struct{ Pool, N int }

// Waiting is what [Admit] needs to know of a waiter.
type Waiting struct {
	Needs []PoolNeed
	// Mine is set for waiters that this instance may grant; others only keep their place.
	Mine bool
	// Reserve keeps together what the waiter needs while it does not fit.
	Reserve bool
	// Yielded waiters can't use their slots now, or their instance does not say that it
	// takes them: they are passed. See [core.passed].
	Yielded bool
}

// Decision is the answer of [Admit]: indexes into the waiters it was given, in
// order.
type Decision struct {
	// Grants are waiters that may have their slots now, and that this instance may grant.
	Grants []int
	// Fits are those that another instance grants: their slots are kept for them.
	Fits []int
	// Free is the free slots of each pool after all waiters, and Reserved says of
	// each pool whether a waiter has reserved in it.
	Free     []int
	Reserved []bool
}

// Admit decides which waiters may take slots now. It is pure, and all instances
// that see the same capacities and waiters decide the same. Order depends on it;
// safety does not: each grant is committed under compares of its own.
//
// For each waiter, first to last:
//  1. It takes nothing and keeps nothing if it can't be granted as things are,
//     or if it is passed.
//  2. If it fits in all its pools, its slots are taken: it is granted if this
//     instance may grant it, and else keeps its place.
//  3. Else, if it reserves and no waiter before it has reserved in one of its
//     pools, its slots are kept together: what is free now and what becomes so
//     go to nobody behind it.
func Admit(capacities []Capacity, waiters []*Waiting) Decision {
	free, reserved := freeSlots(capacities), make([]bool, len(capacities))
	d := Decision{Free: free, Reserved: reserved}
	if len(waiters) == 0 || !anyFree(free) {
		return d
	}
	for i, w := range waiters {
		if w.Yielded || !possible(capacities, w) {
			continue
		}
		switch {
		case fits(free, w):
			take(free, w)
			if w.Mine {
				d.Grants = append(d.Grants, i)
			} else {
				d.Fits = append(d.Fits, i)
			}
			if !anyFree(free) {
				return d // nobody behind fits
			}
		case w.Reserve && !anyOf(reserved, w):
			take(free, w)
			for _, n := range w.Needs {
				reserved[n.Pool] = true
			}
		}
	}
	return d
}

// freeSlots returns the free slots of each pool; below 0 after a limit was lowered.
func freeSlots(capacities []Capacity) []int {
	free := make([]int, len(capacities))
	for i, r := range capacities {
		free[i] = r.Limit - r.Used
		if r.Limit == Unlimited {
			free[i] = unlimitedCapacity
		}
	}
	return free
}

// anyFree reports whether any pool has a free slot.
func anyFree(free []int) bool {
	for _, n := range free {
		if n > 0 {
			return true
		}
	}
	return false
}

// possible reports whether the waiter could be granted if nothing else were held.
func possible(capacities []Capacity, w *Waiting) bool {
	for _, n := range w.Needs {
		r := capacities[n.Pool]
		if !r.Open || r.Limit != Unlimited && n.N > r.Limit {
			return false
		}
	}
	return true
}

func fits(free []int, w *Waiting) bool {
	for _, n := range w.Needs {
		if free[n.Pool] < n.N {
			return false
		}
	}
	return true
}

func take(free []int, w *Waiting) {
	for _, n := range w.Needs {
		free[n.Pool] -= n.N
	}
}

// anyOf reports whether a pool that the waiter needs is set.
func anyOf(capacities []bool, w *Waiting) bool {
	for _, n := range w.Needs {
		if capacities[n.Pool] {
			return true
		}
	}
	return false
}

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
