package ui_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/sidecar/api"
)

func TestTheQueuePageShowsWhoWaitsAndWhy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.to("/queue")
	if ids, want := s.Texts("#waiting tbody th"), []string{"audit-3", "nightly-2026-11-23", "export-41", "export-42", "mail-8", "tidy-1"}; !slices.Equal(ids, want) {
		t.Errorf("the queue is %q, want %q", ids, want)
	}
	s.wantText("#run-audit-3", "1", "audit-3", "Audit of access", "▲ 10", "(3/3)", "prepare", "work", "×4", "env=prod", "tenant=acme")
	s.wantText("#run-tidy-1", "6", "▽ -10", "work", "×19")
	s.wantText("#run-export-41", "of partners")
	if href, _ := s.Attr("#run-audit-3 th a", "href"); href != "/runs/audit-3" {
		t.Errorf("a run leads to %s", href)
	}
	for i, limit := range []string{"3/3", "2/2", "1/2", "1/2"} {
		s.wantText(fmt.Sprintf(".limits li:nth-child(%d)", i+1), limit)
	}
	s.wantText("main", "6 queued runs", "3 in progress", "gateway/coordinator admits runs")

	same := s.stays()
	s.submit(api.RunRequest{ID: "hotfix", Priority: 900})
	s.WaitText("#waiting tbody tr:first-child", "hotfix") // without being loaded again, and in front
	s.ends(s.stage, "billing-7/bill/0", succeeded("done\n"))
	s.WaitGone("#run-hotfix") // it was admitted in place of the one that has ended
	same()

	s.Type("#filter-q", "export")
	s.Follow("form.filter button")
	if ids := s.Texts("#waiting tbody th"); !slices.Equal(ids, []string{"export-41", "export-42"}) {
		t.Errorf("named like that are %q", ids)
	}
	s.wantText("#run-export-42 td:first-child", "4")
	s.to("/queue")
	s.Follow(`#run-audit-3 a[href*="tag="]`)
	if ids := s.Texts("#waiting tbody th"); !slices.Equal(ids, []string{"audit-3", "nightly-2026-11-23"}) && !slices.Equal(ids, []string{"audit-3", "nightly-2026-11-23", "export-41"}) {
		t.Errorf("of that tag are %q", ids)
	}
}

func TestWithoutACoordinatorTheQueueSaysSo(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.submit(api.RunRequest{ID: "r1"})
	h.to("/queue")
	h.wantText("#leaderless", "No coordinator admits runs", "berth coordinator")
	h.wantText("#run-r1", "the coordinator has not checked it yet")
	h.WantNoFindings()
	stop := h.leads("one")
	h.WaitGone("#leaderless")
	h.WaitGone("#run-r1")
	h.wantText("main", "No runs are queued.")
	stop()
	h.WaitShown("#leaderless")
}

func TestTheListOfRunsIsFiltered(t *testing.T) {
	inFull(t)
	t.Parallel()
	s := newScene(t)
	s.to("/runs")
	if first := s.Text("#runs tbody tr:first-child th"); first != "tidy-1" {
		t.Errorf("the newest is %s", first)
	}
	s.wantText("nav.statuses", "all 11", "queued 6", "running 3", "succeeded 1", "failed 1")
	s.wantText("#run-import-19", "✕ failed", "Import of customers")
	s.WaitText("#run-nightly-2026-11-22", "10/20")
	s.Follow(`nav.statuses a[href*="failed"]`)
	if ids := s.Texts("#runs tbody th"); !slices.Equal(ids, []string{"import-19"}) {
		t.Errorf("failed are %q", ids)
	}
	s.Follow("#run-import-19 th a")
	s.wantText("#run-status", "✕ failed")
}

// The page of a run, of a real coordinator and a real worker.
func TestTheRunPageShowsEachOfItsSides(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const base = "/runs/nightly-2026-11-22"
	s.to(base)
	s.wantText("h1", "Nightly load")
	s.wantText("#run-status", "▶ running")
	s.wantText("#run-progress", "50 %", "10 of 20 ended", "4 running")
	s.wantText("dl.facts", "nightly-2026-11-22", "▲ 5", "data platform", "env=prod", "tenant=acme", "ticket=DATA-118", "20 instances", "Queued", "Admitted", "Started", "Attempt 1")
	s.wantText("#step-extract", "6/6", "succeeded 6", "api-quota=1")
	s.wantText("#step-load", "needs clean", "3/12", "4 at a time, warehouse=1")
	s.wantText("#step-report", "waits: it needs load")
	if indents := s.Attrs("#steps tr[id^=step-] th", "class"); !slices.Equal(indents, []string{"deep-0", "deep-1", "deep-2", "deep-3"}) {
		t.Errorf("the tree is %q deep", indents)
	}

	same := s.stays()
	s.Click("#step-load th a")
	s.WaitShown("#instance-0")
	s.wantText("#instance-0", "✓ succeeded", "etl-1", "0")
	s.wantText("#instance-4", "▶ running", "etl-1")
	s.wantText("#instance-11", "requested")
	s.ends(s.stage, "nightly-2026-11-22/load/4", step.Outcome{Status: step.Succeeded, Output: []byte("loaded part 4\n")})
	s.WaitText("#instance-4", "succeeded") // live
	s.WaitText("#run-progress", "55 %")

	s.Click("#tab-timeline")
	s.WaitShown("#timeline")
	waits, runs := s.Attrs("#timeline rect[fill*=waiting]", "fill"), s.Attrs("#timeline rect[fill*=running]", "fill")
	if len(waits) == 0 || len(runs) == 0 || waits[0] == runs[0] {
		t.Errorf("waiting is drawn by %q, running by %q", waits, runs)
	}
	if a, b := s.Computed(".part-waiting", "fill"), s.Computed(".part-running", "fill"); a == b {
		t.Errorf("waiting and running are both %s", a)
	}
	s.wantText("#time-extract", "succeeded")

	s.Click("#tab-concurrency")
	s.WaitShown("#run-queue")
	s.wantText("#run-queue", "RunQueued", "RunDequeued", "priority=5", "gateway/coordinator")
	s.WaitText("#of-concurrency", "StepSlotClaimed")
	s.wantText("#of-concurrency", "extract", "load", "StepSlotReleased", "api-quota", "warehouse")
	same()
	s.to("/runs/train-vit?tab=concurrency")
	s.WaitText("#of-concurrency", "StepSlotWaiting")
	s.wantText("#of-concurrency", "train", "pool 'gpu' full (4/4 slots)")
	s.to("/runs/train-vit")
	s.wantText("#step-train", "waits: pool 'gpu' full (4/4 slots)")

	s.to(base + "?tab=logs")
	s.Click("#log-of-extract a")
	s.WaitShown("#output")
	s.wantText("#output", "fetched 1200 rows")
	s.Click(".pages a[data-soft]")
	s.WaitText("#output", "fetched 1237 rows")
	s.Click("#tab-events")
	s.WaitShown("#events")
	s.wantText("#events", "RunQueued", "RunStarted", "StepStarted", "StepSucceeded")

	s.to("/runs/audit-3")
	s.wantText("#run-status", "◷ queued", "(3/3)")
	s.wantText("#run-why", "Position 1 of 6")
	s.WaitText("#in-the-way", "billing-7")
	s.to("/runs/import-19?step=import")
	s.wantText("#run-error", "import")
	s.wantText("#instance-0", "✕ failed", "3")

	s.Go(s.base + "/runs/unknown")
	if s.Status() != 404 {
		t.Errorf("a run that is not there: %d", s.Status())
	}
	s.WantNoFindings()
	s.Expect("/runs/unknown: status 404")
}

func TestHostsShowsWhoIsThere(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.to("/hosts")
	s.WaitText("#sums", "5 / 12")
	s.wantText("#sums", "3 hosts", "2 workers")
	s.wantText("#leader", "gateway", "coordinator", "term")
	s.WaitText("#tick", "Queued")
	s.WaitFor("its tick has seen the queue", `/Queued\s+6\s+In progress\s+3/.test(document.querySelector("#tick").innerText)`)
	s.wantText(`[id="candidate-etl-1/coordinator"]`, "number 1 to take over")
	s.wantText(`[id="worker-etl-1/worker"]`, "5/8", "default", "v0.9.0")
	s.wantText(`[id="worker-etl-2/worker"]`, "0/4", "default", "gpu")
	for _, host := range []string{"gateway", "etl-1", "etl-2"} {
		s.wantText(fmt.Sprintf(`[id="sidecar-%s/sidecar"]`, host), host)
	}
	same := s.stays()
	third := s.instance(instance.Options{Host: "etl-3", Instance: "worker", Role: "worker", Capacity: 2, Queues: []string{"default"}})
	s.WaitText(`[id="worker-etl-3/worker"]`, "0/2")
	if err := third.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitGone(`[id="worker-etl-3/worker"]`)
	same()
	s.Type("#q", "gpu")
	s.Follow("#filter button")
	if rows := s.Attrs("#workers-table tbody tr", "id"); !slices.Equal(rows, []string{"worker-etl-2/worker"}) {
		t.Errorf("with that queue are %q", rows)
	}
}

func TestWithoutALeaderHostsSaysSo(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.to("/hosts")
	h.wantText("#no-leader", "There is no leader.")
	h.WantNoFindings()
	h.leads("one")
	h.WaitGone("#no-leader")
	h.WaitShown("#leader")
}

// What people can write is read on every page as it is, and makes nothing of the page.
func TestHostileTextIsReadAndNeverRun(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 1)
	h.leads("one")
	w := h.works("two", 2)
	const markup = wicked + `<svg onload=alert(3)></svg></pre></textarea>`
	const evil = markup + "\u202eevil" // refused in names now, but not in commands and what they write
	h.claim(api.ClaimRequest{ID: "c1", Pools: api.Slots{"db": 1}, RunID: "r-1", StepKey: markup, Labels: map[string]string{"label" + wicked: markup}})
	h.submit(api.RunRequest{
		ID: "r1", Name: markup, Owner: markup, Tags: map[string]string{"tag": wicked}, Labels: map[string]string{"label": markup},
		Steps: api.RunSteps{{Name: "s", Command: []string{"true", strings.ReplaceAll(evil, "{{.}}", "")}, Items: items(2)}, {Name: "late", Command: []string{"true"}, Needs: []string{"s"}, Pools: api.Slots{"db": 1}}},
	})
	h.ends(w, "r1/s/0", step.Outcome{Status: step.Succeeded, Output: []byte(evil + "\x1b[31m\x00\x07\n")})
	h.to("/runs/r1?tab=logs&step=s&index=0")
	h.wantText("#output", wicked)
	h.ends(w, "r1/s/1", step.Outcome{Status: step.Failed, ExitCode: 1, Error: evil})
	h.eventually("the run has failed", func() bool {
		r, err := h.store.Get(t.Context(), "r1")
		return err == nil && r.Status == run.Failed
	})
	h.submit(api.RunRequest{ID: "r2", Name: markup, Tags: map[string]string{"tag": wicked}, Pools: api.Slots{"db": 1}})
	for _, id := range []string{"r1", "r2"} { // records from before such names were refused
		h.change(id, func(r *run.Record) { r.Name, r.Owner, r.Labels = evil, evil, map[string]string{"label": evil} })
	}
	h.wait(api.ClaimRequest{ID: "c2", Pools: api.Slots{"db": 1}, RunID: "r-2", StepKey: markup, Labels: map[string]string{"k": markup}})
	for _, path := range []string{
		"/pools?open=db", "/pools?q=" + "%3Cimg%20src=x%20onerror=alert(9)%3E", "/queue", "/queue?q=%3Cscript%3Ealert(9)%3C/script%3E", "/runs", "/runs?tag=tag%3D%3Cb%3E",
		"/runs/r1", "/runs/r1?step=s", "/runs/r1?tab=timeline&step=s", "/runs/r1?tab=concurrency", "/runs/r1?tab=logs&step=s&index=1", "/runs/r1?tab=events",
		"/actions/cancel?run=r2", "/actions/revoke?claim=c1", "/hosts?q=%22%3E%3Cscript%3Ealert(9)%3C/script%3E",
	} {
		h.to(path)
		h.WaitFor("it is live", `!document.body.dataset.live || document.readyState === "complete"`)
		made := h.Eval(`[...document.querySelectorAll("img, main script, textarea, [onerror], [onload], [onclick], b")].map(e => e.outerHTML.slice(0, 100)).join()`)
		if made != "" {
			t.Errorf("%s: a text became %s", path, made)
		}
		if h.Eval(`/[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b-\u001f\u007f]/.test(document.body.innerText)`) == true {
			t.Errorf("%s: something is there that can't be seen, or turns the text around", path)
		}
		for _, dark := range []bool{false, true} {
			h.Viewport(390, 800)
			h.Dark(dark)
			h.WantNoFindings()
			if by, which := h.Wider(); by > 0 {
				t.Errorf("%s is wider than a phone by %d: %s", path, by, which)
			}
		}
	}
	h.to("/pools?open=db")
	h.wantText("#holds-db-c1", wicked)
	h.WaitText("#waits-db-c2", wicked)
	h.to("/runs/r1")
	h.wantText("main", wicked, `\u202eevil`) // what would turn the line round is spelled out
}
