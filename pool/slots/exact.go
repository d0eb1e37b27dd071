package slots

import (
	"math/bits"
	"slices"
)

// Exact is the slots of a pool as one knows them who follows all its keys, and those that are lent: that have been
// offered, and that the owner of a claim may take at any moment. What is lent is offered to no other claim.
type Exact struct {
	spec   Spec
	layout layout
	keys   set // numbers that are held by a key each
	listed set // those that blocks hold
	blocks map[blockName]Block
	held   int // slots

	lent   set // numbers
	unheld int // numbers that are lent, and not held
	// Of blocks that are lent: how many there are in an area, and their names.
	inArea map[int]int
	names  map[blockName]bool

	top   int  // the ceiling
	known bool // top is
	low   int  // no number below is free
}

// NewExact returns a pool without slots.
func NewExact() *Exact {
	return &Exact{blocks: map[blockName]Block{}, inArea: map[int]int{}, names: map[blockName]bool{}}
}

// Spec returns the spec that was set last.
func (e *Exact) Spec() Spec { return e.spec }

// SetSpec sets the spec.
func (e *Exact) SetSpec(s Spec) { e.spec, e.layout, e.known, e.low = s, layoutOf(s.Limit), false, 0 }

// Used returns how many slots are held or lent.
func (e *Exact) Used() int { return e.held + e.unheld }

// Held returns how many slots are held.
func (e *Exact) Held() int { return e.held }

// Add records that a number is held by a key.
func (e *Exact) Add(n int) {
	if e.keys.has(n) {
		return
	}
	e.change(n, func() { e.keys.add(n) })
	e.held++
}

// Remove records that a number is no longer held by a key.
func (e *Exact) Remove(n int) {
	if !e.keys.has(n) {
		return
	}
	e.change(n, func() { e.keys.remove(n) })
	e.held--
}

// change changes whether a number is held.
func (e *Exact) change(n int, by func()) {
	was := e.has(n)
	by()
	switch is := e.has(n); {
	case was == is:
	case is && e.lent.has(n):
		e.unheld--
	case e.lent.has(n):
		e.unheld++
	case !is:
		e.low = min(e.low, n)
	}
	if n >= e.top {
		e.known = false
	}
}

// has reports whether a number is held.
func (e *Exact) has(n int) bool { return e.keys.has(n) || e.listed.has(n) }

// AddBlock records that a block is held, in place of one of the same name.
func (e *Exact) AddBlock(b Block) {
	e.RemoveBlock(b.Area, b.Name)
	e.blocks[b.name()] = b
	e.held += b.Count
	e.changeRuns(b, (*set).add)
}

// RemoveBlock records that a block is no longer held.
func (e *Exact) RemoveBlock(area, name int) {
	b, ok := e.blocks[blockName{area, name}]
	if !ok {
		return
	}
	delete(e.blocks, b.name())
	e.held -= b.Count
	e.changeRuns(b, func(s *set, n int) { s.remove(n) })
}

func (e *Exact) changeRuns(b Block, by func(*set, int)) {
	if len(b.Runs) == 0 {
		e.known = false
	}
	for _, r := range b.Runs {
		for n := r.From; n < r.To; n++ {
			e.change(n, func() { by(&e.listed, n) })
		}
	}
}

// Ceiling returns the number below which claims may take numbers.
func (e *Exact) Ceiling() int {
	if !e.known {
		c := ceilingOf(max(0, e.spec.Limit))
		for !c.known {
			c.counted(e.from(c.try))
		}
		e.top, e.known = c.try, true
	}
	return e.top
}

// from returns how many slots are held at or above a number, those without numbers included.
func (e *Exact) from(first int) (n int) {
	n = e.keys.countFrom(first) + e.listed.countFrom(first)
	for _, b := range e.blocks {
		if len(b.Runs) == 0 {
			n += b.Count
		}
	}
	return n
}

// Choose returns n slots that are neither held nor lent, for a put under compares of what is known at a revision; false
// if there are none, or if only areas have them in which a block is lent to another claim: of two blocks of one area,
// the put of the second one fails. The hash is that of the owner.
func (e *Exact) Choose(n int, blocks bool, hash uint32, revision int64) (Held, bool) {
	h := Held{Spec: e.spec.Revision}
	if e.spec.Limit == Unlimited {
		h.Blocks = []Block{e.newBlock(0, nil, n, hash, nil)}
		return h, true
	}
	e.low = firstIn(Run{e.low, max(e.low, e.Ceiling())}, e.taken())
	without, with := e.searched()
	if blocks {
		for _, in := range chooseRuns(e.layout, without, e.taken(), n) {
			h.Blocks = append(h.Blocks, e.newBlock(in.area, in.runs, 0, hash, h.Blocks))
		}
	} else {
		h.Numbers = chooseNumbers(without, e.taken(), n)
		h.Numbers = append(h.Numbers, chooseNumbers(with, e.taken(), n-len(h.Numbers))...)
	}
	h.Areas = e.layout.areasOf(h, func(int) int64 { return revision })
	return h, h.Slots() == n
}

func (e *Exact) taken() []set { return []set{e.keys, e.listed, e.lent} }

// searched returns the numbers that may be free, of areas without and with a block that is lent.
func (e *Exact) searched() (without, with []Run) {
	all := Run{e.low, e.Ceiling()}
	if len(e.inArea) == 0 {
		return []Run{all}, nil
	}
	for area := range e.layout.areas() {
		r := e.layout.numbers(area)
		r = Run{max(r.From, all.From), min(r.To, all.To)}
		if r.Len() <= 0 {
			continue
		}
		if e.inArea[area] > 0 {
			with = append(with, r)
		} else {
			without = append(without, r)
		}
	}
	return without, with
}

// newBlock returns a block with the lowest name that no block has, nor one of some others that are to be put with it.
func (e *Exact) newBlock(area int, runs []Run, count int, hash uint32, others []Block) Block {
	return newBlock(area, runs, count, hash, func(name blockName) bool {
		return e.names[name] || e.blocks[name].Count > 0 || slices.ContainsFunc(others, func(o Block) bool { return o.name() == name })
	})
}

// Lend records that slots are offered.
func (e *Exact) Lend(h Held) {
	for n := range h.all() {
		if e.lent.add(n); !e.has(n) {
			e.unheld++
		}
	}
	for _, b := range h.Blocks {
		e.names[b.name()] = true
		if len(b.Runs) > 0 {
			e.inArea[b.Area]++
		}
	}
}

// Return records that slots that were lent can no longer be taken, or have been.
func (e *Exact) Return(h Held) {
	for n := range h.all() {
		if !e.lent.has(n) {
			continue
		}
		if e.lent.remove(n); !e.has(n) {
			e.unheld--
			e.low = min(e.low, n)
		}
	}
	for _, b := range h.Blocks {
		if !e.names[b.name()] {
			continue
		}
		delete(e.names, b.name())
		if len(b.Runs) == 0 {
			continue
		}
		if e.inArea[b.Area]--; e.inArea[b.Area] <= 0 {
			delete(e.inArea, b.Area)
		}
	}
}

// countFrom returns how many numbers of a set are at or above one.
func (s set) countFrom(first int) (n int) {
	if first/word >= len(s) {
		return 0
	}
	n = bits.OnesCount64(s[first/word] >> (first % word))
	for _, w := range s[first/word+1:] {
		n += bits.OnesCount64(w)
	}
	return n
}
