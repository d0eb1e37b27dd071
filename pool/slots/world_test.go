package slots

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// rules are what a put of the keys of a claim depends on, and what is remembered. A mutant leaves one out.
type rules struct {
	noSpec, noAbsent, noArea, noRuns, noName           bool // compares
	limitIsCeiling, noCounts, olderReadings, overwrite bool
	blocksAreHints                                     bool
}

// world is etcd in memory, with one pool and some instances whose requests and answers are late.
type world struct {
	*rand.Rand
	rules
	rev    int64
	spec   Spec
	keys   map[int]int64 // slot keys: the revision that has created them
	blocks map[blockName]Block
	all    []*instance
	errs   []string
	took   int
}

type instance struct {
	*Pool
	held    []Held
	pending []func() // requests on their way to etcd, and answers on their way back
}

func newWorld(seed uint64, without rules) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), rules: without, rev: 1, keys: map[int]int64{}, blocks: map[blockName]Block{}}
	w.setLimit()
	for range 2 + w.IntN(3) {
		w.all = append(w.all, &instance{Pool: New(w.Uint32N(3))})
	}
	return w
}

func (w *world) setLimit() {
	w.rev++
	limit := []int{0, 1, 3, 5, 8, 40, 300, 600, 1000, Unlimited}[w.IntN(10)]
	if limit != w.spec.Limit || w.spec.Revision == 0 {
		w.spec.Since = w.rev
	}
	w.spec.Limit, w.spec.Revision = limit, w.rev
}

func (w *world) run(steps int) *world {
	for i := range steps {
		if w.step(w.all[w.IntN(len(w.all))]); len(w.errs) > 0 {
			return w
		}
		if i%500 == 499 {
			w.rest()
		}
	}
	return w
}

func (w *world) step(i *instance) {
	switch x := w.IntN(100); {
	case x < 30:
		w.deliver(i)
	case x < 50:
		w.read(i)
	case x < 78:
		w.take(i)
	case x < 95:
		w.release(i)
	case x < 97:
		i.Forget()
	case x < 99:
		i.Age(i.aged + seenFor)
	case w.IntN(2) == 0:
		w.setLimit()
	}
}

// deliver has one of the requests or answers of an instance arrive.
func (w *world) deliver(i *instance) {
	if len(i.pending) == 0 {
		return
	}
	n := w.IntN(len(i.pending))
	arrive := i.pending[n]
	i.pending = slices.Delete(i.pending, n, n+1)
	arrive()
}

func (w *world) read(i *instance) {
	r := Reading{Revision: w.rev, Spec: w.spec, Blocks: slices.Collect(maps.Values(w.blocks)), To: MaxNumbersOfPool}
	from, missing := i.Missing()
	if w.IntN(3) == 0 {
		r.From, r.To = w.IntN(10), 10+w.IntN(300)
	}
	for n := range w.keys {
		if n >= r.From && n < r.To {
			r.Numbers = append(r.Numbers, n)
		}
		if missing && n >= from {
			r.Count++
		}
	}
	slices.Sort(r.Numbers)
	r.Counted, r.CountFrom = missing, from
	if w.noCounts {
		r.Blocks = slices.DeleteFunc(r.Blocks, func(b Block) bool { return len(b.Runs) == 0 })
	}
	i.pending = append(i.pending, func() {
		known := maps.Clone(i.known)
		if w.overwrite {
			clear(i.known)
		}
		if w.olderReadings {
			i.Pool.read = 0
		}
		i.Read(r)
		if w.overwrite {
			i.known = known
		}
		w.mutate(i)
	})
}

func (w *world) mutate(i *instance) {
	if w.limitIsCeiling {
		i.ceiling = ceiling{i.spec.Limit, i.spec.Limit, true}
	}
	if w.blocksAreHints {
		clear(i.listed)
	}
}

func (w *world) take(i *instance) {
	n, blocks := 1+w.IntN(4), false
	if w.IntN(2) == 0 {
		n, blocks = 1+w.IntN([]int{4, 40, 250}[w.IntN(3)]), true
	}
	h, ok := i.Take(n, blocks)
	if !ok {
		return
	}
	i.pending = append(i.pending, func() {
		rev, ok := w.put(h)
		i.pending = append(i.pending, func() {
			if !ok {
				i.Lost(h)
				return
			}
			held := i.Took(h, rev)
			if w.olderReadings { // either rule alone is enough
				for _, a := range h.Areas {
					i.known[a.Area] = max(i.known[a.Area], rev)
				}
			}
			i.held = append(i.held, held)
			w.mutate(i)
		})
	})
}

// put puts the keys of a claim if all compares hold.
func (w *world) put(h Held) (rev int64, ok bool) {
	unchanged := func(area int, since int64) bool {
		for _, b := range w.blocks {
			if b.Area == area && b.Created > since {
				return false
			}
		}
		return true
	}
	ok = w.noSpec || w.spec.Revision == h.Spec
	for _, n := range h.Numbers {
		ok = ok && (w.noAbsent || w.keys[n] == 0)
	}
	for _, a := range h.Areas {
		ok = ok && (w.noArea || unchanged(a.Area, a.Revision))
	}
	for _, b := range h.Blocks {
		if len(b.Runs) == 0 {
			ok = ok && (w.noName || w.blocks[b.name()].Count == 0)
		}
		for _, run := range b.Runs {
			for n := run.From; n < run.To && !w.noRuns; n++ {
				ok = ok && w.keys[n] == 0
			}
		}
	}
	if !ok {
		return 0, false
	}
	w.rev++
	w.took++
	for _, n := range h.Numbers {
		w.check(w.keys[n] == 0, "number %d is held twice by keys", n)
		w.keys[n] = w.rev
	}
	for _, b := range h.Blocks {
		w.check(w.blocks[b.name()].Count == 0, "block %v is overwritten", b.name())
		b.Created = w.rev
		w.blocks[b.name()] = b
	}
	w.checkUse(h)
	return w.rev, true
}

// checkUse checks what is held after slots were taken.
func (w *world) checkUse(h Held) {
	used, held := len(w.keys), map[int]bool{}
	for n := range w.keys {
		held[n] = true
	}
	for _, b := range w.blocks {
		used += b.Count
		for _, run := range b.Runs {
			for n := run.From; n < run.To; n++ {
				w.check(!held[n], "number %d is held twice, by a block", n)
				held[n] = true
			}
		}
	}
	if w.spec.Limit == Unlimited {
		return
	}
	w.check(used <= w.spec.Limit, "%d of %d slots are used", used, w.spec.Limit)
	for n := range h.all() {
		w.check(n < w.spec.Limit, "number %d of a limit of %d", n, w.spec.Limit)
	}
	w.check(len(h.Areas) > 0 && h.Compares() <= MaxCompares, "areas %v, %d compares", h.Areas, h.Compares())
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

// release has an instance give the slots of one of its claims back.
func (w *world) release(i *instance) {
	if len(i.held) == 0 {
		return
	}
	n := w.IntN(len(i.held))
	h := i.held[n]
	i.held = slices.Delete(i.held, n, n+1)
	i.pending = append(i.pending, func() {
		w.rev++
		for _, n := range h.Numbers {
			delete(w.keys, n)
		}
		for _, b := range h.Blocks {
			delete(w.blocks, b.name())
		}
		i.pending = append(i.pending, func() { i.Freed(h) })
	})
}

// rest has everything arrive. Then an instance that has read all slot keys finds every slot that is free.
func (w *world) rest() {
	for _, i := range w.all {
		for len(i.pending) > 0 {
			w.deliver(i)
		}
	}
	for _, i := range w.all {
		for i.Forget(); !i.Ready(); {
			w.read(i)
			i.pending[0]()
			i.pending = nil
		}
		if r := (Reading{Revision: w.rev, Spec: w.spec, Blocks: slices.Collect(maps.Values(w.blocks)), Numbers: slices.Sorted(maps.Keys(w.keys)), To: MaxNumbersOfPool}); !w.mutated() {
			i.Read(r)
		}
		w.findsAll(i)
	}
}

func (w *world) mutated() bool { return w.rules != rules{} }

func (w *world) findsAll(i *instance) {
	used := len(w.keys)
	for _, b := range w.blocks {
		used += b.Count
	}
	free := w.spec.Limit - used
	if w.mutated() || free <= 0 {
		return
	}
	h, ok := i.Take(min(free, MaxNumbers), false)
	if w.check(ok, "%d of %d slots are free, and none is found below the ceiling %d", free, w.spec.Limit, i.ceiling.try); ok {
		i.Abandon(h)
	}
	if _, more := i.Take(free+1, free >= MaxNumbers); more {
		w.check(false, "%d of %d slots are free, and one more is found", free, w.spec.Limit)
	}
}

const steps = 1000

func TestNoNumberIsHeldTwiceAndNoLimitIsExceeded(t *testing.T) {
	long(t)
	t.Parallel()
	took := 0
	for seed := range uint64(2000) {
		w := newWorld(seed, rules{}).run(steps)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, w.errs[0])
		}
		took += w.took
	}
	if t.Logf("%d claims were made", took); took < 20_000 {
		t.Errorf("only %d claims were made", took)
	}
}

func TestEveryRuleIsNeeded(t *testing.T) {
	long(t)
	for name, without := range map[string]rules{
		"the compare of the spec":             {noSpec: true},
		"the compare of a slot key":           {noAbsent: true},
		"the compare of an area":              {noArea: true},
		"the compares of the runs of a block": {noRuns: true},
		"the compare of a block's name":       {noName: true},
		"the ceiling":                         {limitIsCeiling: true},
		"blocks without numbers":              {noCounts: true},
		"the age of readings and areas":       {olderReadings: true},
		"what is known later":                 {overwrite: true},
		"the numbers of blocks":               {blocksAreHints: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				if w := newWorld(seed, without).run(steps); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}

// long skips a test of many schedules when the tests are shortened, as with the race detector: nothing here is concurrent.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
}
