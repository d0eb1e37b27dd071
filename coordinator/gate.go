package coordinator

import (
	"time"
	"unique"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// gate is what pools let through while a plan is made. Space only shrinks meanwhile,
// so what some runs need, and is not there once, is not there until the end: the gate
// judges what is needed, and few runs.
type gate struct {
	s     *Snapshot
	space *pool.Space // of the plan; nil of a gate that is closed
	held  []bool      // by number of what is needed
	whys  []noted     // by the same
	// ages is when the next run that is held up comes to reserve.
	ages time.Time
}

// newGate returns the gate of a plan. A closed one lets nobody through who needs slots,
// and tells no reasons.
func newGate(s *Snapshot, q *Queue, closed bool) *gate {
	g := &gate{s: s}
	if q.gated > 0 && s.Space != nil && !closed {
		g.space = s.Space.Clone()
		g.held, g.whys = make([]bool, q.needs.size()+1), make([]noted, q.needs.size()+1)
	}
	return g
}

// pass tells whether a run's slots fit, and takes them.
func (g *gate) pass(p *place) bool {
	switch {
	case p.needs == 0:
		return true
	case g.space == nil || g.held[p.needs]:
		return false
	}
	need := p.run.Pools
	if g.space.Fits(need) {
		g.space.Take(need)
		return true
	}
	g.held[p.needs] = true
	g.reserve(p.run)
	return false
}

// reserve keeps together what a run needs that has waited long enough.
func (g *gate) reserve(r *run.Run) {
	after := g.space.ReserveAfter(r.Pools)
	since, ok := g.s.HeldSince[r.ID]
	if after < 0 || !ok && after > 0 {
		return
	}
	if at := since.Add(after); g.s.Now.Before(at) {
		g.ages = sooner(g.ages, at)
		return
	}
	g.space.Reserve(r.Pools)
}

// why is what keeps a run out; zero if that is not known.
func (g *gate) why(p *place) noted {
	if g.space == nil {
		return noted{}
	}
	if g.whys[p.needs] == (noted{}) {
		g.whys[p.needs] = unique.Make(run.PoolBlock(g.space.Why(p.run.Pools)))
	}
	return g.whys[p.needs]
}
