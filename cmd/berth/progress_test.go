package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
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
				p.tell(text)
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
		a, err := decodeSubmission("f", data)
		switch {
		case err != nil:
			if p, ok := err.(*fileProblems); !ok || len(p.lines) == 0 {
				t.Fatalf("error %v", err)
			}
		case a.spec.Validate() != nil:
			t.Fatalf("%+v was taken", a)
		}
	})
}
