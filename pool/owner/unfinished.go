package owner

import "iter"

// Unfinished returns how many of some claims have slots, or may have some.
func (o *Owner) Unfinished(claims iter.Seq[*Claim]) (n int) {
	for c := range claims {
		switch c.state {
		case taking, held, releasing, freeing:
			n++
		}
	}
	return n
}
