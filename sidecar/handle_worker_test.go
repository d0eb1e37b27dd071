package sidecar_test

import (
	"slices"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/ui"
)

func TestWorkersAreDrainedStoppedAndResumedOverHTTPAndThatIsRecorded(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.works(3, "gpu")
	list := func() (l sidecar.List[sidecar.Worker]) {
		decode(t, d.get("/v1/workers"), &l)
		return l
	}
	if l := list(); len(l.Items) != 1 || l.Items[0].State != "working" || l.Items[0].Concurrency != 3 || l.Items[0].Gone {
		t.Errorf("at first: %+v", l)
	}
	for _, step := range []struct{ verb, body, state string }{
		{"drain", `{"reason":"new disk"}`, "drained"}, {"drain", ``, "drained"}, {"stop", ``, "stopped"}, {"resume", `{}`, "working"},
	} {
		var w sidecar.Worker
		a := d.post("/v1/workers/two/worker/"+step.verb, step.body)
		if decode(t, a, &w); a.status != 200 || w.State != step.state || w.Host != "two" || w.Instance != "worker" {
			t.Errorf("%s: %d %s", step.verb, a.status, a.body)
		}
		var hosts sidecar.List[sidecar.Host]
		if decode(t, d.get("/v1/hosts"), &hosts); !slices.ContainsFunc(hosts.Items, func(h sidecar.Host) bool { return h.Host == "two" && h.State == step.state }) {
			t.Errorf("after %s hosts say %+v", step.verb, hosts.Items)
		}
		if l := list(); l.Items[0].State != step.state || (l.Items[0].ChangedBy == "") != (step.state == "working") {
			t.Errorf("after %s: %+v", step.verb, l)
		}
	}
	// Each change is recorded, once.
	all, err := store.ReadAll(t.Context(), d.store.Backend, d.store.Keys.Actions())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, kv := range all.KVs {
		a, err := ui.DecodeAction(d.store.Keys, kv)
		if err != nil || a.Who == "" || a.From == "" || a.Outcome != ui.Done || a.Object != "two/worker" {
			t.Errorf("%+v, %v", a, err)
		}
		got = append(got, a.Action.Action+": "+a.Detail+": "+a.Result)
	}
	want := []string{
		"worker-drain: new disk: its mode was working and is drained", "worker-stop: : its mode was drained and is stopped",
		"worker-resume: : its mode was stopped and is working",
	}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("recorded are %q, want %q", got, want)
	}
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
