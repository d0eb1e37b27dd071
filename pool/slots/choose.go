package slots

import (
	"cmp"
	"slices"
)

// chooseNumbers returns the first n numbers of some runs that are in none of the sets, or all that there are.
func chooseNumbers(runs []Run, without []set, n int) (numbers []int) {
	for _, r := range runs {
		for ; len(numbers) < n; r.From++ {
			if r.From = firstIn(r, without); r.From >= r.To {
				break
			}
			numbers = append(numbers, r.From)
		}
	}
	return numbers
}

// areaRuns is runs of one area.
type areaRuns struct {
	area int
	runs []Run
}

// chooseRuns returns n numbers of some runs that are in none of the sets, in areas from the first one on, and within an
// area in as few runs as possible; fewer numbers if there are not so many. An area has at most [MaxRuns] runs.
func chooseRuns(l layout, runs []Run, without []set, n int) (chosen []areaRuns) {
	for _, r := range runs {
		for n > 0 && r.From < r.To {
			area := l.areaOf(r.From)
			part := Run{r.From, min(r.To, l.numbers(area).To)}
			r.From = part.To
			free := freeRuns(part, without)
			slices.SortStableFunc(free, func(a, b Run) int { return cmp.Compare(b.Len(), a.Len()) })
			in := areaRuns{area: area}
			for _, run := range free[:min(len(free), MaxRuns)] {
				if n == 0 {
					break
				}
				run.To = min(run.To, run.From+n)
				in.runs, n = append(in.runs, run), n-run.Len()
			}
			if len(in.runs) > 0 {
				slices.SortFunc(in.runs, func(a, b Run) int { return cmp.Compare(a.From, b.From) })
				chosen = append(chosen, in)
			}
		}
	}
	return chosen
}

// freeRuns returns the runs within a run of numbers that are in none of the sets.
func freeRuns(r Run, without []set) (runs []Run) {
	for {
		if r.From = firstIn(r, without); r.From >= r.To {
			return runs
		}
		free := Run{r.From, r.From + 1}
		for free.To < r.To && firstIn(Run{free.To, free.To + 1}, without) == free.To {
			free.To++
		}
		runs, r.From = append(runs, free), free.To
	}
}
