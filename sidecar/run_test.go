package sidecar_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

func TestARunGoesItsWayOverHTTP(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	const body = `{"id":"nightly","name":"Nightly load","tags":{"env":"prod","team":"data & <ops>, \"é\""},"labels":{"a":"b"},"owner":"ann","priority":-3,"retries":2}`
	var r api.Run
	got := d.post("/v1/runs", body)
	if decode(t, got, &r); got.status != http.StatusCreated || r.Status != "queued" || r.QueuedAt.IsZero() ||
		r.ID != "nightly" || r.Name != "Nightly load" || r.Tags["team"] != `data & <ops>, "é"` || r.Labels["a"] != "b" ||
		r.Owner != "ann" || r.Priority != -3 || r.Retries != 2 || r.Fence != 0 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := d.post("/v1/runs", body); got.status != http.StatusOK {
		t.Errorf("submitted again: %d %s", got.status, got.body)
	}
	d.wantRefused(d.post("/v1/runs", `{"id":"nightly"}`), problem.IDInUse)
	d.wantRefused(d.post("/v1/runs/nightly/start", ``), problem.RunNotAdmitted)

	d.admit("nightly")
	var s api.StartedRun
	got = d.post("/v1/runs/nightly/start", `{"executor":"ci-7","ttl":"30s"}`)
	if decode(t, got, &s); got.status != http.StatusOK || s.Status != "running" || s.Attempt != 1 || s.Fence == 0 || s.StartedAt.IsZero() ||
		*s.Executor != (api.Executor{Host: "one", Instance: "sidecar", Name: "ci-7", By: "anonymous"}) ||
		s.ValidFor < api.Duration(20*time.Second) || s.ValidFor > api.Duration(31*time.Second) || s.ValidUntil.IsZero() || s.Grace != api.Duration(5*time.Second) || time.Duration(s.TTL) != 30*time.Second {
		t.Errorf("%d %s", got.status, got.body)
	}
	if !d.alive("one", "nightly") {
		t.Error("its executor is not seen")
	}
	var again api.StartedRun
	if decode(t, d.post("/v1/runs/nightly/start", `{"executor":"ci-7","ttl":"0s"}`), &again); again.Fence != s.Fence || again.TTL != 0 || again.ValidFor <= api.Duration(31*time.Second) {
		t.Errorf("started again: %+v", again)
	}
	d.wantRefused(d.post("/v1/runs/nightly/start", `{"executor":"ci-8"}`), problem.RunTaken)
	d.wantRefused(d.post("/v1/runs/nightly/start", ``), problem.RunTaken)
	fence := fmt.Sprintf(`{"fence":%d}`, s.Fence)
	if decode(t, d.post("/v1/runs/nightly/heartbeat", fence), &again); again.Fence != s.Fence || again.ValidFor < api.Duration(31*time.Second) || again.Name != "Nightly load" {
		t.Errorf("a heartbeat: %+v", again)
	}
	if decode(t, d.get("/v1/runs/nightly"), &r); r.Fence != s.Fence || r.Attempt != 1 || r.AdmittedAt.IsZero() {
		t.Errorf("read again: %+v", r)
	}

	finish := fmt.Sprintf(`{"fence":%d,"status":"failed","error":"no\u0007 luck\nat all"}`, s.Fence)
	got, r = d.post("/v1/runs/nightly/finish", finish), api.Run{}
	if decode(t, got, &r); r.Status != "failed" || r.Error != "no  luck\nat all" || r.EndedAt.IsZero() || r.Fence != 0 {
		t.Errorf("%s", got.body)
	}
	if got := d.post("/v1/runs/nightly/finish", finish); got.status != http.StatusOK {
		t.Errorf("finished again: %s", got.body)
	}
	if d.alive("one", "nightly") {
		t.Error("its executor is still seen")
	}
	d.wantRefused(d.post("/v1/runs/nightly/finish", strings.Replace(finish, "failed", "succeeded", 1)), problem.RunEnded)
	d.wantRefused(d.post("/v1/runs/nightly/heartbeat", fence), problem.RunEnded)
	d.wantRefused(d.post("/v1/runs/nightly/cancel", ``), problem.RunEnded)
	d.wantRefused(d.post("/v1/runs/nightly/start", ``), problem.RunEnded)

	var events api.List[api.RunEvent]
	decode(t, d.get("/v1/runs/nightly/events"), &events)
	var types []string
	for _, e := range events.Items {
		types = append(types, e.Type)
		if e.By != "one/sidecar" || e.At.IsZero() || e.Revision == 0 {
			t.Errorf("%+v", e)
		}
	}
	if want := []string{"RunQueued", "RunStarted", "RunFailed"}; !slices.Equal(types, want) { // admitted by hand
		t.Errorf("events %v", types)
	}
	var why api.RunWhy
	if decode(t, d.get("/v1/runs/nightly/why"), &why); why.Position != 0 || !strings.Contains(why.Reason, "failed") {
		t.Errorf("why: %+v", why)
	}
}

func TestARunThatIsCanceledTellsItsExecutorWithTheNextHeartbeat(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	two := d.another("two")
	s := d.started("job", api.RunStart{TTL: api.DurationOf(0)})
	d.wantRefused(d.post("/v1/runs/job/cancel", `{"queued_only":true}`), problem.RunNotQueued)
	got := two.raw(request{method: "POST", path: "/v1/runs/job/cancel", body: `{"reason":"not today"}`})
	var r api.Run
	if decode(t, got, &r); r.Status != "canceled" || r.Error != "not today" {
		t.Errorf("%s", got.body)
	}
	_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunEnded)
	if err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("%v does not say why", err)
	}
	_, err = d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"})
	wantCode(t, err, problem.RunEnded)
	if again, err := d.client.CancelRun(t.Context(), "job", api.RunCancel{}); err != nil || again.Error != "not today" {
		t.Errorf("canceled again: %+v, %v", again, err)
	}
	d.submit(api.RunRequest{ID: "queued"})
	if r, err := d.client.CancelRun(t.Context(), "queued", api.RunCancel{QueuedOnly: true}); err != nil || r.Status != "canceled" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestARunBelongsToTheSidecarThatItWasStartedThrough(t *testing.T) {
	d := newDock(t)
	two := d.another("two")
	s := d.started("job", api.RunStart{Executor: "e"})
	_, err := two.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.NotHolder)
	_, err = two.client.StartRun(t.Context(), "job", api.RunStart{Executor: "e"})
	wantCode(t, err, problem.RunTaken)
	for _, c := range []*client.Client{d.client, two.client} {
		_, err = c.Heartbeat(t.Context(), "job", s.Fence-1)
		wantCode(t, err, problem.RunLost)
		_, err = c.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence + 1, Status: "succeeded"})
		wantCode(t, err, problem.RunLost)
	}
	// Any process that has the fence may report how it ended.
	if r, err := two.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil || r.Status != "succeeded" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunEnded)
}

func TestARunThatAnotherExecutorHasIsLostToItsExecutor(t *testing.T) {
	d := newDock(t)
	s := d.started("job", api.RunStart{Executor: "e"})
	if _, err := store.Commit(t.Context(), d.store.Backend, nil, store.Delete(d.store.Keys.ActiveRun("one", "job"))); err != nil {
		t.Fatal(err)
	}
	d.lose("job")
	_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	d.admit("job")
	next, err := d.client.StartRun(t.Context(), "job", api.RunStart{Executor: "e"})
	if err != nil || next.Fence <= s.Fence || next.Attempt != 2 || next.Lost != 1 {
		t.Fatalf("%+v, %v", next, err)
	}
	_, err = d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	_, err = d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"})
	wantCode(t, err, problem.RunLost)
	if _, err := d.client.Heartbeat(t.Context(), "job", next.Fence); err != nil {
		t.Error(err)
	}
}

func TestRunsAreListedInPagesAndFiltered(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	odd := "a=b,c&d é%"
	for i, p := range []int{0, 5, -2, 5, 0, 0} {
		tags := map[string]string{"n": fmt.Sprint(i % 2)}
		if i == 3 {
			tags[odd[:1]+" ,é"] = odd
		}
		d.submit(api.RunRequest{ID: fmt.Sprintf("r%d", 9-i), Priority: p, Tags: tags})
	}
	d.admit("r4")
	d.put(d.store.Keys.Run("bad"), `{"v":1,"status":"walking"}`)
	d.put(d.store.Keys.Run("worse"), `no JSON`)

	list := func(query string) (ids []string) {
		t.Helper()
		unreadable := map[string]string{}
		for after := ""; ; {
			var page api.RunList
			decode(t, d.get("/v1/runs?"+query+after), &page)
			for _, r := range page.Items {
				ids = append(ids, r.ID)
			}
			for _, u := range page.Unreadable {
				unreadable[u.Key] = u.Reason
			}
			if page.Next == "" {
				if len(unreadable) != 2 || unreadable[d.store.Keys.Run("bad")] == "" || unreadable[d.store.Keys.Run("worse")] == "" {
					t.Errorf("unreadable are %+v", unreadable)
				}
				return ids
			}
			after = "&cursor=" + page.Next
		}
	}
	for query, want := range map[string][]string{
		"":                          {"r4", "r5", "r6", "r7", "r8", "r9"},
		"status=queued":             {"r8", "r6", "r9", "r5", "r7"},
		"status=queued&tag=n%3D0":   {"r9", "r5", "r7"},
		"status=queued,not_started": {"r4", "r5", "r6", "r7", "r8", "r9"},
		"status=not_started":        {"r4"},
		"status=running":            nil,
		"tag=n=1":                   {"r4", "r6", "r8"},
		"tag=n=1&tag=a%20%2C%C3%A9%3Da%3Db%2Cc%26d%20%C3%A9%25": {"r6"},
		"tag=n=1&tag=n=1": {"r4", "r6", "r8"},
		"tag=n=2":         nil,
	} {
		for _, limit := range []int{1, 2, 100} {
			if got := list(fmt.Sprintf("%s&limit=%d", query, limit)); !slices.Equal(got, want) {
				t.Errorf("%q in pages of %d: %v, want %v", query, limit, got, want)
			}
		}
	}
	runs, bad, err := d.client.Runs(t.Context(), client.RunFilter{Statuses: []string{"queued"}, Tags: map[string]string{"a ,é": odd}})
	if err != nil || len(runs) != 1 || runs[0].ID != "r6" || len(bad) != 2 {
		t.Errorf("%+v, %+v, %v", runs, bad, err)
	}
	d.wantRefused(d.get("/v1/runs/worse"), problem.CorruptValue)
	_, err = d.client.CancelRun(t.Context(), "worse", api.RunCancel{})
	wantCode(t, err, problem.CorruptValue)
}

func TestWhyARunWaits(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "first"})
	d.admit("first")
	d.submit(api.RunRequest{ID: "second"})
	d.submit(api.RunRequest{ID: "third", Priority: 1})
	var why api.RunWhy
	decode(t, d.get("/v1/runs/second/why"), &why)
	if why.Position != 2 || why.Waiting != 2 || !strings.Contains(why.Reason, "coordinator") {
		t.Errorf("%+v", why)
	}
	d.change("second", func(r run.Record) run.Record { return r.BlockedBy(run.RunLimitBlock(1, 1)) })
	decode(t, d.get("/v1/runs/second/why"), &why)
	if why.Reason != "global run limit (1/1)" || why.Run.BlockReason != why.Reason || why.Run.BlockKind != "run_limit" ||
		len(why.InTheWay) != 1 || why.InTheWay[0].ID != "first" || why.Run.QueuedAt.IsZero() {
		t.Errorf("%+v", why)
	}
	if why, err := d.client.WhyRun(t.Context(), "first"); err != nil || why.Position != 0 || !strings.Contains(why.Reason, "executor") {
		t.Errorf("%+v, %v", why, err)
	}
	_, err := d.client.WhyRun(t.Context(), "nobody")
	wantCode(t, err, problem.RunNotFound)
	_, err = d.client.RunEvents(t.Context(), "nobody")
	wantCode(t, err, problem.RunNotFound)
}

func TestWhatHappensToClaimsOfARunIsAmongItsEvents(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.pool("db", 1)
	d.submit(api.RunRequest{ID: "job"})
	d.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}, RunID: "job", StepKey: "load"})
	if err := d.client.Release(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	want := []string{"RunQueued", "StepSlotClaimed load", "StepSlotReleased load"}
	eventually(t, "they are written", func() bool {
		var events api.List[api.RunEvent]
		decode(t, d.get("/v1/runs/job/events"), &events)
		var got []string
		for _, e := range events.Items {
			got = append(got, strings.TrimSpace(e.Type+" "+e.Metadata["step"]))
		}
		return slices.Equal(got, want)
	})
}
