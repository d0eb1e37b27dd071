package ui_test

import (
	"net/url"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// A run, a step and a step instance that failed are retried, and an instance that has not
// ended is canceled, from each page that lists them.
func TestRunsAndStepsAreRetriedAndCanceledFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Name: "load", Steps: api.RunSteps{{Name: "extract", Command: []string{"true"}, Items: items(3)}, {Name: "load", Command: []string{"true"}, Needs: []string{"extract"}}}})
	d.begin("r")
	ended := func(status step.Status) step.Record {
		return step.Record{Status: status, Attempt: 1, StartedAt: time.Now(), EndedAt: time.Now(), Error: "exit code 1"}
	}
	d.is("r", "extract", 0, ended(step.Failed))

	page := d.page("/runs/r?step=extract")
	for want, n := range map[string]int{
		"/actions/retry?back=%2Fruns%2Fr%3Fstep%3Dextract&run=r&step=extract":          1,
		"/actions/retry?back=%2Fruns%2Fr%3Fstep%3Dextract&index=0&run=r&step=extract":  1,
		"/actions/cancel?back=%2Fruns%2Fr%3Fstep%3Dextract&index=2&run=r&step=extract": 1,
		"/actions/cancel?back=%2Fruns%2Fr%3Fstep%3Dextract&run=r":                      1,
	} {
		if links := page.all(func(e *html.Node) bool { return attr(e, "href") == want }); len(links) != n {
			t.Errorf("the page has %d links to %s, want %d", len(links), want, n)
		}
	}
	log := d.page("/runs/r?tab=logs&step=extract&index=0")
	if log.link("Retry…") == "" || d.page("/runs/r?tab=logs&step=extract&index=2").link("Cancel…") == "" {
		t.Error("the page of an instance has no actions of it")
	}

	// An instance, while the run goes on.
	page = d.page("/actions/retry?run=r&step=extract&index=0")
	page.says("Retry step instance extract[0] of run r?", "It is requested again", "The run goes on meanwhile.")
	_, path, message := d.follow(d.confirm("/actions/retry?run=r&step=extract&index=0", "reason", "a network fault"))
	if path != "/runs/r" || message != "1 step instance of run r is requested again." {
		t.Errorf("came to %s: %q", path, message)
	}
	d.page("/actions/retry?run=r&step=extract&index=0").says("It has not failed, and was not canceled: its status is requested.")
	// A step.
	d.is("r", "extract", 1, ended(step.Canceled))
	d.page("/actions/retry?run=r&step=extract").says("Retry step extract of run r?", "1 step instance is requested again")
	if _, _, message = d.follow(d.confirm("/actions/retry?run=r&step=extract")); message != "1 step instance of run r is requested again." {
		t.Errorf("it says %q", message)
	}
	d.page("/actions/retry?run=r&step=extract").says("None of its instances has failed or was canceled.")
	d.page("/actions/retry?run=r").says(`run "r" has not ended: its status is running`)
	// An instance is canceled.
	d.page("/actions/cancel?run=r&step=extract&index=2").says("Cancel step instance extract[2] of run r?", "It counts as failed")
	if _, _, message = d.follow(d.confirm("/actions/cancel?run=r&step=extract&index=2")); message != "Step instance extract[2] of run r is canceled." {
		t.Errorf("it says %q", message)
	}
	d.page("/actions/cancel?run=r&step=extract&index=2").says("It has ended already, and there is nothing to cancel: its status is canceled.")
	// A run that has ended.
	d.change("r", func(r *run.Record) { *r, _ = r.End(run.Failed, "extract failed", time.Now()) })
	if got := d.page("/runs?status=failed&q=load").link("Retry…"); got != "/actions/retry?back=%2Fruns%3Fq%3Dload%26status%3Dfailed&run=r" {
		t.Errorf("the list leads to %s", got)
	}
	d.page("/actions/retry?run=r").says("Retry run r?", "It goes back to its old place in the queue.", "4 of its 4 step instances have not succeeded, and are run again, with as many retries as at first.")
	_, path, message = d.follow(d.confirm("/actions/retry?run=r&back=/runs?status=failed"))
	if path != "/runs" || message != "Run r is queued again." {
		t.Errorf("came to %s: %q", path, message)
	}
	d.refused(d.post("/actions/retry", url.Values{"run": {"r"}, "step": {"none"}}), problem.StepNotFound, "none")
	d.refused(d.get("/actions/cancel?run=r&step=extract&index=7"), problem.StepNotFound, "extract")
	d.refused(d.get("/actions/cancel?run=r&step=extract"), problem.Invalid, "index")
	d.refused(d.get("/actions/retry?run=r&index=1"), problem.Invalid, "step")
	d.wantActions(
		"anonymous: retry-run r (retried by anonymous, none) failed: queued -> . run \"r\" has no step \"none\"",
		"anonymous: retry-run r (retried by anonymous) done: failed -> queued. 1 step instance requested again",
		"anonymous: cancel-step r (extract[2]) done: running -> . ",
		"anonymous: retry-run r (retried by anonymous, extract) done: running -> running. 1 step instance requested again",
		"anonymous: retry-run r (retried by anonymous: a network fault, extract[0]) done: running -> running. 1 step instance requested again",
	)
}

// An action leads back to the page that it was asked for on, with its filter.
func TestTheFilterSurvivesAnAction(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.submit(api.RunRequest{ID: "r"})
	for page, links := range map[string][]string{
		"/pools?open=db&q=d&sort=name": {"Pause…", "Limit…", "Delete…"},
		"/queue?q=r&tag=":              {"Cancel…"},
		"/runs?q=r&status=queued":      {"Cancel…"},
		"/runs/r?tab=events":           {"Cancel this run…"},
	} {
		for _, name := range links {
			back := d.page(d.page(page).link(name)).must("back")
			u, err := url.Parse(attr(back, "href"))
			want, _ := url.Parse(page)
			if err != nil || u.Path != want.Path || u.Query().Encode() != want.Query().Encode() {
				t.Errorf("%s: %s leads back to %s", page, name, u)
			}
		}
	}
	// The way through several pages keeps it.
	d.page("/actions/limit?pool=db&back=/pools?q=d")
	if got := d.page("/actions/limit?pool=db&limit=1&back=/pools?q=d").link("Choose another limit"); got != "/actions/limit?back=%2Fpools%3Fq%3Dd&pool=db" {
		t.Errorf("another limit is at %s", got)
	}
	to := d.confirm("/actions/limit?pool=db&limit=1&back=/pools?q=d").header.Get("Location")
	if u, err := url.Parse(to); err != nil || u.Path != "/pools" || u.Query().Get("q") != "d" {
		t.Errorf("it goes on at %s", to)
	}
	got := d.post("/actions/cancel", url.Values{"run": {"none"}, "back": {"/queue?q=r"}})
	if parse(t, got.body).link("Back") != "/queue?q=r" {
		t.Errorf("a refusal does not lead back: %s", got.body)
	}
}

func TestAPoolIsDeletedFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 2}})
	d.page("/actions/delete?pool=db").says("Delete pool db?", "Its holders keep 2 slots until they release them.", "0 claims wait")
	_, path, message := d.follow(d.confirm("/actions/delete?pool=db"))
	if path != "/pools" || message != "Pool db is deleted." {
		t.Errorf("came to %s: %q", path, message)
	}
	d.refused(d.get("/actions/delete?pool=db"), problem.PoolNotFound, "was deleted")
	d.wantActions("anonymous: delete-pool db () done: limit 3, lease 5m, reserve after 1m -> deleted. 2 slots held, 0 claims waiting")
}
