package slots

import (
	"cmp"
	"iter"
	"slices"
)

const (
	// MaxNumbers is the most slots that a claim takes by a key each in one pool; more are taken by blocks.
	MaxNumbers = 32
	// MaxKeys is the most slot keys of a claim in all its pools.
	MaxKeys = 64
	// MaxRuns bounds the runs of a block, each of which is compared.
	MaxRuns = 64
	// MaxNumbersOfPool bounds the numbers of a pool: it is the highest limit.
	MaxNumbersOfPool = 1_000_000
	// MaxCompares bounds the compares of a claim. etcd accepts 128 in a transaction: 16 of them are for conditions of the
	// caller, and 4 for what else is in the transaction.
	MaxCompares = 108
)

// Block is a key that holds numbers of one area or, in a pool without a limit, a count of slots.
type Block struct {
	Area, Name int
	Runs       []Run // ascending, disjoint; none in a pool without a limit
	Count      int   // of slots
	// Created is the revision that created the key; 0 if it is to be put.
	Created int64
}

// name returns what identifies a block among those of its pool.
func (b Block) name() blockName { return blockName{b.Area, b.Name} }

type blockName struct{ area, name int }

const (
	// blockBases and blockStep distribute the names of blocks: an instance counts from blockStep times its hash modulo
	// blockBases, so that instances rarely meet.
	blockBases = 4096
	blockStep  = 64
)

// newBlock returns a block of runs, or of a count, with the lowest name that is not used of those of an instance with a hash.
func newBlock(area int, runs []Run, count int, hash uint32, used func(blockName) bool) Block {
	b := Block{Area: area, Runs: runs, Count: count, Name: int(hash%blockBases) * blockStep}
	for _, run := range runs {
		b.Count += run.Len()
	}
	for used(b.name()) {
		b.Name++
	}
	return b
}

// Held is the slots of one claim in one pool, and what a put of their keys depends on besides their absence.
type Held struct {
	// Numbers are taken by a slot key each, Blocks by themselves.
	Numbers []int
	Blocks  []Block
	// Spec is the revision of the spec.
	Spec int64
	// Areas are those of the numbers and blocks, in which no block may have been created after a revision. A
	// pool without a limit has none.
	Areas []Area
}

// Area is an area whose blocks are known at a revision.
type Area struct {
	Area     int
	Revision int64
}

// Runs returns the numbers that are held as runs, those of blocks too: one compare says that no number of a run is taken.
func (h Held) Runs() (runs []Run) {
	var all []Run
	for _, n := range h.Numbers {
		all = append(all, Run{n, n + 1})
	}
	for _, b := range h.Blocks {
		all = append(all, b.Runs...)
	}
	slices.SortFunc(all, func(a, b Run) int { return cmp.Compare(a.From, b.From) })
	for _, r := range all {
		if last := len(runs) - 1; last >= 0 && runs[last].To == r.From {
			runs[last].To = r.To
		} else {
			runs = append(runs, r)
		}
	}
	return runs
}

// Areas is neighboring areas whose blocks are known at a revision or later: one compare covers them.
type Areas struct {
	From, To int // To is the last one
	Revision int64
}

// AreaRuns returns the areas as such.
func (h Held) AreaRuns() (runs []Areas) {
	for _, a := range slices.SortedFunc(slices.Values(h.Areas), func(a, b Area) int { return cmp.Compare(a.Area, b.Area) }) {
		if last := len(runs) - 1; last >= 0 && runs[last].To == a.Area-1 {
			runs[last].To, runs[last].Revision = a.Area, min(runs[last].Revision, a.Revision)
		} else {
			runs = append(runs, Areas{a.Area, a.Area, a.Revision})
		}
	}
	return runs
}

// WholePool instead of an area says that nothing was created in a whole pool since a revision: one compare for all that is held.
const WholePool = -1

// Whole returns the revision since which nothing may have been created in the pool, false if areas and runs are compared.
func (h Held) Whole() (revision int64, ok bool) {
	if len(h.Areas) != 1 || h.Areas[0].Area != WholePool {
		return 0, false
	}
	return h.Areas[0].Revision, true
}

// CompareWhole has the whole pool compared, which was known at a revision.
func (h *Held) CompareWhole(revision int64) { h.Areas = []Area{{WholePool, revision}} }

// Compares returns how many compares a put of the keys needs.
func (h Held) Compares() int {
	if _, whole := h.Whole(); whole {
		return 2
	}
	n := 1 + len(h.Runs()) + len(h.AreaRuns())
	for _, b := range h.Blocks {
		if len(b.Runs) == 0 {
			n++
		}
	}
	return n
}

// Slots returns how many slots are held.
func (h Held) Slots() int {
	n := len(h.Numbers)
	for _, b := range h.Blocks {
		n += b.Count
	}
	return n
}

// Repeats reports whether a number or a block comes twice, so that etcd would refuse a put of all keys.
func (h Held) Repeats() bool {
	seen, blocks := map[int]bool{}, map[blockName]bool{}
	for n := range h.all() {
		if seen[n] {
			return true
		}
		seen[n] = true
	}
	for _, b := range h.Blocks {
		if blocks[b.name()] {
			return true
		}
		blocks[b.name()] = true
	}
	return false
}

// all returns the numbers that are held, by blocks too.
func (h Held) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, n := range h.Numbers {
			if !yield(n) {
				return
			}
		}
		for _, b := range h.Blocks {
			for _, run := range b.Runs {
				for n := run.From; n < run.To; n++ {
					if !yield(n) {
						return
					}
				}
			}
		}
	}
}

// ByBlocks returns the pools of which a claim takes blocks, of those with a limit: each of which it needs more than
// [MaxNumbers] slots, and then the largest ones, until the others have at most [MaxKeys] slots in all. Of two
// that need the same, the first by name is taken.
func ByBlocks(needs map[string]int) map[string]bool {
	var byKeys []string
	blocks, keys := map[string]bool{}, 0
	for pool, n := range needs {
		if n > MaxNumbers {
			blocks[pool] = true
			continue
		}
		byKeys, keys = append(byKeys, pool), keys+n
	}
	slices.SortFunc(byKeys, func(a, b string) int { return cmp.Or(cmp.Compare(needs[b], needs[a]), cmp.Compare(a, b)) })
	for _, pool := range byKeys {
		if keys <= MaxKeys {
			break
		}
		blocks[pool], keys = true, keys-needs[pool]
	}
	return blocks
}
