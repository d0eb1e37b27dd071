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

// areaRuns is runs of one area, at most [MaxRuns].
type areaRuns struct {
	area int
	runs []Run
}

// chooseRuns returns n numbers of some runs that are in none of the sets, in areas from the first one on, and within an
// area in as few runs as possible; fewer numbers if there are not so many. An area has at most [MaxRuns] runs if that is enough,
// and otherwise several times so many.
func chooseRuns(l layout, runs []Run, without []set, n int) []areaRuns {
	chosen, short := chooseFewRuns(l, runs, without, n, MaxRuns)
	if short {
		chosen, _ = chooseFewRuns(l, runs, without, n, MaxNumbersOfPool)
	}
	return chosen
}

// chooseFewRuns chooses at most so many runs of an area. Short is set if there are not enough numbers then.
func chooseFewRuns(l layout, runs []Run, without []set, n, most int) (chosen []areaRuns, short bool) {
	for _, r := range runs {
		for n > 0 && r.From < r.To {
			area := l.areaOf(r.From)
			part := Run{r.From, min(r.To, l.numbers(area).To)}
			r.From = part.To
			free := freeRuns(part, without)
			slices.SortStableFunc(free, func(a, b Run) int { return cmp.Compare(b.Len(), a.Len()) })
			var in []Run
			for _, run := range free[:min(len(free), most)] {
				if n == 0 {
					break
				}
				run.To = min(run.To, run.From+n)
				in, n = append(in, run), n-run.Len()
			}
			slices.SortFunc(in, func(a, b Run) int { return cmp.Compare(a.From, b.From) })
			for block := range slices.Chunk(in, MaxRuns) {
				chosen = append(chosen, areaRuns{area, block})
			}
		}
	}
	return chosen, n > 0
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
