package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// Why explains what a queued run waits for.
type Why struct {
	// Run is the run. A block reason that names pools has current numbers; those of the
	// record may be older.
	Run *Run
	// Position is that in the queue from 1, and Line the number of queued runs; 0 if the
	// run is not queued, or not due.
	Position, Line int
	// InTheWay are the runs in progress that count against the limit that blocks the
	// run, or have slots of the pools that it waits for: the earliest admitted first.
	InTheWay []*Run
	Estimate Estimate
}

// Estimate is when a queued run may be admitted.
type Estimate struct {
	// In is how long from now that is; 0 if it is not known.
	In time.Duration
	// Basis states what the estimate is judged by.
	Basis string
}

const (
	// maxInTheWay bounds [Why.InTheWay].
	maxInTheWay = 20
	// maxHistory bounds the ended runs of one name for an estimate.
	maxHistory = 100
)

// Others returns the runs that [All.Why] explains a run by: of those that are queued or have
// ended, only what they are judged by, since there can be many.
func (s Store) Others(ctx context.Context, id string) (all All, err error) {
	all.Revision, err = s.Each(ctx, "", func(r *Run, _ int, err error) bool {
		switch {
		case err != nil:
			all.Bad = append(all.Bad, err)
		case r.ID == id || r.Status.InProgress():
			all.Runs = append(all.Runs, r)
		default:
			all.Runs = append(all.Runs, r.brief())
		}
		return true
	})
	return all, err
}

// brief returns what of a run others are judged by.
func (r *Run) brief() *Run {
	b := &Run{ID: r.ID, Created: r.Created, Revision: r.Revision}
	b.Name, b.Status, b.Priority, b.NotBefore = r.Name, r.Status, r.Priority, r.NotBefore
	b.Joined, b.StartedAt, b.EndedAt = r.Joined, r.StartedAt, r.EndedAt
	if r.Block != nil {
		b.Block = &Block{Kind: r.Block.Kind, Tag: r.Block.Tag}
	}
	return b
}

// Why explains a run; nil if it does not exist. Without pools, the block reason is the
// recorded one.
func (a All) Why(id string, pools *pool.Space, now time.Time) *Why {
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
	for _, o := range a.With(NotStarted, Running) {
		if r.blames(o) {
			w.InTheWay = append(w.InTheWay, o)
		}
	}
	slices.SortFunc(w.InTheWay, func(a, b *Run) int { return a.AdmittedAt.Compare(b.AdmittedAt) })
	w.Estimate = a.estimate(r, queue[:w.Position], w.InTheWay, now)
	w.InTheWay = w.InTheWay[:min(len(w.InTheWay), maxInTheWay)]
	return w
}

// withNumbers returns the run with current numbers in a block reason that names pools.
func (r *Run) withNumbers(pools *pool.Space) *Run {
	if pools == nil || r.Status != Queued || r.Block == nil || r.Block.Kind != BlockPool {
		return r
	}
	why := pools.Why(r.Pools)
	if why == "" {
		return r // there are free slots, and the coordinator has not checked it since
	}
	exact, block := *r, PoolBlock(why)
	exact.Block = &block
	return &exact
}

// blames reports whether a run in progress counts against what blocks a queued run, or
// has slots of the pools that it waits for. A run that was not checked yet blames none.
func (r *Run) blames(o *Run) bool {
	if r.Block == nil {
		return false
	}
	switch r.Block.Kind {
	case BlockRunLimit:
		return true
	case BlockPool:
		for name := range r.Pools {
			if o.Pools[name] > 0 {
				return true
			}
		}
	case BlockTagLimit:
		key, value, one := strings.Cut(r.Block.Tag, "=")
		got, has := o.Tags[key]
		return has && (!one || got == value)
	}
	return false
}

// estimate returns when a run that a limit blocks may be admitted: when as many of the
// runs in the way have ended as there are queued runs up to it that wait for the same
// limit, if each takes as long as the median of the ended runs of its name. It is not
// known if one of those runs has not started, is of a name without ended runs, or takes
// longer already; and of runs that wait for slots, which claims hold as well.
func (a All) estimate(r *Run, ahead, inTheWay []*Run, now time.Time) Estimate {
	if r.Block == nil || r.Block.Kind != BlockRunLimit && r.Block.Kind != BlockTagLimit {
		return Estimate{}
	}
	places := 0
	for _, o := range ahead {
		if o == r || o.Block == nil || o.Block.Kind == r.Block.Kind && o.Block.Tag == r.Block.Tag {
			places++
		}
	}
	if places > len(inTheWay) {
		return Estimate{}
	}
	medians, count := map[string]time.Duration{}, 0
	left := make([]time.Duration, 0, len(inTheWay))
	for _, o := range inTheWay {
		median, known := medians[o.Name]
		if !known {
			took := a.history(o.Name)
			if len(took) > 0 {
				median = took[len(took)/2]
			}
			medians[o.Name], count = median, count+len(took)
		}
		remaining := median - now.Sub(o.StartedAt)
		if o.StartedAt.IsZero() || median == 0 || remaining <= 0 {
			return Estimate{}
		}
		left = append(left, remaining)
	}
	slices.Sort(left)
	basis := "judged by the last " + text.Count(count, "run")
	if len(medians) == 1 {
		for name, median := range medians {
			if name != "" {
				basis += fmt.Sprintf(" named '%s'", name)
			} else {
				basis += " without a name"
			}
			basis += ", of which half took less than " + text.Duration(median.Round(time.Second))
		}
	} else {
		basis += " of the same names"
	}
	return Estimate{In: left[places-1], Basis: basis}
}

// history returns how long the last ended runs of a name took from their start, the
// shortest first.
func (a All) history(name string) []time.Duration {
	ended := slices.DeleteFunc(a.With(Succeeded, Failed), func(r *Run) bool { return r.Name != name || r.StartedAt.IsZero() })
	slices.SortFunc(ended, func(a, b *Run) int { return b.EndedAt.Compare(a.EndedAt) })
	ended = ended[:min(len(ended), maxHistory)]
	took := make([]time.Duration, len(ended))
	for i, r := range ended {
		took[i] = r.EndedAt.Sub(r.StartedAt)
	}
	slices.Sort(took)
	return took
}
