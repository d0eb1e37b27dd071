package list

import (
	"math"
	"slices"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// Prospects reports of each request of an instance whether it would get its slots now, after those that wait and those before it
// in the list, if its [pool.Place] were free. One that waits already keeps its place in the wait queue. The slots of freed, by
// pool, count as free: claims that are being released hold them.
func (s *State) Prospects(asked []*pool.Request, freed map[string]int) []bool {
	index := map[*waiter]int{}
	queue := slices.Clone(s.waitQueue())
	waits := map[string]*waiter{}
	for _, w := range queue {
		if w.by == s.own.name() {
			waits[w.Claim] = w
		}
	}
	for i, r := range asked {
		w := waits[r.ID]
		if w == nil {
			d := &wire.Demand{Claim: r.ID, Pools: r.Slots, Priority: r.Priority, Holder: r.Holder}
			w = &waiter{Demand: d, by: s.own.name(), stamp: wire.Stamp{Revision: r.Since, Index: len(s.own.Waiting) + i}}
			if r.Since == 0 {
				w.stamp.Revision = math.MaxInt64
			}
			queue, waits[r.ID] = append(queue, w), w
		}
		index[w] = i
	}
	slices.SortFunc(queue, (*waiter).compare)
	gets := make([]bool, len(asked))
	s.fill(queue, freed).admit(queue, func(w *waiter) {
		if i, is := index[w]; is {
			gets[i] = true
		}
	})
	return gets
}
