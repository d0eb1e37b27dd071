package ui

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// took is the time between two that are known, by clocks that may differ a little;
// empty if one is not known.
func took(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return ""
	}
	return text.Duration(max(0, to.Sub(from)))
}

// pair is a name with what it is set to.
type pair struct{ Key, Value string }

// pairsOf are tags, labels or the like by name, to be looked at.
func pairsOf(m map[string]string) []pair {
	all := make([]pair, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, pair{text.Visible(key), text.Visible(m[key])})
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
		all = append(all, text.Visible(err.Error()))
	}
	if more := len(bad) - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}
