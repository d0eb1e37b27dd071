package ui_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// wantActions wants the newest actions to be recorded like this: who, what, with what, and
// the outcome.
func (h *browserSite) wantActions(want ...string) {
	h.t.Helper()
	h.to("/actions")
	h.WaitText("#list tbody tr:nth-child(1)", strings.Split(want[0], " | ")[1])
	for i, w := range want {
		row := fmt.Sprintf("#list tbody tr:nth-child(%d)", i+1)
		h.wantText(row, strings.Split(w, " | ")...)
		if from := h.Text(row + " td.mono"); !strings.HasPrefix(from, "127.0.0.1") {
			h.t.Errorf("%s came from %q", w, from)
		}
	}
}

// A run is canceled from its page: one is shown what will happen, says so, and its worker
// stops what runs of it.
func TestARunIsCanceledFromItsPage(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 2)
	h.leads("one")
	w := h.works("two", 2)
	h.submit(api.RunRequest{ID: "r1", Name: "Nightly", Steps: api.RunSteps{
		{Name: "load", Command: []string{"true"}, Items: items(3), Pools: api.Slots{"db": 1}},
	}})
	h.eventually("two instances run", func() bool { return w.runs("r1/load/0") != nil && w.runs("r1/load/1") != nil })
	h.to("/runs/r1")
	h.WaitText("#run-status", "running")
	h.Follow("#cancel-run")
	h.wantText("h1", "Cancel run r1?")
	h.wantText("main", "Nightly", "No more of its step instances start.", "2 step instances run now", "2 slots", "recorded with the name anonymous")
	h.WantNoFindings()
	h.Follow("#back")
	if r, err := h.store.Get(t.Context(), "r1"); err != nil || r.Status != run.Running {
		t.Fatalf("viewing what would happen has changed the run: %v, %v", r.Status, err)
	}

	h.Follow("#cancel-run")
	h.Type("#reason", `the data is "wrong" <b>`)
	h.Follow("#do")
	if !strings.HasPrefix(h.URL(), h.base+"/runs/r1") {
		t.Errorf("it goes on at %s", h.URL())
	}
	h.WaitText("#message", "r1")
	h.WaitText("#run-status", "canceled")
	h.wantText("#run-error", `the data is "wrong" <b>`)
	if h.Count("#cancel-run") != 0 {
		t.Error("it can be canceled again")
	}
	if strings.Contains(h.URL(), "said=") {
		t.Errorf("the message would be shown again: %s", h.URL())
	}
	h.eventually("both were stopped", func() bool {
		stopped := 0
		for i := range 2 {
			select {
			case <-w.runs(fmt.Sprintf("r1/load/%d", i)).Done():
				stopped++
			default:
			}
		}
		return stopped == 2
	})
	h.to("/pools")
	h.WaitText("#pool-db .use-text", "0/2")
	h.wantActions("anonymous | cancel run | r1 | done")
}

func TestAPoolIsChangedFromThePage(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 4)
	h.holds(h.instance(instance.Options{Host: "etl-1"}), "c1", instance.Slots{"db": 3}, instance.WithPID(11))
	pool := func() *api.PoolDetail {
		t.Helper()
		p, err := h.client.Pool(t.Context(), "db")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	h.to("/pools")
	h.Follow(`#pool-db a[href*="/actions/pause"]`)
	h.wantText("h1", "Pause pool db?")
	h.wantText("main", "Its holders keep 3 slots")
	h.Follow("#do")
	h.WaitText("#message", "db")
	h.WaitText("#pool-db", "paused")
	if !pool().Paused {
		t.Error("it says that it is paused, and it is not")
	}
	h.Follow(`#pool-db a[href*="/actions/resume"]`)
	h.Follow("#do")
	h.WaitFor("it is not paused", `!document.querySelector("#pool-db .marks").innerText.includes("paused")`)
	if pool().Paused {
		t.Error("it says that it is resumed, and it is paused")
	}

	h.Follow(`#pool-db a[href*="/actions/limit"]`)
	h.Type("#limit", "2")
	h.Follow("#choose button.main")
	h.wantText("main", "2", "3 slots by 1 claim")
	h.WantNoFindings()
	h.Follow("#do")
	h.WaitText("#pool-db .use-text", "3/2")
	h.WaitCount("#pool-db .use.is-full", 1)
	if p := pool(); p.Limit != 2 || p.Claimed != 3 {
		t.Errorf("the limit is %d, and %d are held", p.Limit, p.Claimed)
	}
	h.wantActions("anonymous | set pool | db | 2 | done", "anonymous | resume pool | db | done", "anonymous | pause pool | db | done")
}

func TestASlotIsReleasedFromThePage(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 2)
	c := h.holds(h.instance(instance.Options{Host: "etl-1"}), "c1", instance.Slots{"db": 2}, instance.WithRun("r-1", "load"), instance.WithPID(4711))
	h.to("/pools?open=db")
	h.Follow(`#holds-db-c1 a[href*="/actions/revoke"]`)
	h.wantText("main", "c1", "etl-1", "r-1", "load", "4711", "db")
	if h.Count("#other") != 1 {
		t.Error("there is no way to take it by force")
	}
	h.WantNoFindings()
	released := make(chan error, 1)
	go func() {
		<-c.Context().Done() // it is notified, and stops
		released <- c.Release(context.Background())
	}()
	h.Follow("#do")
	h.WaitText("#message", "c1")
	if err := <-released; err != nil {
		t.Error(err)
	}
	if code := problem.CodeOf(c.Err()); code != problem.ClaimRevoked {
		t.Errorf("the holder gets %v", c.Err())
	}
	h.WaitCount("#holds-db-c1", 0)
	h.WaitText("#pool-db .use-text", "0/2")
	h.wantActions("anonymous | revoke claim | c1 | done")
}

// What was confirmed and is not so any more is not done: the page says so.
func TestAnActionOnWhatHasChangedIsAskedAgain(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.submit(api.RunRequest{ID: "r1"})
	h.to("/actions/cancel?run=r1")
	if _, err := h.client.CancelRun(t.Context(), "r1", api.RunCancel{Reason: "by another operator"}); err != nil {
		t.Fatal(err)
	}
	h.Follow("#do")
	h.wantText("#message", "canceled already: by another operator")
	for _, path := range []string{"/actions/cancel?run=unknown", "/actions/pause?pool=none", "/actions/revoke?claim=none", "/actions/nothing"} {
		h.Go(h.base + path)
		if h.Status() != 404 {
			t.Errorf("%s: status %d", path, h.Status())
		}
		h.WantNoFindings()
	}
	h.Expect("status 404")
}

func TestWithoutTheRightNothingCanBeDone(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t, func(c *sidecar.Config) { c.Policy.Open = false })
	h.pool("db", 4)
	h.claim(api.ClaimRequest{ID: "c1", Pools: api.Slots{"db": 1}})
	h.submit(api.RunRequest{ID: "r1"})
	for _, path := range []string{"/pools?open=db", "/queue", "/runs", "/runs/r1", "/hosts", "/actions"} {
		h.to(path)
		if links := h.Attrs(`main a[href*="/actions/"], main form[method=post]`, "href"); len(links) > 0 {
			t.Errorf("%s leads to %q", path, links)
		}
	}
	for _, path := range []string{"/actions/cancel?run=r1", "/actions/pause?pool=db"} {
		h.Go(h.base + path)
		if h.Status() != 401 {
			t.Errorf("%s: status %d: %s", path, h.Status(), h.Text("main"))
		}
		h.wantText("main", "You may not do this", "This address does not ask who you are", "tokens_file", "the command berth acts as your user")
		h.wantText("header", "You are anonymous")
		h.WantNoFindings()
	}
	h.Expect("status 401")
}
