package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

func minute(n int) time.Time { return time.Date(2024, 5, 6, 7, n, 0, 0, time.UTC) }

func TestRunsAreShownAsTheyStand(t *testing.T) {
	by := &run.Executor{Host: "one", Instance: "sidecar"}
	block := run.RunLimitBlock(1, 1)
	for _, c := range []struct {
		name string
		rec  run.Record
		want runRow
	}{
		{"queued", run.Record{Status: run.Queued, Block: &block}, runRow{Text: "global run limit (1/1)"}},
		{"queued again, after an executor was lost", run.Record{Status: run.Queued, StartedAt: minute(2), Executor: by, Attempt: 1}, runRow{Attempt: 1, Text: run.NotChecked}},
		{"admitted", run.Record{Status: run.NotStarted, AdmittedAt: minute(2)}, runRow{Since: minute(2)}},
		{"running", run.Record{Status: run.Running, AdmittedAt: minute(2), StartedAt: minute(3), Executor: by, Attempt: 2}, runRow{Since: minute(3), Host: "one", Attempt: 2}},
		{"succeeded", run.Record{Status: run.Succeeded, StartedAt: minute(3), EndedAt: minute(7), Executor: by}, runRow{Took: 4 * time.Minute, Host: "one"}},
		{"failed", run.Record{Status: run.Failed, StartedAt: minute(3), EndedAt: minute(4), Error: "no\x1b[2J"}, runRow{Took: time.Minute, Text: text.Visible("no\x1b[2J")}},
		{"canceled before it was started", run.Record{Status: run.Canceled, EndedAt: minute(4), Error: "by ann"}, runRow{Text: "by ann"}},
		{"by clocks that differ", run.Record{Status: run.Succeeded, StartedAt: minute(4), EndedAt: minute(3)}, runRow{}},
		{"a long error", run.Record{Status: run.Failed, Error: strings.Repeat("é", 200)}, runRow{Text: strings.Repeat("é", 120) + "…"}},
	} {
		r := &run.Run{ID: "a", Record: c.rec}
		r.QueuedAt, r.Name = minute(1), "n"
		c.want.ID, c.want.Name, c.want.Status, c.want.Submitted = "a", "n", c.rec.Status, minute(1)
		if d := cmp.Diff(c.want, runRowOf(r, stepsDone{}, atQueue)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestStatusesAreCountedUnderTheFilter(t *testing.T) {
	shore := newShore()
	for i, status := range []run.Status{run.Queued, run.Running, run.Failed, run.Queued, run.Failed, run.Queued} {
		shore.put(fmt.Sprintf("r%d", i), record(status, func(r *run.Record) {
			if i > 2 {
				r.Name = "late"
			}
		}), false)
	}
	set := shore.set()
	for _, c := range []struct{ query, counts, ids string }{
		{"", "all:6* storing:0 queued:3 not_started:0 running:1 succeeded:0 failed:2 canceled:0", "r5 r4 r3 r2 r1 r0"},
		{"q=late", "all:3* storing:0 queued:2 not_started:0 running:0 succeeded:0 failed:1 canceled:0", "r5 r4 r3"},
		{"status=failed", "all:6 storing:0 queued:3 not_started:0 running:1 succeeded:0 failed:2* canceled:0", "r4 r2"},
		{"status=failed&status=running&status=", "all:6 storing:0 queued:3 not_started:0 running:1* succeeded:0 failed:2* canceled:0", "r4 r2 r1"},
		{"status=failed&q=late", "all:3 storing:0 queued:2 not_started:0 running:0 succeeded:0 failed:1* canceled:0", "r4"},
	} {
		query, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		f := parseRunFilter(query)
		statuses := parseStatuses(query, &f)
		page := runsOf(runsStateOf(set, &f, statuses, listPlace{}), nil, f, statuses, listAddress{"/runs", query})
		var counts, ids []string
		for _, s := range page.Statuses {
			text := fmt.Sprintf("%s:%d", s.Status, s.Count)
			if s.Status == "" {
				text = "all" + text
			}
			if s.Current {
				text += "*"
			}
			counts = append(counts, text)
		}
		for _, row := range page.Rows {
			ids = append(ids, row.ID)
		}
		if got := strings.Join(counts, " "); got != c.counts {
			t.Errorf("%s: %s, want %s", c.query, got, c.counts)
		}
		if got := strings.Join(ids, " "); got != c.ids || page.Total != 6 {
			t.Errorf("%s: %s, want %s", c.query, got, c.ids)
		}
	}
	for _, s := range runsOf(runsState{}, nil, runFilter{}, nil, listAddress{"/runs", url.Values{"q": {"x"}}}).Statuses[:2] {
		if s.Status == "" && s.Href != "/runs?q=x" || s.Status == run.Storing && s.Href != "/runs?q=x&status=storing" {
			t.Errorf("%+v", s)
		}
	}
}

func TestAStatusThatIsNoneIsReported(t *testing.T) {
	var f runFilter
	query := url.Values{"status": {"<done>"}}
	if got := parseStatuses(query, &f); got != nil || !strings.Contains(f.Wrong, `"<done>" is not a status: use storing, queued,`) {
		t.Errorf("%v, %s", got, f.Wrong)
	}
	if page := runsOf(runsStateOf(newShore().set(), &f, nil, listPlace{}), nil, f, nil, listAddress{"/runs", query}); page.Statuses[0].Current || page.Filter.Clear == "" {
		t.Errorf("%+v", page)
	}
}

func TestProgressIsAShare(t *testing.T) {
	for want, d := range map[int]stepsDone{0: {}, 33: {Done: 1, Of: 3}, 99: {Done: 999, Of: 1000}, 100: {Done: 7, Of: 7}} {
		if got := d.Percent(); got != want {
			t.Errorf("%+v: %d, want %d", d, got, want)
		}
	}
}
