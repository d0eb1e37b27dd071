package coordinator

import (
	"slices"
	"time"
	"unique"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// gate decides which runs get slots in a plan. Free capacity only shrinks in a plan, so
// slots that do not fit once do not fit until its end: the gate decides by slots, and reads
// few runs.
type gate struct {
	s     *Snapshot
	space *pool.Space // of the plan; nil if the gate is closed
	held  []bool      // by the number of the slots
	whys  [][]noted   // by the same: all true reasons, the preferred one first
	// fresh are the blocked runs whose records do not state it yet, in order; no more than
	// MaxBlocks.
	fresh []*run.Run
	// first are the runs that reserve.
	first map[*run.Run]bool
	// ages is when the next blocked run begins to reserve.
	ages time.Time
}

// newGate returns the gate of a plan. A closed gate admits no run with slots, and gives no
// reasons.
func newGate(s *Snapshot, q *Queue, closed bool) *gate {
	g := &gate{s: s, first: map[*run.Run]bool{}}
	if q.gated > 0 && s.Space != nil && !closed {
		g.space = s.Space.Clone()
		g.held, g.whys = make([]bool, q.needs.size()+1), make([][]noted, q.needs.size()+1)
	}
	return g
}

// pass reports whether the slots of a run fit, and takes them.
func (g *gate) pass(p *place) bool {
	switch {
	case p.needs == 0:
		return true
	case g.space == nil:
		return false
	}
	need := p.run.Pools
	fresh := !p.held || p.run.HeldSince.After(g.s.Now) // by another clock
	if !g.held[p.needs] {
		if g.space.Fits(need) {
			g.space.Take(need)
			return true
		}
		g.held[p.needs] = true
		g.reserve(p.run)
	}
	if fresh && len(g.fresh) < g.s.MaxBlocks {
		g.fresh = append(g.fresh, p.run)
	}
	return false
}

// reserve reserves the slots of a run that has waited long enough.
func (g *gate) reserve(r *run.Run) {
	after := g.space.ReserveAfter(r.Pools)
	if after < 0 || after > 0 && r.HeldSince.IsZero() {
		return
	}
	since := r.HeldSince
	if since.After(g.s.Now) { // by another clock: it is recorded again as of now
		since = g.s.Now
	}
	if at := since.Add(after); g.s.Now.Before(at) {
		g.ages = sooner(g.ages, at)
		return
	}
	g.first[r] = g.space.Reserve(r.Pools)
}

// note returns the reason of a run that its pools block: the recorded one if it is still
// true; zero if nothing is known.
func (g *gate) note(p *place) noted {
	if g.space == nil {
		return noted{}
	}
	whys := g.whys[p.needs]
	if whys == nil || g.first[p.run] {
		whys = nil
		for _, text := range g.space.Notes(p.run.Pools, g.first[p.run]) {
			whys = append(whys, unique.Make(run.PoolBlock(text)))
		}
		if !g.first[p.run] {
			g.whys[p.needs] = whys
		}
	}
	switch {
	case len(whys) == 0:
		return noted{}
	case slices.Contains(whys, p.noted):
		return p.noted
	}
	return whys[0]
}
