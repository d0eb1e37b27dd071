package run

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool"
)

// Why tells what a queued run waits for.
type Why struct {
	// Run is the run. What it says of pools that hold it up has the numbers of now,
	// while its record's is no newer than it must be to be true.
	Run *Run
	// Position in the queue from 1 on, and its length; 0 of a run that is not queued, or
	// whose time has not come.
	Position, Line int
	// InTheWay are the runs in progress that take what it waits for: those that
	// count against the limit that blocks it, the longest first.
	InTheWay []*Run
	// Estimate is when it may be admitted: from how long runs have taken that
	// ended lately. It is 0 where none is known.
	Estimate time.Duration
}

const (
	// maxInTheWay bounds the runs that are named as in the way.
	maxInTheWay = 20
	// durationsOf is how many runs that ended last an estimate rests on.
	durationsOf = 100
)

// Why tells about a run; nil if there is none of that id. Pools may be nil, and then it
// says of them what is noted.
func (a All) Why(id string, limits Limits, pools *pool.Space, now time.Time) *Why {
	r := a.Get(id)
	if r == nil {
		return nil
	}
	w := &Why{Run: r.withNumbers(pools)}
	if r.Status != Queued || r.Deferred() {
		return w
	}
	queue := slices.DeleteFunc(a.Queue(), (*Run).Deferred)
	w.Line, w.Position = len(queue), slices.Index(queue, r)+1
	progress := a.With(NotStarted, Running)
	for _, o := range progress {
		if limits.blames(r, o) {
			w.InTheWay = append(w.InTheWay, o)
		}
	}
	slices.SortFunc(w.InTheWay, func(a, b *Run) int { return a.AdmittedAt.Compare(b.AdmittedAt) })
	if n := len(w.InTheWay); n > 0 {
		w.Estimate = estimate(a, w.Position, n)
		w.InTheWay = w.InTheWay[:min(n, maxInTheWay)]
	}
	return w
}

// withNumbers is a run whose reason has the numbers of now, if it is one of pools.
func (r *Run) withNumbers(pools *pool.Space) *Run {
	if pools == nil || r.Status != Queued || r.Block == nil || r.Block.Kind != BlockPool {
		return r
	}
	text := pools.Why(r.Pools)
	if text == "" {
		return r // there is room, and the coordinator has not come to it
	}
	exact, block := *r, PoolBlock(text)
	exact.Block = &block
	return &exact
}

// blames tells whether a run in progress counts against what blocks a queued one, or
// has slots of the pools that it waits for.
func (l Limits) blames(queued, o *Run) bool {
	switch {
	case queued.Block == nil || queued.Block.Kind == BlockRunLimit:
		return true
	case queued.Block.Kind == BlockPool:
		for name := range queued.Pools {
			if o.Pools[name] > 0 {
				return true
			}
		}
		return false
	}
	for _, t := range l.Tags {
		if t.covers(queued.Tags) && t.covers(o.Tags) && (!t.PerUniqueValue || queued.Tags[t.Key] == o.Tags[t.Key]) {
			return true
		}
	}
	return false
}

// covers tells whether a limit is about a run with those tags.
func (t TagLimit) covers(tags map[string]string) bool {
	v, ok := tags[t.Key]
	return ok && (t.Value == "" || t.Value == v)
}

// estimate is the median time of the runs that ended last, for as many rounds as it
// takes until so many places have been free, with so many at a time.
func estimate(a All, position, at int) time.Duration {
	ended := slices.DeleteFunc(a.With(Succeeded, Failed), func(r *Run) bool { return r.StartedAt.IsZero() })
	if len(ended) == 0 {
		return 0
	}
	slices.SortFunc(ended, func(a, b *Run) int { return b.EndedAt.Compare(a.EndedAt) })
	ended = ended[:min(len(ended), durationsOf)]
	took := make([]time.Duration, len(ended))
	for i, r := range ended {
		took[i] = r.EndedAt.Sub(r.AdmittedAt)
	}
	slices.Sort(took)
	rounds := (position + at - 1) / at
	return took[len(took)/2] * time.Duration(rounds)
}
