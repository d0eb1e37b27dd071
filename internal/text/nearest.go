package text

import "github.com/xrash/smetrics"

// near is how alike two words must be for one to be meant by the other, from 0
// to 1: "lst" and "list" are, "foo" and "info" are not.
const near = 0.8

// Nearest returns the word that was probably meant by another one, or nothing.
func Nearest(word string, words []string) string {
	best, found := near, ""
	for _, w := range words {
		if d := smetrics.JaroWinkler(word, w, 0.7, 4); d > best {
			best, found = d, w
		}
	}
	return found
}
