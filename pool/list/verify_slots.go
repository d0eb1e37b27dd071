package list

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// run is a run of numbers that a key holds.
type run struct {
	slots.Run
	ref wire.Ref
	slot
}

// runs returns all numbers that are held of a pool, in their order.
func (p *poolState) runs() []run {
	var all []run
	for ref, is := range p.slots {
		for _, r := range is.numbers(ref) {
			all = append(all, run{r, ref, is})
		}
	}
	slices.SortFunc(all, func(a, b run) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.rev, b.rev), a.ref.Compare(b.ref))
	})
	return all
}

// numbers finds numbers that are held twice. Of two keys, the later one is named.
func (v *verifier) numbers(p *poolState) {
	last := run{Run: slots.Run{To: -1}}
	for _, is := range p.runs() {
		if is.From < last.To {
			later, earlier := is, last
			if later.rev < earlier.rev {
				later, earlier = earlier, later
			}
			v.add(later.ref.Key(v.keys), "it holds number %d, which %s holds as well", is.From, earlier.ref.Key(v.keys))
		}
		if is.To > last.To {
			last = is
		}
	}
}

// limited reports whether it is known that a pool has a limit.
func (p *poolState) limited() bool { return p.since > 0 && p.spec.Limit != pool.Unlimited }

// limit finds what was taken above the limit after that was set.
func (v *verifier) limit(p *poolState) {
	if !p.limited() {
		return
	}
	for ref, is := range p.slots {
		above := "a count of slots"
		if runs := is.numbers(ref); len(runs) > 0 {
			last := runs[len(runs)-1].To - 1
			if last < p.spec.Limit {
				continue
			}
			above = fmt.Sprintf("number %d", last)
		}
		if at := is.admitted(); at > p.since {
			v.add(ref.Key(v.keys), "it holds %s of a limit of %d, and was taken at revision %d, after the limit was set at %d", above, p.spec.Limit, at, p.since)
		}
	}
	if p.used <= p.spec.Limit {
		return
	}
	if newest := p.newest(); newest > p.since {
		v.add(v.keys.Slots(p.name), "%d slots are held of a limit of %d, one of them admitted at revision %d, after the limit was set at %d",
			p.used, p.spec.Limit, newest, p.since)
	}
}

// admitted returns the revision at which a slot was taken. A claim whose keys were put again since has it in its record.
func (s slot) admitted() int64 {
	if r, _, err := s.claim.full(); err == nil && r.Admitted > 0 && r.Admitted < s.rev {
		return r.Admitted
	}
	return s.rev
}

// newest returns the revision at which the last slot of a pool was taken that is held.
func (p *poolState) newest() (at int64) {
	for _, is := range p.slots {
		at = max(at, is.admitted())
	}
	return at
}
