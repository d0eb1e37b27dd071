package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

func TestBar_ShowsEachStatus(t *testing.T) {
	type counts = map[step.Status]int
	for _, tc := range []struct {
		counts counts
		total  int
		want   string
	}{
		{counts{}, 5, "[..........]"},
		{counts{step.Requested: 3, step.Scheduled: 2}, 5, "[..........]"},
		{counts{step.Succeeded: 5}, 5, "[##########]"},
		{counts{step.Succeeded: 1, step.Failed: 1, step.Running: 1}, 10, "[#!>.......]"},
		{counts{step.Succeeded: 99_999}, 100_000, "[#########.]"},
		{counts{step.Succeeded: 99_999, step.Failed: 1}, 100_000, "[#########!]"},
		{counts{step.Succeeded: 2, step.Canceled: 1}, 3, "[#######xxx]"},
		{counts{step.Running: 1}, 100_000, "[>.........]"},
		{counts{step.Succeeded: 99_996, step.Failed: 1, step.Canceled: 1, step.Running: 1}, 100_000, "[######!x>.]"},
	} {
		if got := bar(tc.counts, tc.total, 10); got != tc.want {
			t.Errorf("%v of %d: got %s, want %s", tc.counts, tc.total, got, tc.want)
		}
	}
}

// Whatever the counts: the bar has its width, shows all statuses that there are, and
// has empty space exactly if something was not begun.
func TestBar_NeverLies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := map[step.Status]int{}
		total := 0
		for _, s := range step.Statuses {
			counts[s] = rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 5), rapid.IntRange(1, 100_000)).Draw(t, string(s))
			total += counts[s]
		}
		if total == 0 {
			t.Skip("there is no step without instances")
		}
		got := bar(counts, total, barWidth)
		if len(got) != barWidth+2 {
			t.Fatalf("%v: %s", counts, got)
		}
		for _, m := range barMarks {
			if (counts[m.status] > 0) != strings.Contains(got, m.mark) {
				t.Fatalf("%v: %s shows %s wrongly", counts, got, m.status)
			}
		}
		if rest := counts[step.Requested] + counts[step.Scheduled]; (rest > 0) != strings.Contains(got, ".") {
			t.Fatalf("%v: %s", counts, got)
		}
	})
}

// summariesOf makes steps of lines "name: needs" of which none has begun.
func summariesOf(t *testing.T, lines ...string) []step.Summary {
	t.Helper()
	var specs []step.Spec
	for _, line := range lines {
		name, needs, _ := strings.Cut(line, ":")
		specs = append(specs, step.Spec{Name: name, Needs: strings.Fields(needs), External: true})
	}
	g, err := step.NewGraph(specs)
	if err != nil {
		t.Fatal(err)
	}
	var all []step.Summary
	for _, sh := range g.Shapes() {
		s := step.Summary{Shape: sh, Counts: map[step.Status]int{step.Requested: sh.Count}}
		for _, n := range sh.Needs {
			s.Needs = append(s.Needs, g.Shapes()[n].Name)
		}
		all = append(all, s)
	}
	return all
}

func TestTreeOf_ShowsEachStepOnce(t *testing.T) {
	steps := summariesOf(t, "a:", "b: a", "c: a", "d: b c", "e: d", "x:", "y: x", "z: y", "w: x")
	var got []string
	for _, l := range treeOf(steps) {
		got = append(got, l.branch+steps[l.number].Shape.Name)
	}
	want := []string{"a", "├─ b", "└─ c", "   └─ d", "      └─ e", "x", "├─ y", "│  └─ z", "└─ w"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// A chain is drawn no wider however long it is: a step that is too deep says what it waits for.
func TestTreeOf_GoesNoDeeperThanCanBeRead(t *testing.T) {
	var lines []string
	for i := range 1000 {
		need := ""
		if i > 0 {
			need = fmt.Sprintf(" s%d", i-1)
		}
		lines = append(lines, fmt.Sprintf("s%d:%s", i, need))
	}
	steps := summariesOf(t, lines...)
	tree := treeOf(steps)
	for i, l := range tree {
		if l.number != i || utf8.RuneCountInString(l.branch) > 3*(treeDepth+1) {
			t.Fatalf("line %d: %+v", i, l)
		}
	}
	if got := tree[treeDepth].branch; !strings.HasSuffix(got, "└─ ") || tree[treeDepth].parent != treeDepth-1 {
		t.Errorf("the deepest: %+v", tree[treeDepth])
	}
	var b bytes.Buffer
	treeTable(&page{out: &b, now: time.Now()}, &step.Overview{Run: &run.Run{Record: run.Record{Status: run.Running}}, Steps: steps})
	if b.Len() > 150_000 || !strings.Contains(b.String(), "… s900 ") || !strings.Contains(b.String(), "waits for s899") {
		t.Errorf("%d bytes", b.Len())
	}
}

func TestStepText_SaysWhatAStepWaitsFor(t *testing.T) {
	steps := summariesOf(t, "a:", "b:", "c: a b")
	o := &step.Overview{Run: &run.Run{Record: run.Record{Status: run.Running}}, Steps: steps}
	text := func() string { return stepText(o, &steps[2], 1) }
	set := func(n int, s step.Status) {
		steps[n].Counts, steps[n].EndedAt = map[step.Status]int{s: 1}, time.Time{}
		if s.Ended() {
			steps[n].EndedAt = time.Now()
		}
	}
	for _, tc := range []struct {
		change func()
		want   string
	}{
		{func() {}, "waits for a, b"},
		{func() { set(0, step.Succeeded) }, "waits"},
		{func() { set(0, step.Running); set(1, step.Succeeded) }, "waits for a"},
		{func() { set(0, step.Failed) }, "does not run: not all of a has succeeded"},
		{func() { set(0, step.Succeeded) }, "requested"},
		{func() { set(2, step.Scheduled) }, "scheduled"},
		{func() { set(2, step.Canceled); o.Run.Status = run.Canceled }, "canceled"},
		{func() {
			steps[2].Shape.Count = 4
			steps[2].Counts = map[step.Status]int{step.Succeeded: 2, step.Failed: 1, step.Canceled: 1}
		}, "1 failed, 1 canceled, 2 succeeded"},
	} {
		tc.change()
		if got := text(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestStepsProgress_FitsALine(t *testing.T) {
	var lines []string
	for i := range 6 {
		lines = append(lines, fmt.Sprintf("s%d:", i))
	}
	steps := summariesOf(t, lines...)
	for i := range 5 {
		steps[i].Counts = map[step.Status]int{step.Running: 1}
	}
	steps[0].Counts = map[step.Status]int{step.Succeeded: 1}
	if got, want := stepsProgress(steps, false), "running, 1 of 6 steps done, in progress: s1, s2, s3, 1 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := stepsProgress(steps, true), "[###>>>>>>>>>>>>>....] 1/6, 4 running: s1, s2, s3, 1 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestScreen_WritesOverWhatFits(t *testing.T) {
	var b bytes.Buffer
	s := &screen{out: &b, size: func() (int, int) { return 10, 5 }}
	s.draw("one\nquite a long line\n", false)
	s.add("more")
	s.draw("1\n2\n3\n4\n5\n6\n", false)
	s.draw("1\n2\n3\n4\nnothing is cut\n", true)
	want := "one\nquite a …\n" +
		"\r\x1b[2A\x1b[Jone\nquite a …\nmore\n" +
		"\r\x1b[3A\x1b[J1\n2\n3\n… 3 line…\n" +
		"\r\x1b[4A\x1b[J1\n2\n3\n4\nnothing is cut\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestAsFlags_NamesTheFlag(t *testing.T) {
	for field, want := range map[string]string{
		"steps.main.queue": "queue", "steps.main.command[1]": "command[1]", "steps": "steps", "steps.mains.queue": "steps.mains.queue",
	} {
		err := asFlags(problem.Field(field, "no"), "main")
		if got := err.Error(); got != want+": no" || problem.CodeOf(err) != problem.Invalid {
			t.Errorf("%s: got %q", field, got)
		}
	}
}
