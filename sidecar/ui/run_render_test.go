package ui

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// nasty is text that a page must show, and never interpret.
const nasty = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{.}}`

// nastyViews are all tabs of a run in progress, with a nasty text wherever there can be
// one.
func nastyViews(t *testing.T, now time.Time) []*runView {
	t.Helper()
	begun := now.Add(-10 * time.Hour)
	seen := seenOf(t, "a:", "b: a", "x: a")
	block := run.Block{Kind: run.BlockTagLimit, Text: nasty}
	by := &run.Executor{Host: nasty, Instance: nasty, Name: nasty}
	labels := map[string]string{"k" + nasty: nasty}
	*seen.run = run.Run{ID: "r", Record: run.Record{
		Status: run.Queued, Block: &block, QueuedAt: begun, AdmittedAt: begun, StartedAt: begun, Executor: by, Error: nasty, Attempt: 1,
		Spec: run.Spec{Name: nasty, Owner: nasty, Tags: labels, Labels: labels, Pools: map[string]int{"db": 1}, Steps: 3},
	}}
	seen.why.Position, seen.why.Line, seen.why.InTheWay = 1, 2, []*run.Run{{ID: "o", Record: run.Record{Status: run.Running, AdmittedAt: begun, Executor: by, Spec: run.Spec{Name: nasty, Tags: labels}}}}
	a := &seen.overview.Steps[0]
	a.Counts, a.StartedAt = map[step.Status]int{step.Running: 1}, begun
	x := &seen.overview.Steps[2]
	x.Counts, x.Shape.External, x.Shape.Queue, x.Shape.Pools = map[step.Status]int{step.Scheduled: 1}, false, nasty, map[string]int{nasty: 1}
	seen.among(step.Around{Space: pool.NewSpace()})
	seen.overview.Bad = []error{fmt.Errorf("%s", nasty)}
	list := &step.Instances{Bad: seen.overview.Bad, Items: []*step.Instance{{
		StepID: store.StepID{Run: "r", Step: "a"}, Record: step.Record{Status: step.Running, Attempt: 2, ScheduledAt: begun, StartedAt: begun, Executor: by, Error: nasty},
	}}}
	events := []run.LoggedEvent{
		loggedAt(1, run.Event{Type: run.EventType(nasty), By: nasty, Reason: nasty, Metadata: labels}),
		loggedAt(2, run.Event{Type: run.RunQueued, By: nasty, Reason: nasty, Metadata: labels}),
		loggedAt(3, run.Event{Type: run.StepSlotWaiting, By: nasty, Reason: nasty, Metadata: map[string]string{"claim": nasty, "step": nasty, "pools": nasty}}),
	}
	d := detailOf(list.Items[0].Record)
	d.Work.Command = []string{nasty}
	logs := logChoices(seen, onTab("r", tabLogs).in("a"))
	logs.Log = instanceLogOf(&step.Seen{Detail: d, Log: &step.Log{Fence: 1, Before: 9, Host: nasty, File: nasty, Text: []byte(nasty)}, Unasked: fmt.Errorf("%s", nasty)})
	var all []*runView
	for _, tab := range runTabs {
		v := &runView{runHead: headOf(seen), Tab: tab, Tabs: []runTab{{tab, runTitles[tab], "/runs/r?tab=" + tab, true}}}
		switch q := onTab("r", tab).in("a"); tab {
		case tabSteps:
			v.Steps = stepsTabOf(seen, list, q)
		case tabTimeline:
			v.Timeline = timelineOf(seen, list, q, now)
		case tabConcurrency:
			v.Concurrency = concurrencyOf(events)
		case tabLogs:
			v.Logs = logs
		case tabEvents:
			v.Events = eventsTabOf(events, q)
		}
		all = append(all, v)
	}
	return append(all, &runView{runHead: headOf(seen), Tab: tabSteps, Problem: nasty})
}

// Whatever is nasty is escaped, on every tab and in streams as well.
func TestARunsTextsAreShownAndNeverInterpreted(t *testing.T) {
	sets := newTemplates()
	for _, live := range []bool{false, true} {
		for _, v := range nastyViews(t, afterNoon(0)) {
			body, err := sets.render("run", &frame{Title: v.Title(), Data: v, Live: live, by: inspect.Operator{PoolOperator: audit.PoolOperator{By: audit.Caller{Identity: accesstest.Admin}}}})
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range []string{"<script>a", "<img", `"'>`, "'><", "ZgotmplZ"} {
				if strings.Contains(string(body), bad) {
					t.Errorf("%s: %s is in\n%s", v.Tab, bad, body)
				}
			}
			if !strings.Contains(string(body), "&lt;script&gt;alert(1)&lt;/script&gt;") {
				t.Errorf("%s does not show it:\n%s", v.Tab, body)
			}
		}
	}
}

// What a stream renders is the same as long as nothing but time has passed.
func TestWhatIsStreamedOfARunDoesNotChangeWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newTemplates()
		views := nastyViews(t, time.Now())
		render := func(v *runView) []byte {
			body, err := sets.render("run", &frame{Title: v.Title(), Data: v, Live: true, Now: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			return body
		}
		var first [][]byte
		for _, v := range views {
			first = append(first, render(v))
		}
		time.Sleep(time.Hour)
		for n, v := range views {
			if body := render(v); !bytes.Equal(first[n], body) {
				t.Errorf("%s differs:\n%s\n%s", v.Tab, first[n], body)
			}
		}
	})
}
