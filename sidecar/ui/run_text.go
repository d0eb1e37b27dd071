package ui

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/berthhq/berth/coordinator/step"
)

// visible makes a text of others fit to be looked at: what would not be seen, or would
// have a reader see something else, as marks that turn the direction of writing do, is
// spelled out. Lines and tabs stay.
func visible(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r < ' ':
			b.WriteString("^" + string('@'+r)) // as terminals do: ^[ is an escape
		case r == 0x7f:
			b.WriteString("^?")
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// hidden tells whether a rune is to be spelled out; [unicode.ReplacementChar] is one
// that is not UTF-8, too.
func hidden(r rune) bool {
	return r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar
}

// took is the time between two that are known, by clocks that may differ a little;
// empty if one is not known.
func took(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return ""
	}
	return formatDuration(max(0, to.Sub(from)))
}

// pair is a name with what it is set to.
type pair struct{ Key, Value string }

// pairsOf are tags, labels or the like by name, to be looked at.
func pairsOf(m map[string]string) []pair {
	all := make([]pair, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, pair{visible(key), visible(m[key])})
	}
	return all
}

// countsText says how many instances there are of each status: what has ended badly
// first, and nothing of which there is none.
func countsText(counts map[step.Status]int) string {
	var all []string
	for _, s := range countsOrder {
		if n := counts[s]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(all, ", ")
}

var countsOrder = []step.Status{step.Failed, step.Canceled, step.Running, step.Scheduled, step.Requested, step.Succeeded}

// fewBad are the first of values that can't be read.
func fewBad(bad []error) []string {
	const most = 5
	var all []string
	for _, err := range bad[:min(most, len(bad))] {
		all = append(all, visible(err.Error()))
	}
	if more := len(bad) - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}
