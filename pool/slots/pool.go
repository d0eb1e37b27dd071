package slots

import (
	"slices"
	"time"
)

// seenFor is for how long a number that another instance holds is avoided at least, and half of that for which it is
// avoided at most, if no read shows it again. Taking what others have just released loses races: 2,700 instead of
// 23,500 claims/s in a free pool on four hosts.
const seenFor = 30 * time.Second

// Spec is what claims depend on in the spec of a pool.
type Spec struct {
	// Limit of slots, or [Unlimited].
	Limit int
	// Revision of the spec's key, and that since which its limit holds.
	Revision, Since int64
}

// Reading is what was read of a pool at one revision.
type Reading struct {
	Revision int64
	Spec     Spec
	// Blocks are all blocks.
	Blocks []Block
	// Numbers are those of all slot keys from From to To-1.
	Numbers  []int
	From, To int
	// Count is how many slot keys there are at or above the number CountFrom, if they were counted.
	Counted          bool
	CountFrom, Count int
}

// Pool is what one instance remembers of a pool. A claim is tried with Take, and its outcome is recorded by Took or
// Lost; until then no other claim takes the same numbers. Slots that are given back are recorded by Freed.
type Pool struct {
	hash    uint32
	spec    Spec
	layout  layout
	ceiling ceiling

	// Blocks are known at the revision of the last reading or, in an area in known, at that one. What was known is
	// not current after Forget, but is not replaced by what is older.
	blocks  map[blockName]Block
	current bool
	read    int64
	known   map[int]int64
	listed  set // the numbers of blocks

	mine  set                // numbers that claims of this instance hold by a key each
	busy  set                // numbers of claims that are being tried
	tried map[blockName]bool // blocks of claims that are being tried
	names map[blockName]bool // blocks that this instance holds
	freed []int              // numbers that this instance has released, the last one at the end; some are in use again
	seen  [2]set             // numbers that other instances hold, those that were seen last first
	aged  time.Duration
}

// New returns a pool of which nothing is known. Instances with different hashes begin to search at different numbers.
func New(hash uint32) *Pool {
	return &Pool{hash: hash, blocks: map[blockName]Block{}, known: map[int]int64{}, tried: map[blockName]bool{}, names: map[blockName]bool{}}
}

// Ready reports whether claims can be tried.
func (p *Pool) Ready() bool { return p.current && (p.spec.Limit == Unlimited || p.ceiling.known) }

// Missing returns the number at and above which slot keys have to be counted, at the same or a later revision than
// that of the last reading, before claims can be tried. It is false if a reading is missing, or nothing.
func (p *Pool) Missing() (from int, ok bool) {
	return p.ceiling.try, p.current && !p.Ready()
}

// Read records a reading, unless a later one was recorded.
func (p *Pool) Read(r Reading) {
	if r.Revision < p.read {
		return
	}
	if r.Spec.Since != p.spec.Since {
		p.layout, p.ceiling = layoutOf(r.Spec.Limit), ceilingOf(r.Spec.Limit)
		clear(p.known) // the areas are others
	}
	p.spec, p.read, p.current = r.Spec, r.Revision, true
	p.readBlocks(r)
	p.readNumbers(r)
	p.findCeiling(r)
}

// readBlocks replaces the blocks of all areas but those that are known at a later revision.
func (p *Pool) readBlocks(r Reading) {
	newer := func(area int) bool { return p.known[area] > r.Revision }
	for name := range p.blocks {
		if !newer(name.area) {
			delete(p.blocks, name)
		}
	}
	for _, b := range r.Blocks {
		if !newer(b.Area) {
			p.blocks[b.name()] = b
		}
	}
	p.list()
}

// list collects the numbers of blocks.
func (p *Pool) list() {
	clear(p.listed)
	for _, b := range p.blocks {
		for _, run := range b.Runs {
			p.listed.addRun(run)
		}
	}
}

func (p *Pool) readNumbers(r Reading) {
	for i := range p.seen {
		p.seen[i].removeRun(Run{r.From, r.To})
	}
	for _, n := range r.Numbers {
		if !p.mine.has(n) {
			p.seen[0].add(n)
		}
	}
	p.freed = slices.DeleteFunc(p.freed, p.seen[0].has)
}

// findCeiling finds the ceiling by all slot keys if a reading has them, and else tries it with what was counted.
func (p *Pool) findCeiling(r Reading) {
	if r.From > 0 || r.To < MaxNumbersOfPool {
		if r.Counted && r.CountFrom == p.ceiling.try && !p.ceiling.known {
			p.ceiling.counted(r.Count + p.inBlocks(p.ceiling.try))
		}
		return
	}
	c := ceilingOf(p.spec.Limit)
	for !c.known {
		i, _ := slices.BinarySearch(r.Numbers, c.try)
		c.counted(len(r.Numbers) - i + p.inBlocks(c.try))
	}
	p.ceiling = c
}

// inBlocks returns how many slots blocks hold at or above a number, those without numbers included.
func (p *Pool) inBlocks(from int) (n int) {
	for _, b := range p.blocks {
		if len(b.Runs) == 0 {
			n += b.Count
		}
		for _, run := range b.Runs {
			n += max(0, run.To-max(run.From, from))
		}
	}
	return n
}

// Forget forgets the spec, the ceiling and the blocks: they may have changed unseen.
func (p *Pool) Forget() {
	p.current, p.ceiling = false, ceilingOf(p.spec.Limit)
}

// Restored forgets all that was read: it may be later than anything that can be read now. What this instance holds or tries stays.
func (p *Pool) Restored() {
	n := New(p.hash)
	n.mine, n.busy, n.tried, n.names = p.mine, p.busy, p.tried, p.names
	*p = *n
}

// Age ends the time in which numbers that others hold are avoided. It is to be called at least each half minute.
func (p *Pool) Age(now time.Duration) {
	if now-p.aged >= seenFor {
		p.seen[0], p.seen[1], p.aged = nil, p.seen[0], now
	}
}

// Take returns n slots to try, false if there are none as far as is known. A claim of many slots takes blocks.
func (p *Pool) Take(n int, blocks bool) (Held, bool) {
	h := Held{Spec: p.spec.Revision}
	switch {
	case !p.Ready():
		return h, false
	case p.spec.Limit == Unlimited:
		h.Blocks = []Block{p.newBlock(0, nil, n)}
	case blocks:
		for _, in := range chooseRuns(p.layout, p.searched(n), p.unavailable(), n) {
			h.Blocks = append(h.Blocks, p.newBlock(in.area, in.runs, 0))
		}
	default:
		h.Numbers = p.chooseNumbers(n)
	}
	h.Areas = p.layout.areasOf(h, func(area int) int64 { return max(p.read, p.known[area]) })
	p.mark(h, true)
	if h.Slots() < n || h.Compares() > MaxCompares {
		p.Abandon(h)
		return Held{}, false
	}
	return h, true
}

// Reserve has slots tried that were offered to this instance, unless they are being tried already. That a claim of this
// instance holds them is no reason against it: it may have been freed unseen.
func (p *Pool) Reserve(h Held) bool {
	for number := range h.all() {
		if p.busy.has(number) {
			return false
		}
	}
	for _, b := range h.Blocks {
		if p.tried[b.name()] {
			return false
		}
	}
	p.mark(h, true)
	return true
}

// searched returns the numbers that may be taken, from where this instance begins to search: the part behind that,
// and the part before it. Where nothing is in use, n slots are neighbors.
func (p *Pool) searched(n int) []Run {
	end := p.ceiling.try
	first := max(0, min(p.layout.first(p.hash), end-n))
	return []Run{{first, end}, {0, first}}
}

// unavailable are the numbers that are in use as far as is known.
func (p *Pool) unavailable() []set { return []set{p.mine, p.busy, p.listed, p.seen[0], p.seen[1]} }

// chooseNumbers takes numbers that this instance released last, then those that no instance was seen to hold, and then
// those that were seen longest ago.
func (p *Pool) chooseNumbers(n int) (numbers []int) {
	used := []set{p.mine, p.busy, p.listed, nil}
	for len(p.freed) > 0 && len(numbers) < n {
		number := p.freed[len(p.freed)-1]
		p.freed = p.freed[:len(p.freed)-1]
		if number < p.ceiling.try && firstIn(Run{number, number + 1}, used) == number {
			numbers = append(numbers, number)
			used[3].add(number)
		}
	}
	if numbers = append(numbers, chooseNumbers(p.searched(n), append(used, p.seen[0], p.seen[1]), n-len(numbers))...); len(numbers) < n {
		for _, number := range numbers {
			used[3].add(number)
		}
		numbers = append(numbers, chooseNumbers(p.searched(n), append(used, p.seen[0]), n-len(numbers))...)
	}
	return numbers
}

// newBlock returns a block with the lowest free name of this instance, and reserves the name.
func (p *Pool) newBlock(area int, runs []Run, count int) Block {
	b := newBlock(area, runs, count, p.hash, func(name blockName) bool {
		return p.names[name] || p.tried[name] || p.blocks[name].Count > 0
	})
	p.tried[b.name()] = true // the next block of the same claim may be in the same area
	return b
}

// mark reserves the numbers and blocks that are being tried, or ends that.
func (p *Pool) mark(h Held, busy bool) {
	change := p.busy.remove
	if busy {
		change = p.busy.add
	}
	for number := range h.all() {
		change(number)
	}
	for _, b := range h.Blocks {
		if busy {
			p.tried[b.name()] = true
		} else {
			delete(p.tried, b.name())
		}
	}
}

// Took records that the keys of a claim were put in a revision, and returns what is held. Since no block was created in its
// areas since the revision that was compared, those are known at that of the put, if they were known at the former.
func (p *Pool) Took(h Held, revision int64) Held {
	p.mark(h, false)
	for _, a := range h.Areas {
		if max(p.read, p.known[a.Area]) >= a.Revision {
			p.known[a.Area] = max(p.known[a.Area], revision)
		}
	}
	for _, n := range h.Numbers {
		p.mine.add(n)
	}
	h.Blocks = slices.Clone(h.Blocks)
	for i := range h.Blocks {
		b := &h.Blocks[i]
		b.Created = revision
		p.blocks[b.name()], p.names[b.name()] = *b, true
		for _, run := range b.Runs {
			p.listed.addRun(run)
		}
	}
	return h
}

// Lost records that the keys of a claim were not put. Its numbers are avoided, since another instance may hold them.
func (p *Pool) Lost(h Held) {
	p.Abandon(h)
	for number := range h.all() {
		p.seen[0].add(number)
	}
}

// Abandon ends that slots are tried: nothing was put.
func (p *Pool) Abandon(h Held) { p.mark(h, false) }

// Adopt records that a claim of this instance holds slots that another instance has taken.
func (p *Pool) Adopt(h Held) {
	for _, n := range h.Numbers {
		p.mine.add(n)
		p.seen[0].remove(n)
		p.seen[1].remove(n)
	}
	for _, b := range h.Blocks {
		p.names[b.name()] = true
	}
}

// Spec returns the spec that was read last.
func (p *Pool) Spec() Spec { return p.spec }

// Below reports whether all numbers of what is held are below the ceiling, so that another claim may take them over. A
// count of the time when the pool had no limit has no numbers: it is above any ceiling.
func (p *Pool) Below(h Held) bool {
	if !p.Ready() || p.spec.Limit == Unlimited {
		return p.Ready()
	}
	for number := range h.all() {
		if number >= p.ceiling.try {
			return false
		}
	}
	return !slices.ContainsFunc(h.Blocks, func(b Block) bool { return len(b.Runs) == 0 })
}

// Vanished records that the keys of a claim are gone, and that others may have taken what it has held.
func (p *Pool) Vanished(h Held) {
	for _, n := range h.Numbers {
		p.mine.remove(n)
		p.seen[0].add(n)
	}
	for _, b := range h.Blocks {
		delete(p.names, b.name())
	}
}

// Freed records that what a claim has held is free: its keys were deleted in the versions that it had.
func (p *Pool) Freed(h Held) {
	for _, n := range h.Numbers {
		if p.mine.has(n) {
			p.mine.remove(n)
			p.freed = append(p.freed, n)
		}
	}
	for _, b := range h.Blocks {
		delete(p.names, b.name())
		if p.blocks[b.name()].Created == b.Created {
			delete(p.blocks, b.name())
		}
	}
	if len(h.Blocks) > 0 {
		p.list()
	}
}
