package step

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// numbered is the field of a step that has no name to be called by.
func numbered(number int) string { return fmt.Sprintf("steps[%d]", number) }

// needsOf returns for each spec the places of those that it needs, or refuses names
// that are not unique, unknown or given twice.
func needsOf(specs []Spec) ([][]int, error) {
	places := make(map[string]int, len(specs))
	for i := range specs {
		name := specs[i].Name
		if first, twice := places[name]; twice {
			return nil, problem.Field(numbered(i)+".name", "%q is the name of %s already: names are unique in a run", name, numbered(first))
		}
		places[name] = i
	}
	needs := make([][]int, len(specs))
	neededLast := make([]int, len(specs)) // 1 more than the place of the step that named it last
	for i := range specs {
		s := &specs[i]
		for _, name := range s.Needs {
			at, known := places[name]
			switch {
			case !known:
				return nil, s.wrong("needs", "there is no step %q: allowed are the names of the run's other steps", problem.Clip(name))
			case at == i:
				return nil, s.wrong("needs", "a step can't need itself")
			case neededLast[at] == i+1:
				return nil, s.wrong("needs", "%q is named twice: once is enough", name)
			}
			neededLast[at] = i + 1
			needs[i] = append(needs[i], at)
		}
	}
	return needs, nil
}

// order puts every step behind those that it needs, and otherwise leaves them in the
// order in which they came: of the steps that could be next, the first is. It is
// shorter than needs if there is a cycle.
func order(needs [][]int) []int {
	missing := make([]int, len(needs)) // how many are not in the order yet
	neededBy := make([][]int, len(needs))
	var ready []int // ascending
	for i, some := range needs {
		if missing[i] = len(some); missing[i] == 0 {
			ready = append(ready, i)
		}
		for _, n := range some {
			neededBy[n] = append(neededBy[n], i)
		}
	}
	ordered := make([]int, 0, len(needs))
	for len(ready) > 0 {
		next := ready[0]
		ready = ready[1:]
		ordered = append(ordered, next)
		for _, i := range neededBy[next] {
			if missing[i]--; missing[i] == 0 {
				at, _ := slices.BinarySearch(ready, i)
				ready = slices.Insert(ready, at, i)
			}
		}
	}
	return ordered
}

// cycle returns steps of which each needs the next, and the last the first. There is
// one if the order lacks steps; of its steps the first that was submitted leads.
func cycle(needs [][]int, ordered []int) []int {
	left := make([]bool, len(needs))
	for i := range left {
		left[i] = true
	}
	for _, i := range ordered {
		left[i] = false
	}
	// Each that is left needs one that is left, so that a walk comes back.
	at := slices.Index(left, true)
	var walk []int
	for seen := -1; ; {
		if seen = slices.Index(walk, at); seen >= 0 {
			walk = walk[seen:]
			break
		}
		walk = append(walk, at)
		at = needs[at][slices.IndexFunc(needs[at], func(n int) bool { return left[n] })]
	}
	first := slices.Index(walk, slices.Min(walk))
	return slices.Concat(walk[first:], walk[:first])
}

// cycleProblem names a cycle in full: a needs b needs c needs a.
func cycleProblem(specs []Spec, walk []int) error {
	names := make([]string, 0, len(walk)+1)
	for _, i := range append(slices.Clone(walk), walk[0]) {
		names = append(names, specs[i].Name)
	}
	return specs[walk[0]].wrong("needs", "these steps would wait for each other: %s", strings.Join(names, " needs "))
}
