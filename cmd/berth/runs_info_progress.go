package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// barWidth is how many characters a progress bar has between its brackets.
const barWidth = 20

// barMarks are how instances look in a bar, in the order in which they stand there.
// What is left of it is not begun.
var barMarks = []struct {
	status step.Status
	mark   string
}{{step.Succeeded, "#"}, {step.Failed, "!"}, {step.Canceled, "x"}, {step.Running, ">"}}

// bar draws how far instances are: [######!!>>..........]. No status that there is
// goes unseen, however few have it, and the bar is full only if all were begun.
func bar(counts map[step.Status]int, total, width int) string {
	cells := make([]int, len(barMarks))
	used, begun := 0, 0
	for i, m := range barMarks {
		if n := counts[m.status]; n > 0 {
			begun += n
			cells[i] = max(1, n*width/total)
			used += cells[i]
		}
	}
	// Rounding has taken some from all, or the few have got more than their share: the
	// longest part pays for it.
	longest := 0
	for i := range cells {
		if cells[i] > cells[longest] {
			longest = i
		}
	}
	switch most := width; {
	case begun == total:
		cells[longest] += width - used
	case used >= most:
		cells[longest] -= used - most + 1
	}
	var b strings.Builder
	for i, m := range barMarks {
		b.WriteString(strings.Repeat(m.mark, max(0, cells[i])))
	}
	return "[" + b.String() + strings.Repeat(".", max(0, width-b.Len())) + "]"
}

// countEnded is how many instances have ended.
func countEnded(counts map[step.Status]int) int {
	return counts[step.Succeeded] + counts[step.Failed] + counts[step.Canceled]
}

// countsText writes how many instances there are of each status: what has ended
// first, and nothing of which there is none.
func countsText(counts map[step.Status]int) string {
	var all []string
	for _, s := range []step.Status{step.Failed, step.Canceled, step.Running, step.Scheduled, step.Requested, step.Succeeded} {
		if n := counts[s]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(all, ", ")
}

// total adds the counts of all steps up.
func total(steps []step.Summary) (counts map[step.Status]int, instances int) {
	counts = map[step.Status]int{}
	for _, s := range steps {
		instances += s.Shape.Count
		for status, n := range s.Counts {
			counts[status] += n
		}
	}
	return counts, instances
}

// isDone tells whether all of a step has succeeded, so that others can go on.
func isDone(s *step.Summary) bool { return s.Counts[step.Succeeded] == s.Shape.Count }

// stepsInProgress are the names of the steps of which something was begun and not all
// has ended.
func stepsInProgress(steps []step.Summary) []string {
	var names []string
	for i := range steps {
		s := &steps[i]
		if n := countEnded(s.Counts); n < s.Shape.Count && (n > 0 || s.Counts[step.Running]+s.Counts[step.Scheduled] > 0) {
			names = append(names, s.Shape.Name)
		}
	}
	return names
}

// few keeps the first so many names, and says how many there are besides.
func few(names []string, most int) []string {
	if more := len(names) - most; more > 0 {
		return append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return names
}

// mostNames bounds the names in a line of progress.
const mostNames = 3

// stepsProgress says in one line how the steps of a run go. Where each line stays,
// only what changes rarely is told: which steps are done, and which go on.
func stepsProgress(steps []step.Summary, fine bool) string {
	counts, instances := total(steps)
	done := 0
	for i := range steps {
		if isDone(&steps[i]) {
			done++
		}
	}
	names := few(stepsInProgress(steps), mostNames)
	if !fine {
		line := fmt.Sprintf("running, %d of %s done", done, text.Count(len(steps), "step"))
		if len(names) > 0 {
			line += ", in progress: " + strings.Join(names, ", ")
		}
		return line
	}
	line := fmt.Sprintf("%s %d/%d", bar(counts, instances, barWidth), countEnded(counts), instances)
	for _, s := range []step.Status{step.Failed, step.Running, step.Scheduled} {
		if n := counts[s]; n > 0 {
			line += fmt.Sprintf(", %d %s", n, s)
		}
	}
	if len(names) > 0 {
		line += ": " + strings.Join(names, ", ")
	}
	return line
}

// instanceText says how an instance stands: failed on host 'a' after 12s, exit code 3,
// attempt 2: no such file.
func instanceText(i *step.Instance, now time.Time) string {
	text := string(i.Status)
	if i.Executor != nil {
		text += " on host '" + i.Executor.Host + "'"
	}
	if took := tookText(i, now); took != "" {
		text += " after " + took
	}
	if i.ExitCode != 0 && !strings.Contains(i.Error, fmt.Sprintf("exit code %d", i.ExitCode)) {
		text += fmt.Sprintf(", exit code %d", i.ExitCode)
	}
	if i.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", i.Attempt)
	}
	if i.Error != "" {
		text += ": " + i.Error
	}
	return text
}

// tookText is how long an attempt has taken that has ended, or has taken so far.
func tookText(i *step.Instance, now time.Time) string {
	switch {
	case i.StartedAt.IsZero():
		return ""
	case i.Status == step.Running:
		return text.Duration(max(0, now.Sub(i.StartedAt)))
	case i.EndedAt.IsZero():
		return ""
	}
	return text.Duration(max(0, i.EndedAt.Sub(i.StartedAt)))
}
