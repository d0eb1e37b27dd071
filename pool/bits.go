package pool

import "math/bits"

// bitset is a set of small numbers, made to find the lowest one that is free.
type bitset []uint64

func (b *bitset) set(i int) {
	for i/64 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) clear(i int) {
	if i/64 < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

// free returns the lowest number from from on that is not in the set.
func (b bitset) free(from int) int {
	for w := from / 64; w < len(b); w++ {
		open := ^b[w]
		if w == from/64 {
			open &= ^uint64(0) << (from % 64)
		}
		if open != 0 {
			return w*64 + bits.TrailingZeros64(open)
		}
	}
	return max(from, len(b)*64)
}
