package ui

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

const (
	// limitsShown is how many limits of tags the queue shows, unless it is asked for all.
	limitsShown = 8
	// valuesShown is how many values it shows of a limit that each value has by itself.
	valuesShown = 5
)

// tagUse is what runs in progress take of limits.
type tagUse struct {
	runs int
	// tags are how many have a tag, by key and value.
	tags map[string]map[string]int
}

func tagUseOf(set *runSet) tagUse {
	use := tagUse{len(set.progress), map[string]map[string]int{}}
	for _, r := range set.progress {
		for key, value := range r.Tags {
			if use.tags[key] == nil {
				use.tags[key] = map[string]int{}
			}
			use.tags[key][value]++
		}
	}
	return use
}

// limitsView is the limits that runs are admitted under, and how full they are.
type limitsView struct {
	// Wrong says why they can't be read.
	Wrong string
	Rows  []limitRow
	// More is how many are not shown, and All where they are.
	More int
	All  string
}

// limitRow is one limit.
type limitRow struct {
	// Name is what is limited. The first row is about all runs, and has none.
	Name string
	// Each is the limit that each value has by itself, of which this is one: KEY=*.
	Each string
	// Used of Limit, which is [run.Unlimited] for none.
	Used, Limit int
	// Hidden is how many more values of such a limit are in use, less than this one.
	Hidden int
}

// Closed tells that the limit admits no run.
func (l limitRow) Closed() bool { return l.Limit == 0 }

// fullness is how full a limit is. One that admits nothing is full.
func (l limitRow) fullness() float64 {
	if l.Limit == 0 {
		return max(1, float64(l.Used))
	}
	return float64(l.Used) / float64(l.Limit)
}

// limitsOf returns the limits: that of all runs first, then those of tags, the fullest
// first.
func limitsOf(around surroundings, use tagUse, at listAddress) limitsView {
	if around.limitsWrong != nil {
		return limitsView{Wrong: text.Visible(around.limitsWrong.Error())}
	}
	var tags []limitRow
	for _, t := range around.limits.Tags {
		tags = append(tags, limitRows(t, use.tags[t.Key])...)
	}
	slices.SortStableFunc(tags, func(a, b limitRow) int {
		return cmp.Or(cmp.Compare(b.fullness(), a.fullness()), cmp.Compare(a.Name, b.Name))
	})
	v := limitsView{Rows: []limitRow{{Used: use.runs, Limit: around.limits.MaxConcurrentRuns}}}
	if more := len(tags) - limitsShown; more > 0 && at.query.Get("limits") != "all" {
		v.More, v.All = more, at.with("limits", "all")
		tags = tags[:limitsShown]
	}
	v.Rows = append(v.Rows, tags...)
	return v
}

// limitRows are the rows of a limit of a tag, of whose values so many runs have each.
func limitRows(t run.TagLimit, values map[string]int) []limitRow {
	switch {
	case !t.PerUniqueValue && t.Value != "":
		return []limitRow{{Name: text.Visible(t.Name()), Used: values[t.Value], Limit: t.Limit}}
	case !t.PerUniqueValue:
		row := limitRow{Name: text.Visible(t.Name()), Limit: t.Limit}
		for _, n := range values {
			row.Used += n
		}
		return []limitRow{row}
	case len(values) == 0:
		return []limitRow{{Name: text.Visible(t.Name()), Each: text.Visible(t.Name()), Limit: t.Limit}}
	}
	fullest := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	var rows []limitRow
	for _, value := range fullest[:min(len(fullest), valuesShown)] {
		rows = append(rows, limitRow{Name: text.Visible(t.Key + "=" + value), Each: text.Visible(t.Name()), Used: values[value], Limit: t.Limit})
	}
	rows[len(rows)-1].Hidden = len(fullest) - len(rows)
	return rows
}

// sortedPools are slots by the name of their pool, in order.
func sortedPools(slots map[string]int) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for _, name := range slices.Sorted(maps.Keys(slots)) {
			if !yield(name, slots[name]) {
				return
			}
		}
	}
}
