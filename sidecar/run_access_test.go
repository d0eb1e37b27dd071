package sidecar_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// bearers gives each name a token with roles. Its secret is that of [running.bearer].
func bearers(roles map[string]string) func(*sidecar.Config) {
	var ts access.Tokens
	for name, r := range roles {
		if err := ts.Add(accesstest.Tokens(name, secretOf(name), strings.Fields(r)...)().List[0], time.Now()); err != nil {
			panic(err)
		}
	}
	return func(c *sidecar.Config) {
		c.Policy, c.Tokens = access.Policy{}, func() access.Tokens { return ts }
	}
}

func secretOf(name string) string { return "the secret of " + name }

// bearer returns a client over TCP with a token.
func (r *running) bearer(name string) *client.Client {
	r.t.Helper()
	c, err := client.Dial(r.base, secretOf(name))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// postAs sends a body with a token.
func (r *running) postAs(name, path, body string) answer {
	r.t.Helper()
	return r.raw(request{method: http.MethodPost, path: path, body: body, change: func(q *http.Request) {
		q.Header.Set("Authorization", "Bearer "+secretOf(name))
	}})
}

// runs returns how many runs etcd has.
func (d *dock) runs() int {
	d.t.Helper()
	all, err := d.store.All(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return len(all.Runs)
}

func TestASubmitterNeedsRolesForQueuesCommandsAndPools(t *testing.T) {
	d := newDock(t, bearers(map[string]string{
		"view": "view claim", "plain": "submit claim", "gpu": "submit:gpu claim", "etl": "command:etl submit:gpu claim:etl-*", "all": "command claim",
	}))
	d.readDocument()
	d.pool("db", 4)
	d.pool("etl-1", 4)
	step := func(fields string) string { return `{"steps":[{"name":"a",` + fields + `}]}` }
	for _, c := range []struct{ who, body, missing string }{
		{"view", ``, "submit"},
		{"view", step(`"shell":"id"`), "submit"},
		{"plain", ``, ""},
		{"plain", `{"pools":{"db":1}}`, ""},
		{"plain", step(`"external":true`), ""},
		{"plain", step(`"external":true,"pools":{"db":1}`), ""},
		{"plain", step(`"command":["id"]`), "command:default"},
		{"plain", step(`"shell":"id","queue":"etl"`), "command:etl"},
		{"gpu", ``, ""},
		{"gpu", step(`"external":true`), "submit:default"},
		{"gpu", step(`"external":true,"queue":"gpu"`), ""},
		{"etl", step(`"command":["id"],"queue":"etl"`), ""},
		{"etl", step(`"command":["id"],"queue":"gpu"`), "command:gpu"},
		{"etl", `{"steps":[{"name":"a","shell":"id","queue":"etl"},{"name":"b","shell":"id"}]}`, "command:default"},
		{"etl", step(`"shell":"id","queue":"etl","pools":{"etl-1":1}`), ""},
		{"etl", step(`"shell":"id","queue":"etl","pools":{"db":1,"etl-1":1}`), "claim:db"},
		{"etl", `{"pools":{"db":1}}`, "claim:db"},
		{"etl", step(`"shell":"id","queue":"etl","task":{"name":"load","limit":2}`), "claim:task.load"},
		{"all", step(`"shell":"id","queue":"etl","task":{"name":"load","limit":2}`), ""},
	} {
		before := d.runs()
		a := d.postAs(c.who, "/v1/runs", c.body)
		if c.missing == "" {
			var r api.Run
			if decode(t, a, &r); r.SubmittedBy != "token:"+c.who || d.runs() != before+1 {
				t.Errorf("%s submits %s: %+v", c.who, c.body, r)
			}
			continue
		}
		d.wantRefused(a, problem.Forbidden)
		if !strings.Contains(string(a.body), "the role "+c.missing+",") || !strings.Contains(string(a.body), "token:"+c.who) || d.runs() != before {
			t.Errorf("%s submits %s: %s", c.who, c.body, a.body)
		}
	}
	d.wantRefused(d.postAs("all", "/v1/runs", `{"submitted_by":"user:root"}`), problem.Invalid, "submitted_by")
}

// A limit that a step declares creates the pool of its task.
func TestWhoMaySubmitNoCommandsCreatesNoPoolsOfTasks(t *testing.T) {
	d := newDock(t, bearers(map[string]string{"plain": "submit claim", "gpu": "submit command:gpu claim"}))
	external := func(more string) string {
		return `{"steps":[{"name":"a","external":true,"task":{"name":"load","limit":2}` + more + `}]}`
	}
	for who, body := range map[string]string{
		"plain": external(""),
		"gpu":   `{"steps":[{"name":"b","external":true,"queue":"gpu"},{"name":"a","external":true,"task":{"name":"load","limit":2}}]}`,
	} {
		a := d.postAs(who, "/v1/runs", body)
		d.wantRefused(a, problem.Forbidden, "steps.a.task.limit")
		for _, want := range []string{"the role command:default", "task.load", "leave the limit out", "berth pools set task.load 2"} {
			if !strings.Contains(string(a.body), want) {
				t.Errorf("%s: no %q in %s", who, want, a.body)
			}
		}
	}
	if _, err := d.client.Pool(t.Context(), "task.load"); problem.CodeOf(err) != problem.PoolNotFound || d.runs() > 0 {
		t.Errorf("the pool: %v; %d runs are stored", err, d.runs())
	}
	var r api.Run
	decode(t, d.postAs("plain", "/v1/runs", `{"steps":[{"name":"a","external":true,"task":"load"}]}`), &r)
	decode(t, d.postAs("gpu", "/v1/runs", external(`,"queue":"gpu"`)), &r)
	if p, err := d.client.Pool(t.Context(), "task.load"); err != nil || p.Limit != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// A caller on the loopback address cannot have the workers run commands.
func TestCommandsOfAnonymousCallersAreRefused(t *testing.T) {
	d := newDock(t, func(c *sidecar.Config) { c.Policy = access.Policy{} })
	a := d.post("/v1/runs", `{"steps":[{"name":"a","command":["id"]}]}`)
	d.wantRefused(a, problem.Unauthorized)
	if d.runs() != 0 {
		t.Error("the run was stored")
	}
	if got := d.get("/v1/runs"); got.status != http.StatusOK {
		t.Errorf("it may view: %d %s", got.status, got.body)
	}
	rules, err := access.ParsePolicy([]string{"anonymous view claim submit"})
	if err != nil {
		t.Fatal(err)
	}
	d = newDock(t, func(c *sidecar.Config) { c.Policy = rules })
	d.wantRefused(d.post("/v1/runs", `{"steps":[{"name":"a","command":["id"]}]}`), problem.Unauthorized)
	var r api.Run
	if decode(t, d.post("/v1/runs", `{"id":"a"}`), &r); r.SubmittedBy != "anonymous" {
		t.Errorf("%+v", r)
	}
	// Anonymous callers own nothing: they cannot be distinguished.
	d.wantRefused(d.post("/v1/runs/a/cancel", ``), problem.Unauthorized)
}

func TestARunBelongsToItsSubmitter(t *testing.T) {
	d := newDock(t, bearers(map[string]string{
		"alice": "submit claim", "bob": "submit claim", "ci": "execute", "view": "view", "ops": "operate", "boss": "admin", "part": "operate:db execute:gpu",
	}))
	alice := d.bearer("alice")
	ctx := t.Context()
	const nightly = `{"id":"nightly","owner":"bob","steps":[{"name":"x","external":true}]}`
	var r api.Run
	if decode(t, d.postAs("alice", "/v1/runs", nightly), &r); r.SubmittedBy != "token:alice" || r.Owner != "bob" {
		t.Errorf("%+v", r)
	}
	d.wantRefused(d.postAs("bob", "/v1/runs", nightly), problem.IDInUse)
	for _, name := range []string{"alice", "boss"} {
		if decode(t, d.postAs(name, "/v1/runs", nightly), &r); r.SubmittedBy != "token:alice" {
			t.Errorf("submitted again by %s: %+v", name, r)
		}
	}
	d.wantRefused(d.postAs("boss", "/v1/runs", `{"id":"nightly"}`), problem.IDInUse)
	d.submit(api.RunRequest{ID: "plain"})
	if _, err := alice.SubmitRun(ctx, api.RunRequest{ID: "mine"}); err != nil {
		t.Fatal(err)
	}

	type call = func(c *client.Client, id string) error
	reads := map[string]call{
		"get":       func(c *client.Client, id string) error { _, err := c.Run(ctx, id); return err },
		"why":       func(c *client.Client, id string) error { _, err := c.WhyRun(ctx, id); return err },
		"events":    func(c *client.Client, id string) error { _, err := c.RunEvents(ctx, id); return err },
		"steps":     func(c *client.Client, id string) error { _, _, err := c.Steps(ctx, id); return err },
		"instances": func(c *client.Client, id string) error { _, _, err := c.StepInstances(ctx, id, "x"); return err },
		"instance":  func(c *client.Client, id string) error { _, err := c.StepInstance(ctx, id, "x", 0); return err },
		"log": func(c *client.Client, id string) error {
			if _, err := c.StepLog(ctx, id, "x", 0); problem.CodeOf(err) != problem.NotFound {
				return err
			}
			return nil
		},
	}
	changes := map[string]call{
		"cancel":      func(c *client.Client, id string) error { _, err := c.CancelRun(ctx, id, api.RunCancel{}); return err },
		"retry":       func(c *client.Client, id string) error { _, err := c.RetryRun(ctx, id, api.RunRetry{}); return err },
		"cancel step": func(c *client.Client, id string) error { _, err := c.CancelStep(ctx, id, "x", 0); return err },
		"retry step": func(c *client.Client, id string) error {
			_, err := c.RetryStep(ctx, id, "x", 0, api.StepRetry{})
			return err
		},
	}
	starts := map[string]call{
		"start": func(c *client.Client, id string) error {
			_, err := c.StartRun(ctx, id, api.RunStart{})
			return err
		},
	}
	for _, c := range []struct {
		who    string
		calls  map[string]call
		may    bool
		status int
	}{
		{"bob", reads, false, 403}, {"ci", reads, false, 403}, {"alice", reads, true, 0}, {"view", reads, true, 0}, {"ops", reads, true, 0},
		{"bob", changes, false, 403}, {"ci", changes, false, 403}, {"view", changes, false, 403}, {"part", changes, false, 403},
		{"bob", starts, false, 403}, {"view", starts, false, 403}, {"part", starts, false, 403}, {"ops", starts, false, 403},
		{"alice", starts, true, 0}, {"ci", starts, true, 0},
		{"alice", changes, true, 0}, {"ops", changes, true, 0}, {"boss", changes, true, 0},
	} {
		for what, f := range c.calls {
			err := f(d.bearer(c.who), "nightly")
			if refused := problem.CodeOf(err) == problem.Forbidden; refused == c.may {
				t.Errorf("%s by %s: %v", what, c.who, err)
			}
		}
	}
	for what, f := range reads {
		if err := f(d.bearer("bob"), "unknown"); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s of an unknown run: %v", what, err)
		}
	}
	if _, err := d.bearer("view").CancelRun(ctx, "unknown", api.RunCancel{}); problem.CodeOf(err) != problem.RunNotFound {
		t.Errorf("a viewer gets that there is no run: %v", err)
	}
	if _, err := alice.CancelRun(ctx, "plain", api.RunCancel{}); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the run of a user of the socket: %v", err)
	}
	list, err := d.client.Run(ctx, "mine")
	if err != nil || list.SubmittedBy != "token:alice" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestAnAttemptBelongsToWhoTookIt(t *testing.T) {
	d := led(t, 4, bearers(map[string]string{
		"one": "execute:far claim", "two": "execute", "near": "execute:near", "ops": "operate", "view": "view", "none": "claim",
	}))
	ctx := t.Context()
	d.fanned("a", fan("x", 2, needs(map[string]int{"db": 1}), func(s *step.Spec) { s.Queue = "far" }))
	d.gated("solo", 1)
	eventually(t, "solo is admitted", func() bool {
		r, err := d.client.Run(ctx, "solo")
		return err == nil && r.Status == "not_started"
	})
	for _, name := range []string{"near", "view", "none", "ops"} {
		if _, err := d.bearer(name).ReadySteps(ctx, "far", 0); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s lists the queue: %v", name, err)
		}
		if _, err := d.bearer(name).TakeStep(ctx, "a", "x", 0, api.StepTake{}); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s takes: %v", name, err)
		}
	}
	if ready, err := d.bearer("one").ReadySteps(ctx, "far", 0); err != nil || len(ready) != 2 {
		t.Errorf("%v, %v", ready, err)
	}
	taken, err := d.bearer("one").TakeStep(ctx, "a", "x", 0, api.StepTake{Executor: "me"})
	if err != nil || taken.Executor.By != "token:one" {
		t.Fatalf("%+v, %v", taken, err)
	}
	if _, err := d.bearer("two").TakeStep(ctx, "a", "x", 0, api.StepTake{Executor: "me"}); problem.CodeOf(err) != problem.StepTaken {
		t.Errorf("another identity with the same name of an executor: %v", err)
	}
	if _, err := d.bearer("one").StartRun(ctx, "solo", api.RunStart{}); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a run has no queue, and needs execute for all: %v", err)
	}
	started, err := d.bearer("two").StartRun(ctx, "solo", api.RunStart{Executor: "me"})
	if err != nil || started.Executor.By != "token:two" {
		t.Fatalf("%+v, %v", started, err)
	}
	p, err := d.client.Pool(ctx, "db")
	if err != nil {
		t.Fatal(err)
	}
	var holders []string
	for _, h := range p.Holders {
		holders = append(holders, h.RunID+" "+h.ClaimedBy)
	}
	slices.Sort(holders)
	if strings.Join(holders, ", ") != "a token:one, solo token:two" {
		t.Errorf("slots are held by %q", holders)
	}
	if _, err := d.bearer("one").StepInstance(ctx, "a", "x", 0); err != nil {
		t.Errorf("who took it reads it: %v", err)
	}
	if _, err := d.bearer("one").StepInstance(ctx, "a", "x", 1); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("and no other: %v", err)
	}

	for range 2 { // before a restart of the sidecar, and after it
		for _, name := range []string{"two", "near", "view", "none"} {
			_, err := d.bearer(name).RenewStep(ctx, "a", "x", 0, taken.Fence)
			wantCode(t, err, problem.Forbidden)
			_, err = d.bearer(name).FinishStep(ctx, "a", "x", 0, api.StepFinish{Fence: taken.Fence, Status: "failed"})
			wantCode(t, err, problem.Forbidden)
		}
		for _, name := range []string{"one", "near", "view", "none"} {
			_, err := d.bearer(name).Heartbeat(ctx, "solo", started.Fence)
			wantCode(t, err, problem.Forbidden)
			_, err = d.bearer(name).FinishRun(ctx, "solo", api.RunFinish{Fence: started.Fence, Status: "failed"})
			wantCode(t, err, problem.Forbidden)
		}
		// Only who may know of the run learns that an attempt is not the current one.
		_, err := d.bearer("none").Heartbeat(ctx, "solo", started.Fence-1)
		wantCode(t, err, problem.Forbidden)
		_, err = d.bearer("one").RenewStep(ctx, "a", "x", 0, taken.Fence-1)
		wantCode(t, err, problem.StepLost)
		for _, name := range []string{"one", "ops"} {
			if v, err := d.bearer(name).RenewStep(ctx, "a", "x", 0, taken.Fence); err != nil || v.ValidFor == 0 {
				t.Errorf("%s renews: %+v, %v", name, v, err)
			}
		}
		for _, name := range []string{"two", "ops"} {
			if v, err := d.bearer(name).Heartbeat(ctx, "solo", started.Fence); err != nil || v.ValidFor == 0 {
				t.Errorf("%s sends a heartbeat: %+v, %v", name, v, err)
			}
		}
		d.running = d.restarted()
	}
	again, err := d.bearer("one").TakeStep(ctx, "a", "x", 0, api.StepTake{Executor: "me"})
	if err != nil || again.Fence != taken.Fence {
		t.Errorf("who took it asks again: %+v, %v", again, err)
	}
	for range 2 { // an answer may be lost
		if _, err := d.bearer("one").FinishStep(ctx, "a", "x", 0, api.StepFinish{Fence: taken.Fence, Status: "succeeded"}); err != nil {
			t.Error(err)
		}
		if _, err := d.bearer("two").FinishRun(ctx, "solo", api.RunFinish{Fence: started.Fence, Status: "succeeded"}); err != nil {
			t.Error(err)
		}
	}
	second, err := d.bearer("one").TakeStep(ctx, "a", "x", 1, api.StepTake{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.bearer("ops").FinishStep(ctx, "a", "x", 1, api.StepFinish{Fence: second.Fence, Status: "succeeded"}); err != nil {
		t.Errorf("an operator finishes: %v", err)
	}
	i, err := d.steps().Get(ctx, store.StepID{Run: "a", Step: "x", Index: 1})
	if err != nil || i.Executor.By != "token:one" {
		t.Errorf("%+v, %v", i, err)
	}
}
