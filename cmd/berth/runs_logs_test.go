package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/store"
)

func TestParseWhich(t *testing.T) {
	for text, want := range map[string]step.Which{
		"extract": {Step: "extract", Index: step.Every}, "extract[0]": {Step: "extract"}, "a.b[99999]": {Step: "a.b", Index: 99999},
	} {
		if got, err := parseWhich(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a[", "a[]", "a[-1]", "a[1]b", "[1]", "a[1", "a[1]]", "a[1.5]"} {
		if got, err := parseWhich(text); !errors.As(err, new(*usageError)) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestLogWriter_KeepsATerminalFromHarm(t *testing.T) {
	i := &step.Instance{StepID: store.StepID{Run: "r", Step: "s", Index: 1}, Record: step.Record{Status: step.Failed, Error: "no\nluck\x1b[2J", EndFence: store.FenceAt(3)}}
	const output = "a\tb\r\n\x1b[31mred\x07"
	for clean, want := range map[bool]string{
		true:  "==> s[1]: failed: no … <==\na\tb\n?[31mred?\n\n==> s[1]: failed: no … <==\n",
		false: "==> s[1]: failed: no … <==\na\tb\r\n\x1b[31mred\x07\n\n==> s[1]: failed: no … <==\n",
	} {
		var b bytes.Buffer
		w := &logWriter{out: &b, clean: clean}
		for _, text := range []string{output, ""} {
			if err := w.write(&inspect.Logged{Instance: i, Log: &step.Log{Attempt: 1, Fence: store.FenceAt(3), Ended: true, Text: []byte(text)}}); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
	}
}

func TestLogHead_SaysWhichAttemptHasWritten(t *testing.T) {
	now := time.Now()
	begun := step.Instance{Revision: 9, Record: step.Record{Status: step.Running, Attempt: 2, Executor: &run.Executor{Host: "h"}, StartedAt: now.Add(-time.Minute), EndFence: store.FenceAt(5)}}
	again := step.Instance{Revision: 9, Record: step.Record{Status: step.Requested, Attempt: 1, Executor: &run.Executor{Host: "h"}, StartedAt: now.Add(-time.Minute), EndedAt: now, ExitCode: 3, EndFence: store.FenceAt(5)}}
	for _, tc := range []struct {
		instance step.Instance
		log      step.Log
		want     string
	}{
		{step.Instance{}, step.Log{Fence: store.FenceAt(9)}, "its state can't be read"},
		{begun, step.Log{Fence: store.FenceAt(9)}, "running on host 'h' after 1m, attempt 2 (so far)"},
		{begun, step.Log{Fence: store.FenceAt(5), Ended: true}, "running on host 'h' after 1m, attempt 2 (this is of an earlier attempt)"},
		{begun, step.Log{Fence: store.FenceAt(7)}, "running on host 'h' after 1m, attempt 2 (this is of an attempt that was lost)"},
		{again, step.Log{Fence: store.FenceAt(5), Ended: true}, "requested on host 'h' after 1m, exit code 3 (it is tried again)"},
	} {
		if got := logHead(&inspect.Logged{Instance: &tc.instance, Log: &tc.log}, now); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// partOf is a part of what an attempt of r/NAME/0 has written.
func partOf(name string, fence store.Fence, missing int64, text string, change ...func(*logPart)) *logPart {
	p := &logPart{
		id: store.StepID{Run: "r", Step: name}, text: []byte(text), missing: missing,
		log: &step.Log{Attempt: 1, Fence: fence, Before: missing, Text: []byte(text)},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func joined(p *logPart) { p.joined = true }

func ends(p *logPart) { p.ends, p.log.Ended = true, true }

func endsWell(p *logPart) {
	ends(p)
	p.instance = &step.Instance{StepID: p.id, Record: step.Record{Status: step.Succeeded}}
}

func second(p *logPart) { p.log.Attempt = 2 }

func TestLogTail_TellsWhoHasWrittenWhat(t *testing.T) {
	var b bytes.Buffer
	tail := &logTail{printer: &printer{format: "table", out: &b}}
	for _, p := range []*logPart{
		partOf("a", 1, 0, "one\ntw", joined),
		partOf("a", 1, 0, "o\nthree"),
		partOf("b", 2, 2048, "x\n", joined),
		partOf("a", 1, 700, "ten"),
		partOf("a", 1, 0, "\n", endsWell),
		partOf("a", 3, 0, "again", joined, second, ends),
		partOf("b", 2, 0, "", endsWell),
	} {
		if err := tail.write(p); err != nil {
			t.Fatal(err)
		}
	}
	tail.end()
	want := `==> a[0] <==
one
two
three

==> b[0] <==
==> 2 KiB before this are left out <==
x

==> a[0] <==
==> 700 bytes are left out here <==
ten
==> a[0]: succeeded <==

==> a[0], attempt 2 <==
again
==> a[0]: it has ended <==

==> b[0] <==
==> b[0]: succeeded <==
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// However an output is cut into parts, a terminal is shown the same as if it had come
// whole.
func TestLogTail_KeepsATerminalFromHarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "\n", "\t", "é", "€", "𝄞", "\x1b", "\xff", "\xe2\x82", "\xc3", "\r"}), 0, 30).Draw(t, "text")
		whole := []byte(strings.Join(text, ""))
		var b bytes.Buffer
		tail := &logTail{printer: &printer{format: "table", out: &b}, clean: true}
		for rest := whole; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			if err := tail.write(partOf("a", 1, 0, string(rest[:n]))); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		tail.end()
		got := strings.TrimPrefix(b.String(), "==> a[0] <==\n")
		want := cleanLines(string(whole))
		if len(whole) > 0 && !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestLogTail_IsForProgramsAsWell(t *testing.T) {
	var b bytes.Buffer
	tail := &logTail{printer: &printer{format: "json", out: &b}}
	for _, p := range []*logPart{partOf("a", 1, 5, "<one>\n", joined), partOf("a", 1, 0, "", endsWell)} {
		if err := tail.write(p); err != nil {
			t.Fatal(err)
		}
	}
	tail.end()
	want := `{"run_id":"r","step":"a","index":0,"attempt":1,"left_out":5,"output":"<one>\n","ended":false}
{"run_id":"r","step":"a","index":0,"attempt":1,"left_out":0,"output":"","ended":true,"status":"succeeded"}
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for line := range strings.Lines(b.String()) {
		if err := json.Unmarshal([]byte(line), &loggedPart{}); err != nil {
			t.Error(err)
		}
	}
}

// An instance that is followed stays so while it runs, and only a limited number is.
func TestLookAt(t *testing.T) {
	ids := func(from, to int) (all []store.StepID) {
		for n := from; n < to; n++ {
			all = append(all, store.StepID{Run: "r", Step: "m", Index: n})
		}
		return all
	}
	for name, c := range map[string]struct {
		before, running, want []store.StepID
		more                  int
	}{
		"nothing runs":         {ids(0, 2), nil, nil, 0},
		"all that runs":        {nil, ids(0, 3), ids(0, 3), 0},
		"the first of many":    {nil, ids(0, step.MaxFollowed+7), ids(0, step.MaxFollowed), 7},
		"what was followed":    {ids(5, 5+step.MaxFollowed), ids(0, step.MaxFollowed+7), ids(5, 5+step.MaxFollowed), 7},
		"what has ended is no": {ids(0, 2), ids(1, 4), ids(1, 4), 0},
	} {
		at, more := lookAt(c.before, c.running)
		if !slices.Equal(at, c.want) || more != c.more {
			t.Errorf("%s: %s and %d more", name, fmt.Sprint(at), more)
		}
	}
}
