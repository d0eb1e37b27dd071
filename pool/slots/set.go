package slots

import "math/bits"

// set is a set of numbers.
type set []uint64

const word = 64

func (s set) has(n int) bool { return n/word < len(s) && s[n/word]>>(n%word)&1 == 1 }

func (s *set) add(n int) {
	for len(*s) <= n/word {
		*s = append(*s, 0)
	}
	(*s)[n/word] |= 1 << (n % word)
}

func (s set) remove(n int) {
	if n/word < len(s) {
		s[n/word] &^= 1 << (n % word)
	}
}

func (s *set) addRun(r Run) {
	for n := r.From; n < r.To; n++ {
		s.add(n)
	}
}

// removeRun removes the numbers of a run, which may be larger than the set.
func (s set) removeRun(r Run) {
	for n := r.From; n < min(r.To, len(s)*word); n++ {
		s.remove(n)
	}
}

// firstIn returns the first number of a run that is in none of the sets, or the end of the run if there is none.
func firstIn(r Run, without []set) int {
	for n := r.From; n < r.To; n = (n/word + 1) * word {
		var used uint64
		for _, s := range without {
			if n/word < len(s) {
				used |= s[n/word]
			}
		}
		if free := ^used >> (n % word); free != 0 {
			return min(r.To, n+bits.TrailingZeros64(free))
		}
	}
	return r.To
}
