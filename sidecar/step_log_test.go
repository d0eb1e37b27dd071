package sidecar_test

import (
	"net/http"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// worked is a step that workers run.
func worked(s *step.Spec) { s.External, s.Command = false, []string{"true"} }

// shows has a worker show what an attempt has written to its followers.
func (d *dock) shows(t *step.Taken, o step.Shown) {
	watch := d.store.Backend.Watch(d.t.Context(), store.Prefix(d.store.Keys.Follower(t.StepID)), 1)
	go func() {
		for m := range watch.Messages() {
			for _, ev := range m.Events {
				if ev.Type == mvccpb.Event_PUT {
					_ = d.steps().Show(d.t.Context(), t, o)
				}
			}
		}
	}()
}

// about are the headers that say what an output is of.
func about(h http.Header) [4]string {
	return [4]string{h.Get("Berth-Output-Attempt"), h.Get("Berth-Output-Left-Out"), h.Get("Berth-Output-Running"), h.Get("Berth-Output-File")}
}

func TestTheOutputOfWhatRunsIsReadAndOfWhatHasEnded(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 2, worked)}})
	id := store.StepID{Run: "a", Step: "x"}
	taken := d.takes(id)
	const path = "/v1/runs/a/steps/x/0/log"
	// No worker is there that would tell.
	d.wantRefused(d.get(path+"?wait=0s"), problem.NotFound)
	d.wantRefused(d.get(path+"?wait=10ms"), problem.NotFound)
	d.shows(taken, step.Shown{Text: []byte("half\xff\n"), Before: 7, File: "/state dir/é"})
	a := d.get(path + "?wait=10s")
	if want := [4]string{"1", "7", "true", "file://two/state%20dir/%C3%A9"}; a.status != 200 || string(a.body) != "half\xff\n" || about(a.header) != want {
		t.Errorf("%d %q %q", a.status, a.body, about(a.header))
	}
	d.ends(taken, step.Outcome{Status: step.Succeeded, Output: []byte("whole\n"), Before: 1 << 33, File: "/kept"})
	a = d.get(path)
	if want := [4]string{"1", "8589934592", "false", "file://two/kept"}; a.status != 200 || string(a.body) != "whole\n" || about(a.header) != want {
		t.Errorf("%d %q %q", a.status, a.body, about(a.header))
	}
	d.ends(d.takes(store.StepID{Run: "a", Step: "x", Index: 1}), step.Outcome{Status: step.Succeeded, Output: []byte("short\n")})
	a = d.get("/v1/runs/a/steps/x/1/log")
	if want := [4]string{"1", "0", "false", ""}; string(a.body) != "short\n" || about(a.header) != want {
		t.Errorf("%q %q", a.body, about(a.header))
	}
	for wait, want := range map[string]problem.Code{"?wait=11s": problem.Invalid, "?wait=-1s": problem.Invalid, "?wait=soon": problem.Invalid} {
		d.wantRefused(d.get(path+wait), want, "wait")
	}
}

func TestAClientReadsTheOutputOfAnAttempt(t *testing.T) {
	t.Parallel()
	d := led(t, 1)
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 1, worked)}})
	id := store.StepID{Run: "a", Step: "x"}
	taken := d.takes(id)
	if out, err := d.client.StepOutput(t.Context(), "a", "x", 0, 0); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("%+v, %v", out, err)
	}
	d.shows(taken, step.Shown{Text: []byte("half\n"), File: "/state dir/é"})
	out, err := d.client.StepOutput(t.Context(), "a", "x", 0, 10*time.Second)
	if err != nil || string(out.Text) != "half\n" || !out.Running || out.Attempt != 1 || out.LeftOut != 0 || out.Host != "two" || out.File != "/state dir/é" {
		t.Errorf("%+v, %v", out, err)
	}
	d.ends(taken, step.Outcome{Status: step.Failed, Output: []byte("whole\n"), Before: 5})
	out, err = d.client.StepOutput(t.Context(), "a", "x", 0, 0)
	if err != nil || string(out.Text) != "whole\n" || out.Running || out.LeftOut != 5 || out.Host != "" || out.File != "" {
		t.Errorf("%+v, %v", out, err)
	}
}
