package ui_test

import (
	"fmt"
	"net/http"
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

func items(n int64) *step.Items { return &step.Items{Range: &step.Range{From: 1, To: n, By: 1}} }

// A run on a real coordinator, whose instances are taken and finished as workers do.
func TestThePageOfARunShowsHowItsStepsGo(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	d.leads("lead")
	d.submit(api.RunRequest{
		ID: "r1", Name: wicked, Owner: wicked, Priority: 5, Tags: map[string]string{"env": wicked}, Labels: map[string]string{"label" + wicked: wicked},
		Steps: api.RunSteps{
			{Name: "extract", Command: []string{"true", strings.ReplaceAll(wicked, "{{.}}", "")}, Items: items(3)},
			{Name: "load", Command: []string{"true"}, Needs: []string{"extract"}},
			{Name: "report", External: true, Needs: []string{"load"}},
		},
	})
	page := d.until("/runs/r1", "the run has begun, and no worker is running", func(p *document) bool {
		return strings.Contains(text(p.root), "waiting: extract: no worker is running: start 'berth worker'") && p.fact("started") != ""
	})
	page.shows(wicked, "label"+wicked+" = "+wicked)
	if got := text(page.must("run-status")); !strings.HasPrefix(got, "▶ running its steps; waiting: extract: no worker is running") {
		t.Error(got)
	}
	for name, want := range map[string]string{"priority": "▲ 5", "steps": "5 instances", "attempt": "1", "owner": wicked, "run": "r1"} {
		if got := page.fact(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}

	first := d.takes(store.StepID{Run: "r1", Step: "extract", Index: 0})
	d.ends(d.takes(store.StepID{Run: "r1", Step: "extract", Index: 2}), step.Outcome{Status: step.Succeeded, StartedAt: time.Now(), Output: []byte("ok " + wicked + "\n\x1b[31mred\n")})
	page = d.until("/runs/r1?step=extract", "one has succeeded", func(p *document) bool {
		return strings.Contains(text(p.must("step-extract")), "✓ succeeded 1")
	})
	if got := page.line("step-extract"); got[0] != "extract" || got[1] != "1/3 1 waits: no worker is running: start 'berth worker'" || !strings.HasSuffix(got[2], "scheduled 1 ▶ running 1 ✓ succeeded 1") {
		t.Errorf("%q", got)
	}
	if got := page.line("step-load"); got[0] != "└ load needs extract" || got[1] != "0/1 waits: it needs extract" {
		t.Errorf("%q", got)
	}
	if got := page.line("step-report"); got[0] != "└ report needs load" || got[4] != "external" {
		t.Errorf("%q", got)
	}
	if got := text(page.must("run-progress")); !strings.HasPrefix(got, "20 % 1 of 5 ended: ") {
		t.Error(got)
	}
	running, done := page.line("instance-0"), page.line("instance-2")
	if want := []string{"0", "▶ running", "1", "two"}; !slices.Equal(running[:4], want) || !strings.HasSuffix(running[4], "ago") && running[4] != "just now" || running[5] != "–" || running[6] != "–" {
		t.Errorf("%q", running)
	}
	if want := []string{"2", "✓ succeeded", "1", "two"}; !slices.Equal(done[:4], want) || done[5] == "–" || done[6] != "0" || done[8] != "log" {
		t.Errorf("%q", done)
	}

	log := d.page("/runs/r1?tab=logs&step=extract&index=2")
	log.shows("ok "+wicked, "^[[31mred", "Command true "+strings.ReplaceAll(wicked, "{{.}}", ""))
	log = d.page("/runs/r1?tab=logs&step=extract&index=0")
	log.says("Output of extract[0]", "No output: it is running, and its worker has not reported any.")
	if err := d.steps.Show(t.Context(), first, step.Shown{Text: []byte("half of " + wicked + "\n"), Before: 3000, File: "/as/yet/" + wicked}); err != nil {
		t.Fatal(err)
	}
	log = d.until("/runs/r1?tab=logs&step=extract&index=0", "it is shown so far", func(p *document) bool { return p.id("output") != nil })
	log.says("(so far)")
	log.shows("half of "+wicked, "2.9 KiB before this are left out: all of it is on host 'two' while it runs, in /as/yet/"+wicked+".")

	d.ends(first, step.Outcome{Status: step.Failed, ExitCode: 7, Error: "no: " + wicked})
	page = d.until("/runs/r1?step=extract&status=failed", "the run has failed", func(p *document) bool {
		return strings.Contains(text(p.must("run-status")), "failed")
	})
	page.shows("no: " + wicked)
	if got := page.line("instance-0"); got[1] != "✕ failed" || got[6] != "7" || got[7] != "no: "+wicked {
		t.Errorf("%q", got)
	}
	if page.id("instance-2") != nil || page.id("instance-1") != nil {
		t.Error("the filter lets others through")
	}

	times := d.page("/runs/r1?tab=timeline&step=extract")
	rows := times.lines("timeline")
	var names []string
	for _, row := range rows {
		names = append(names, row[0])
	}
	if want := []string{"the run", "extract", "extract[0]", "extract[1]", "extract[2]", "load", "report"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	bars := times.within(times.must("timeline")).all(func(n *html.Node) bool { return n.Data == "rect" && attr(n, "class") == "part-succeeded" })
	if len(bars) != 1 || attr(bars[0], "width") == "" {
		t.Errorf("%d bars of what has succeeded", len(bars))
	}
	if waits := times.all(func(n *html.Node) bool { return attr(n, "fill") == "url(#hatch-waiting)" }); len(waits) < 3 {
		t.Errorf("%d bars of waiting have lines of their own", len(waits))
	}

	events := d.page("/runs/r1?tab=events")
	events.shows("no: "+wicked, "RunQueued", "RunDequeued", "RunStarted", "StepStarted", "StepSucceeded", "StepFailed", "step = extract[2]")
}

func TestAQueuedRunSaysWhoIsInItsWay(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	d.limit(1)
	d.submit(api.RunRequest{ID: "first", Name: "First " + wicked, Tags: map[string]string{"k": wicked}})
	d.submit(api.RunRequest{ID: "second"})
	d.submit(api.RunRequest{ID: "third", Priority: 9})
	page := d.until("/runs/second", "it is known that no coordinator leads", func(p *document) bool { return strings.Contains(text(p.root), "No coordinator is running") })
	if got := text(page.must("run-why")); got != "Position 3 of 3 in the queue ." {
		t.Error(got)
	}
	page.says("queued the coordinator has not checked it yet")
	d.change("first", func(r *run.Record) { *r, _ = r.Admit("c", time.Now()) })
	d.leads("lead")
	page = d.until("/runs/second", "it is held up", func(p *document) bool {
		return text(p.must("run-reason")) == "global run limit (1/1)" && !strings.Contains(text(p.root), "No coordinator is running")
	})
	page.shows("First " + wicked)
	if got := text(page.must("run-why")); !strings.HasPrefix(got, "Position 2 of 2 in the queue") {
		t.Error(got)
	}
	if got := page.line("way-first"); got[1] != "▷ not started" || got[3] != "k = "+wicked {
		t.Errorf("%q", got)
	}
	none := d.page("/runs/second?tab=steps")
	none.says("It has no steps: its executor runs it as a whole.")
	none = d.page("/runs/second?tab=logs")
	none.says("what its executor writes is not berth's")
	if got := d.page("/runs/second").id("of-timeline"); got == nil {
		t.Error("a run without steps begins with its timeline")
	}
}

// Claims of the sidecar's own, whose events the sidecar writes.
func TestTheConcurrencyTabTellsWhatClaimsWaitedFor(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Steps: api.RunSteps{{Name: "load", External: true, Items: items(2)}}})
	limit := 1
	if _, err := d.client.SetPool(t.Context(), "db", api.PoolChange{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	claim := func(id, key string) {
		t.Helper()
		if _, err := d.client.Claim(t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}, RunID: "r", StepKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	claim("c1", "load[0]")
	done := make(chan error, 1)
	go func() {
		_, err := d.client.Claim(t.Context(), api.ClaimRequest{ID: "c2", Pools: api.Slots{"db": 1}, RunID: "r", StepKey: "load[1]"})
		done <- err
	}()
	const path = "/runs/r?tab=concurrency"
	page := d.until(path, "one waits", func(p *document) bool { return strings.Contains(text(p.root), "StepSlotWaiting") })
	page.says("pool 'db' full (1/1 slots)", "In the queue since")
	if got := page.lines("run-queue"); len(got) != 1 || got[0][0] != "RunQueued" || got[0][4] != "priority = 0" {
		t.Errorf("%q", got)
	}
	d.begin("r")
	d.tells("r", run.Event{Type: run.RunDequeued, At: time.Now(), Metadata: map[string]string{"priority": "0"}})
	if err := d.client.Release(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	limit = 2
	if _, err := d.client.SetPool(t.Context(), "db", api.PoolChange{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	claim("c3", wicked)
	d.tells("r", run.Event{Type: run.StepSlotLost, At: time.Now(), Reason: "lost: " + wicked, By: wicked, Metadata: map[string]string{"claim": "c9", "step": "load[0]", "pools": "db"}})
	page = d.until(path, "all are shown", func(p *document) bool {
		all := text(p.root)
		return strings.Contains(all, "lost: "+wicked) && strings.Count(all, "StepSlotReleased") == 1 && strings.Count(all, "StepSlotClaimed") == 3
	})
	page.shows(wicked, "lost: "+wicked)
	groups := page.all(func(n *html.Node) bool { return classed(n, "slots") })
	if len(groups) != 2 || text(page.within(groups[0]).tags("h3")[0]) != "load" {
		t.Fatalf("%q", texts(groups))
	}
	var got []string
	for _, row := range page.within(groups[0]).cells() {
		got = append(got, strings.Join([]string{row[0], row[1], strings.Fields(row[3])[0], row[4], row[6]}, " | "))
	}
	want := []string{
		"load[0] | • claimed StepSlotClaimed | – | db | c1", "load[0] | • released StepSlotReleased | held | db | c1",
		"load[1] | ◷ waiting StepSlotWaiting | – | db | c2", "load[1] | • claimed StepSlotClaimed | waited | db | c2",
		"load[0] | ✕ lost StepSlotLost | – | db | c9",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if queue := page.lines("run-queue"); len(queue) != 2 || queue[1][0] != "RunDequeued" || queue[1][2] == "–" {
		t.Errorf("%q", queue)
	}
	if err := d.client.Release(t.Context(), "c2"); err != nil {
		t.Fatal(err)
	}
	if err := d.client.Release(t.Context(), "c3"); err != nil {
		t.Fatal(err)
	}
}

func TestAnUnknownRunSaysWhatToDo(t *testing.T) {
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Steps: api.RunSteps{{Name: "x", External: true}}})
	for _, tc := range []struct {
		path   string
		status int
		wants  []string
	}{
		{"/runs/unknown", http.StatusNotFound, []string{`there is no run "unknown"`, "run_retention", "/runs lists", "berth runs events unknown"}},
		{"/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E", http.StatusNotFound, []string{`there is no run "<script>alert(1)</script>"`, "no run can have that id"}},
		{"/runs/" + strings.Repeat("x", 5000), http.StatusNotFound, []string{"no run can have that id"}},
		{"/runs/r?tab=%3Cb%3E", http.StatusUnprocessableEntity, []string{`tab: "<b>" is none: use steps, timeline, concurrency, logs, events`}},
		{"/runs/r?step=x&after=many", http.StatusUnprocessableEntity, []string{`after: "many" is no number`}},
		{"/runs/r?step=x&status=gone", http.StatusUnprocessableEntity, []string{`status: "gone" is none: use requested, scheduled`}},
		{"/runs/r?step=y", http.StatusNotFound, []string{`run "r" has no step "y"`}},
		{"/runs/r?tab=logs&step=y", http.StatusNotFound, []string{`run "r" has no step "y"`}},
		{"/runs/r?tab=logs&step=x&index=1", http.StatusNotFound, []string{`step "x" of run "r" has no instance 1`}},
		{"/runs/r?tab=events&before=x", http.StatusUnprocessableEntity, []string{"before"}},
	} {
		d.change("r", func(r *run.Record) { r.Status = run.Running })
		got := d.get(tc.path)
		if got.status != tc.status || len(got.body) > 20_000 {
			t.Errorf("%s: %d, %d bytes", tc.path, got.status, len(got.body))
		}
		checkPage(t, tc.path, got)
		parse(t, got.body).shows(tc.wants...)
	}
}

func TestARunThatIsBeingStoredSaysSo(t *testing.T) {
	d := newRunSite(t)
	if _, _, err := d.store.Begin(t.Context(), "r", run.Spec{Steps: 12, Digest: "x"}, 0, nil); err != nil {
		t.Fatal(err)
	}
	for tab, want := range map[string]string{
		"steps": "The steps are being written: 12 instances in all", "timeline": "The steps are being written", "logs": "The steps are being written",
		"concurrency": "No events are kept", "events": "No events are kept",
	} {
		d.page("/runs/r?tab="+tab).says("… storing its steps are being stored", want)
	}
}

// What can't be read does not hide what can.
func TestWhatCantBeReadIsSaid(t *testing.T) {
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Steps: api.RunSteps{{Name: "x", External: true, Items: items(3)}}})
	d.begin("r")
	keys := d.store.Keys
	d.put(store.Put(keys.Step(store.StepID{Run: "r", Step: "x", Index: 1}), []byte("?"), 0))
	page := d.page("/runs/r?step=x")
	page.says("1 instance can't be read, and is in no count:", keys.Step(store.StepID{Run: "r", Step: "x", Index: 1}), "◷ requested 2")
	if page.id("instance-0") == nil || page.id("instance-2") == nil {
		t.Error("the others are hidden")
	}
	d.put(store.Put(keys.Event("r", "odd"), []byte("?"), 0))
	for _, tab := range []string{"events", "concurrency"} {
		d.until("/runs/r?tab="+tab, "it is said", func(p *document) bool { return p.id("run-problem") != nil }).says(keys.Event("r", "odd"), "running")
	}
	d.put(store.Put(keys.Graph("r"), []byte("?"), 0))
	for _, tab := range []string{"steps", "timeline", "logs"} {
		d.until("/runs/r?tab="+tab, "it is said", func(p *document) bool { return p.id("run-problem") != nil }).says(keys.Graph("r"), "running")
	}
	d.put(store.Put(keys.Run("r"), []byte("?"), 0))
	if got := d.get("/runs/r"); got.status != http.StatusInternalServerError || !strings.Contains(got.body, keys.Run("r")) {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A run of many instances and many events is shown a page at a time.
func TestARunOfTenThousandInstancesIsPaged(t *testing.T) {
	d := newRunSite(t)
	const n, begun = 10_000, 4000
	d.submit(api.RunRequest{ID: "r", Steps: api.RunSteps{{Name: "x", External: true, Items: items(n)}}})
	d.begin("r")
	values := map[string][]byte{}
	for i := range begun {
		rec := step.Record{Status: step.Succeeded, Attempt: 1, StartedAt: time.Now(), EndedAt: time.Now(), Executor: &run.Executor{Host: "two", Instance: "worker"}}
		if i%1000 == 999 {
			rec.Status, rec.Error = step.Failed, strings.Repeat("<", 1000)
		}
		values[d.store.Keys.Step(store.StepID{Run: "r", Step: "x", Index: i})] = rec.Encode()
	}
	fill(t, d.store.Backend, values)
	for i := range 600 {
		values[d.store.Keys.Event("r", fmt.Sprintf("e%03d", i))] = fmt.Appendf(nil, `{"v":1,"type":"StepSlotClaimed","at":"2024-05-06T12:00:00Z","metadata":{"claim":"c%d","step":"x[%d]","pools":"db"}}`, i, i)
	}
	fill(t, d.store.Backend, values)
	page := d.until("/runs/r?step=x", "all is counted", func(p *document) bool { return strings.Contains(text(p.root), "4,000 of 10,000 ended") })
	page.says("✕ failed 4", "✓ succeeded 3,996", "◷ requested 6,000")
	seen := []string{}
	for next := "/runs/r?step=x&status=failed"; next != ""; {
		got := d.page(next)
		for _, row := range got.lines("instances") {
			seen = append(seen, row[0])
		}
		next = got.link("Next")
	}
	if !slices.Equal(seen, []string{"999", "1999", "2999", "3999"}) {
		t.Errorf("%v", seen)
	}
	got := d.page("/runs/r?step=x&after=9989").lines("instances")
	if len(got) != 10 || got[0][0] != "9990" || got[9][0] != "9999" {
		t.Errorf("%v", got)
	}
	for _, path := range []string{"/runs/r", "/runs/r?step=x", "/runs/r?tab=timeline&step=x", "/runs/r?tab=concurrency", "/runs/r?tab=events", "/runs/r?tab=logs&step=x&index=9999"} {
		if got := d.get(path); got.status != http.StatusOK || len(got.body) > 400_000 {
			t.Errorf("%s: %d, %d bytes", path, got.status, len(got.body))
		}
	}
	d.page("/runs/r?tab=concurrency").says("The latest 500 of 600 events are shown", "600 claims")
	events := d.page("/runs/r?tab=events")
	if rows := events.lines("events"); len(rows) != 200 || events.link("Older") == "" {
		t.Errorf("%d events are shown", len(rows))
	}
}

// An open page shows what changes.
func TestARunIsKeptNew(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Steps: api.RunSteps{{Name: "x", External: true, Items: items(3)}}})
	d.begin("r")
	s := d.stream("/runs/r?step=x")
	if first := s.main(); first.fact("owner") != "" || len(first.lines("instances")) != 3 || first.line("instance-1")[1] != "◷ requested" {
		t.Errorf("%s", text(first.root))
	}
	d.is("r", "x", 1, step.Record{Status: step.Failed, Attempt: 1, Error: wicked + "\r\ndata: x\n\nevent: y"})
	for {
		if got := s.main(); got.line("instance-1")[1] == "✕ failed" {
			got.shows(wicked, "data: x event: y")
			break
		}
	}
	d.change("r", func(r *run.Record) { r.Owner = "me" })
	for s.main().fact("owner") != "me" {
	}
}
