package sidecar_test

import (
	"slices"
	"testing"

	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

func TestWorkersAreDrainedStoppedAndResumedOverHTTPAndThatIsRecorded(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.works(3, "gpu")
	list := func() (l api.List[api.Worker]) {
		decode(t, d.get("/v1/workers"), &l)
		return l
	}
	if l := list(); len(l.Items) != 1 || l.Items[0].State != "working" || l.Items[0].Concurrency != 3 || l.Items[0].Gone {
		t.Errorf("at first: %+v", l)
	}
	for _, step := range []struct{ verb, body, state string }{
		{"drain", `{"reason":"new disk"}`, "drained"}, {"drain", ``, "drained"}, {"stop", ``, "stopped"}, {"resume", `{}`, "working"},
	} {
		var w api.Worker
		a := d.post("/v1/workers/two/worker/"+step.verb, step.body)
		if decode(t, a, &w); a.status != 200 || w.State != step.state || w.Host != "two" || w.Instance != "worker" {
			t.Errorf("%s: %d %s", step.verb, a.status, a.body)
		}
		var hosts api.List[api.Host]
		if decode(t, d.get("/v1/hosts"), &hosts); !slices.ContainsFunc(hosts.Items, func(h api.Host) bool { return h.Host == "two" && h.State == step.state }) {
			t.Errorf("after %s hosts say %+v", step.verb, hosts.Items)
		}
		if l := list(); l.Items[0].State != step.state || (l.Items[0].ChangedBy == "") != (step.state == "working") {
			t.Errorf("after %s: %+v", step.verb, l)
		}
	}
	// Each request is recorded; the newest comes first.
	var actions inspect.ActionList
	decode(t, d.get("/v1/actions?limit=4"), &actions)
	var got []string
	for _, a := range actions.Items {
		if a.Who == "" || a.From == "" || a.Outcome != audit.Done || a.Object != "two/worker" {
			t.Errorf("%+v", a)
		}
		got = append(got, a.Action.Action+": "+a.Detail+": "+a.Before+" -> "+a.After)
	}
	want := []string{
		"resume-worker: : stopped -> working", "stop-worker: : drained -> stopped",
		"drain-worker: : drained -> drained", "drain-worker: new disk: working -> drained",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded are %q, want %q", got, want)
	}
	// The next page continues with what is older: the pool of the test.
	var older inspect.ActionList
	decode(t, d.get("/v1/actions?cursor="+actions.Next), &older)
	if len(older.Items) != 1 || older.Items[0].Action.Action != audit.SetPool || older.Next != "" {
		t.Errorf("the second page has %+v", older)
	}
	d.wantRefused(d.get("/v1/actions?cursor=x"), problem.Invalid, "cursor")
	d.wantRefused(d.get("/v1/actions?limit=0"), problem.Invalid, "limit")
	// One that is not there, and is not to work, is listed, and can be resumed.
	d.put(d.store.Keys.Worker("gone", "w"), `{"v":1,"mode":"drained","at":"2026-11-22T15:00:00Z","by":"ann"}`)
	if l := list(); len(l.Items) != 2 || l.Items[0].Host != "gone" || !l.Items[0].Gone || l.Items[0].State != "drained" {
		t.Errorf("with one that is gone: %+v", l)
	}
	d.post("/v1/workers/gone/w/resume", "")
	// A mode that can't be read is mended.
	d.put(d.store.Keys.Worker("gone", "w"), `{"v":1,"mode":"resting"}`)
	if a := d.post("/v1/workers/gone/w/resume", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	d.wantRefused(d.post("/v1/workers/gone/w/drain", ""), problem.NotFound)
	d.wantRefused(d.post("/v1/workers/two/other/stop", ""), problem.NotFound)
	d.wantRefused(d.post("/v1/workers/two/worker/drain", `{"reason":"two\nlines"}`), problem.Invalid, "reason")
	d.wantRefused(d.post("/v1/workers/two/worker/drain", `{"why":"x"}`), problem.Invalid, "why")
	if l := list(); len(l.Items) != 1 {
		t.Errorf("at last: %+v", l)
	}
}
