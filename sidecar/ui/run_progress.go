package ui

import (
	"fmt"

	"github.com/berthhq/berth/coordinator/step"
)

// progress is how far instances are, as a bar and in words.
type progress struct {
	Ended, Count int
	// Text says what the bar shows.
	Text  string
	Parts []barPart
}

// barPart is a part of a bar, in its units from the left.
type barPart struct {
	Status   step.Status
	X, Width int
}

// barWidth is how many units a bar is wide.
const barWidth = 200

// leastPart is how wide the narrowest part is that can be seen.
const leastPart = 3

// barOrder is how instances stand in a bar. What is left of it is not begun.
var barOrder = []step.Status{step.Succeeded, step.Failed, step.Canceled, step.Running, step.Scheduled}

// progressOf makes a progress of counts.
func progressOf(counts map[step.Status]int, total int) *progress {
	p := &progress{Ended: endedOf(counts), Count: total, Parts: barParts(counts, total)}
	p.Text = fmt.Sprintf("%s of %s ended", formatCount(int64(p.Ended)), formatCount(int64(total)))
	if text := countsText(counts); text != "" {
		p.Text += ": " + text
	}
	return p
}

// Percent of what has ended, rounded down: 100 is all.
func (p *progress) Percent() int {
	if p.Count == 0 {
		return 0
	}
	return p.Ended * 100 / p.Count
}

// endedOf is how many instances have ended.
func endedOf(counts map[step.Status]int) int {
	return counts[step.Succeeded] + counts[step.Failed] + counts[step.Canceled]
}

// barParts shares a bar out. No status in [barOrder] that there is goes unseen, however
// few have it, and the bar is full only if no instance is merely requested.
func barParts(counts map[step.Status]int, total int) []barPart {
	var parts []barPart
	begun, used, longest := 0, 0, 0
	for _, s := range barOrder {
		n := counts[s]
		if n <= 0 {
			continue
		}
		begun += n
		p := barPart{Status: s, Width: max(leastPart, n*barWidth/total)}
		used += p.Width
		if parts = append(parts, p); p.Width > parts[longest].Width {
			longest = len(parts) - 1
		}
	}
	if len(parts) == 0 {
		return nil
	}
	// Rounding has taken some from all, or the few have got more than their share: the
	// longest part pays for it.
	switch most := barWidth - leastPart; {
	case begun == total:
		parts[longest].Width += barWidth - used
	case used > most:
		parts[longest].Width -= used - most
	}
	x := 0
	for i := range parts {
		parts[i].X, x = x, x+parts[i].Width
	}
	return parts
}
