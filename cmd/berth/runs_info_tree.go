package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// treeDepth is how deep a tree is drawn. What is deeper stands as deep as that, and is told
// beside it what it needs: each line would be as long as a chain of steps else.
const treeDepth = 12

// leaf is a step in the tree that people see: a line of it.
type leaf struct {
	branch string // what stands before its name
	number int    // in the graph
	parent int    // the step that it is seen to stand below, -1 if there is none
}

// treeOf draws the tree of the steps of a graph.
func treeOf(steps []step.Summary) []leaf {
	var lines []leaf
	before := make([]string, treeDepth+2) // what stands before the branches at each depth
	for _, l := range step.Tree(steps) {
		at := before[min(l.Depth, treeDepth+1)]
		line, deeper := leaf{number: l.Number, parent: l.Parent}, ""
		switch {
		case l.Depth == 0:
		case l.Depth > treeDepth:
			line.branch, line.parent = at+"… ", -1
		case l.Last:
			line.branch, deeper = at+"└─ ", at+"   "
		default:
			line.branch, deeper = at+"├─ ", at+"│  "
		}
		if l.Depth <= treeDepth {
			before[l.Depth+1] = deeper
		}
		lines = append(lines, line)
	}
	return lines
}

var treeHead = []string{"STEP", "PROGRESS", "DONE", "STATUS", "TIME", "BOUNDS"}

// treeTable shows the steps of a run as a tree.
func treeTable(out *page, o *step.Overview) {
	var rows [][]string
	for _, l := range treeOf(o.Steps) {
		s := &o.Steps[l.number]
		rows = append(rows, []string{
			l.branch + s.Shape.Name,
			bar(s.Counts, s.Shape.Count, barWidth),
			fmt.Sprintf("%d/%d", countEnded(s.Counts), s.Shape.Count),
			stepText(o, s, l.parent),
			spanText(s, out.now),
			s.Shape.Bounds(),
		})
	}
	out.table("it has no steps", treeHead, rows)
}

// stepText says how a step stands, or what it waits for.
func stepText(o *step.Overview, s *step.Summary, parent int) string {
	text := countsText(s.Counts)
	for _, status := range step.Statuses { // a single word where all are alike
		if s.Counts[status] == s.Shape.Count {
			text = string(status)
		}
	}
	if s.Counts[step.Requested] == 0 || o.Run.Status.Ended() {
		return text
	}
	waits, never := o.Unmet(s)
	switch {
	case len(never) > 0:
		return "does not run: not all of " + strings.Join(few(never, mostNames), ", ") + " has succeeded"
	case len(waits) == 1 && s.Shape.Needs[slices.Index(s.Needs, waits[0])] == parent:
		return "waits" // the tree says for what
	case len(waits) > 0:
		return "waits for " + strings.Join(few(waits, mostNames), ", ")
	}
	return text
}

// spanText is how long a step has taken, or has taken so far.
func spanText(s *step.Summary, now time.Time) string {
	switch {
	case s.StartedAt.IsZero():
		return ""
	case s.EndedAt.IsZero():
		return text.Duration(max(0, now.Sub(s.StartedAt)))
	}
	return text.Duration(max(0, s.EndedAt.Sub(s.StartedAt)))
}
