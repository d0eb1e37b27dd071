package ui_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

func TestRunsAreListedTheLastFirst(t *testing.T) {
	d := newQueueSite(t)
	if got := text(d.page("/runs").root); !strings.Contains(got, "No runs yet. Submit one: berth submit") {
		t.Error(got)
	}
	began := time.Now().Add(-210 * time.Minute)
	by := &run.Executor{Host: "two", Instance: "sidecar"}
	for _, r := range []struct {
		id  string
		rec run.Record
	}{
		{"done", run.Record{Status: run.Succeeded, StartedAt: began, EndedAt: began.Add(90 * time.Second), Executor: by, Attempt: 2, Spec: run.Spec{Name: "Load", Steps: 7}}},
		{"bad", run.Record{Status: run.Failed, StartedAt: began, EndedAt: began.Add(3 * time.Second), Executor: by, Error: "exit code 1", Spec: run.Spec{Tags: map[string]string{"env": "prod"}}}},
		{"huge", run.Record{Status: run.Running, StartedAt: began, Spec: run.Spec{Steps: 100_000}}},
		{"waits", run.Record{Status: run.Queued, Spec: run.Spec{Priority: 3}}},
	} {
		r.rec.QueuedAt = began
		d.put(store.Put(d.store.Keys.Run(r.id), r.rec.Encode(), 0))
	}
	page := d.until("/runs", "all are shown", listing("waits", "huge", "bad", "done"))
	cells, _ := page.rows()
	for id, want := range map[string][]string{
		"done":  {"✓ succeeded", "done", "Load", "7/7", "3 h ago", "1m30s 2 attempts on two", "–", "–", "–"},
		"bad":   {"✕ failed", "bad", "–", "–", "3 h ago", "3s on two", "exit code 1", "env=prod", "Retry…"},
		"huge":  {"▶ running", "huge", "–", "100,000 instances", "3 h ago", "since 3 h ago", "–", "–", "Cancel…"},
		"waits": {"◷ queued", "waits", "– ▲ 3", "–", "3 h ago", "–", "the coordinator has not checked it yet", "–", "Cancel…"},
	} {
		if !slices.Equal(cells[id], want) {
			t.Errorf("%s is %q, want %q", id, cells[id], want)
		}
	}
	var statuses []string
	for _, nav := range page.all(func(n *html.Node) bool { return classed(n, "statuses") }) {
		statuses = texts(page.within(nav).tags("a"))
	}
	if want := []string{"all 4", "… storing 0", "◷ queued 1", "▷ not started 0", "▶ running 1", "✓ succeeded 1", "✕ failed 1", "⊘ canceled 0"}; !slices.Equal(statuses, want) {
		t.Errorf("%q, want %q", statuses, want)
	}
	page = d.page(page.link("✕ failed 1"))
	if !slices.Equal(page.runs(), []string{"bad"}) {
		t.Errorf("%v", page.runs())
	}
	if chosen := page.all(func(n *html.Node) bool { return attr(n, "aria-current") == "true" }); len(chosen) != 1 || text(chosen[0]) != "✕ failed 1" {
		t.Errorf("%q", texts(chosen))
	}
	if got := text(d.page("/runs?q=nothing").root); !strings.Contains(got, "No run matches. Show all 4") {
		t.Error(got)
	}
}

// Of a run in progress it is counted how far its step instances have come.
func TestRunsShowHowFarTheirStepsHaveCome(t *testing.T) {
	d := newQueueSite(t)
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{
		{Name: "x", External: true, Items: &step.Items{Range: &step.Range{From: 1, To: 20, By: 1}}},
	}})
	d.change("a", func(r *run.Record) { r.Status, r.StartedAt = run.Running, time.Now() })
	by := &run.Executor{Host: "two", Instance: "worker"}
	for i, status := range []step.Status{step.Succeeded, step.Failed, step.Running, step.Canceled, step.Scheduled} {
		d.put(store.Put(d.store.Keys.Step(store.StepID{Run: "a", Step: "x", Index: i}), step.Record{Status: status, Executor: by}.Encode(), 0))
	}
	page := d.until("/runs", "it is counted", func(page *document) bool {
		cells, _ := page.rows()
		return len(cells) == 1 && cells["a"][3] == "3/20 1 failed"
	})
	bars := page.all(func(n *html.Node) bool { return classed(n, "bar-done") })
	if len(bars) != 1 || attr(bars[0], "width") != "15" {
		t.Errorf("%d bars", len(bars))
	}
}

func TestRunsAreFilteredAndPaged(t *testing.T) {
	d := newQueueSite(t)
	values := map[string][]byte{}
	for i := range 130 {
		status := []run.Status{run.Succeeded, run.Failed}[i%2]
		values[d.store.Keys.Run(fmt.Sprintf("run-%03d", i))] = run.Record{Status: status, QueuedAt: time.Now(), Spec: run.Spec{
			Name: fmt.Sprintf("Job %d", i), Tags: map[string]string{"third": fmt.Sprint(i%3 == 0)},
		}}.Encode()
	}
	fill(t, d.store.Backend, values)
	for _, c := range []struct {
		path  string
		pages int
		runs  int
	}{
		{"/runs", 3, 130}, {"/runs?status=failed", 2, 65}, {"/runs?tag=third%3Dtrue", 1, 44},
		{"/runs?status=failed&tag=third%3Dtrue", 1, 22}, {"/runs?q=job+12", 1, 11}, {"/runs?status=queued", 1, 0},
	} {
		seen, pages, back := map[string]bool{}, 0, ""
		for path := c.path; path != ""; pages++ {
			page := d.page(path)
			for _, id := range page.runs() {
				if seen[id] {
					t.Errorf("%s shows %s twice", c.path, id)
				}
				seen[id] = true
			}
			path, back = page.link("Next page"), page.link("First page")
		}
		if len(seen) != c.runs || pages != c.pages {
			t.Errorf("%s: %d runs on %d pages, want %d on %d", c.path, len(seen), pages, c.runs, c.pages)
		}
		if c.pages > 1 && back != c.path {
			t.Errorf("%s: the way back is %s", c.path, back)
		}
	}
}
