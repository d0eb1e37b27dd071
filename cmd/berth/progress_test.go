package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/manifest"
)

func TestProgress_IsOneLineOnATerminalAndLinesElsewhere(t *testing.T) {
	for _, tc := range []struct {
		name string
		line bool
		want string
	}{
		{"terminal", true, "\r\x1b[Kr: one\r\x1b[Kr: quite lo…\r\x1b[Kr: a?b\r\x1b[K"},
		{"elsewhere", false, "r: one\nr: quite long\nr: a?b\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			p := &progress{out: &b, what: "r: ", line: tc.line, width: func() int { return 13 }}
			for _, text := range []string{"one", "one", "quite long", "a\nb"} {
				p.report(text)
			}
			p.end()
			if diff := cmp.Diff(tc.want, b.String()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestProgressText_SaysWhereARunStands(t *testing.T) {
	block := run.TagLimitBlock("env", "prod", 2, 2)
	for _, tc := range []struct {
		record      run.Record
		place, want string
	}{
		{run.Record{Status: run.Queued}, "", "queued"},
		{run.Record{Status: run.Queued, Block: &block}, "", "queued: tag limit: env=prod (2/2)"},
		{run.Record{Status: run.Queued, Block: &block}, "position 2 of 7", "queued, position 2 of 7: tag limit: env=prod (2/2)"},
		{run.Record{Status: run.NotStarted}, "position 2 of 7", "admitted, waiting for an executor to start it"},
		{run.Record{Status: run.Running, Attempt: 1, Executor: &run.Executor{Host: "a"}}, "", "running on host 'a'"},
		{run.Record{Status: run.Running, Attempt: 2, Executor: &run.Executor{Host: "a"}}, "", "running on host 'a', attempt 2"},
	} {
		if got := progressText(&run.Run{Record: tc.record}, tc.place); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestUsedLimits_CountsWhatEachIsAbout(t *testing.T) {
	var runs []*run.Run
	for _, tags := range []map[string]string{
		{"env": "prod", "tenant": "a"}, {"env": "prod", "tenant": "b"}, {"env": "test", "tenant": "b"}, nil,
	} {
		runs = append(runs, &run.Run{Record: run.Record{Spec: run.Spec{Tags: tags}}})
	}
	used := usedLimits(runs, run.Limits{MaxConcurrentRuns: 3, Tags: []run.TagLimit{
		{Key: "env", Limit: 3}, {Key: "env", Value: "prod", Limit: 2}, {Key: "tenant", PerUniqueValue: true, Limit: 1}, {Key: "none", Limit: 0},
	}})
	var got []string
	for _, u := range used {
		text := u.name + " " + u.text()
		if u.over() {
			text += " over"
		}
		got = append(got, text)
	}
	want := []string{"max_concurrent_runs 4 over", "env 3", "env=prod 2", "tenant=* 2 (b) over", "none 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Whatever the file: it is refused with all that is wrong, or can be submitted.
func FuzzDecodeSubmission(f *testing.F) {
	f.Add([]byte("id: a\nname: b\npriority: 5\nretries: 1\ntags: {a: b}\nlabels: {c: d}\nowner: me\n"))
	f.Add([]byte(`{"id": "a", "tags": {"a": "\ud83d\ude00"}, "priority": 1e2}`))
	f.Add([]byte("tags: &x {a: b}\nlabels: *x\n"))
	f.Add([]byte("tags:\n  ? [a]\n  : b\n"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := manifest.ReadRun("f", data)
		switch {
		case err != nil:
			if p, ok := err.(*manifest.Problems); !ok || len(p.Lines) == 0 {
				t.Fatalf("error %v", err)
			}
		case a.Spec.Validate() != nil:
			t.Fatalf("%+v was taken", a)
		}
	})
}

// A permanent line is written when something is stalled, or when no worker will take it:
// what changes while others run is reported where the line can be overwritten.
func TestProgressLine_SaysWhatIsInTheWay(t *testing.T) {
	steps := summariesOf(t, "a:", "b:")
	v := &runView{run: &run.Run{ID: "r", Record: run.Record{Status: run.Running}}}
	v.overview = &step.Overview{Run: v.run, Steps: steps}
	full := &step.Wait{Kind: step.WaitPool, Text: "pool 'db' full (1/1 slots)", Count: 1}
	noWorker := &step.Wait{Kind: step.WaitNoWorker, Text: "no worker is running", Count: 1}
	soon := &step.Wait{Kind: step.WaitWorker, Text: "it is taken", Soon: true, Count: 1}
	const line, fine = "running, 0 of 2 steps done, in progress: a, b", "[....................] 0/2, 2 scheduled: a, b"
	const goesOn, fineGoesOn = line, "[>>>>>>>>>>..........] 0/2, 1 running, 1 scheduled: a, b"
	for _, tc := range []struct {
		running    bool
		waits      []*step.Wait
		line, fine string
	}{
		{false, nil, line, fine},
		{false, []*step.Wait{soon, soon}, line, fine},
		{false, []*step.Wait{full, soon}, line + " (pool 'db' full (1/1 slots))", fine + " (pool 'db' full (1/1 slots))"},
		{true, []*step.Wait{nil, full}, goesOn, fineGoesOn + " (pool 'db' full (1/1 slots))"},
		{true, []*step.Wait{nil, noWorker}, goesOn + " (no worker is running)", fineGoesOn + " (no worker is running)"},
		{false, []*step.Wait{full, noWorker}, line + " (no worker is running)", fine + " (no worker is running)"},
	} {
		steps[0].Counts, steps[1].Counts = map[step.Status]int{step.Scheduled: 1}, map[step.Status]int{step.Scheduled: 1}
		if tc.running {
			steps[0].Counts = map[step.Status]int{step.Running: 1}
		}
		v.waits = tc.waits
		if got := v.progressLine(false); got != tc.line {
			t.Errorf("got %q, want %q", got, tc.line)
		}
		if got := v.progressLine(true); got != tc.fine {
			t.Errorf("got %q, want %q", got, tc.fine)
		}
	}
}
