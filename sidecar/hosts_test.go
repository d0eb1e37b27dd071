package sidecar_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/api"
)

func TestHostsTellWhichQueuesTheyTakeFrom(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	p := lease.NewPresence(lease.PresenceConfig{
		Backend: embedtest.Client(t, d.etcd), Keys: d.store.Keys, Host: "two", Instance: "worker",
		Role: "worker", Capacity: 4, Queues: []string{"gpu", "default"},
	})
	go func() { done <- p.Run(ctx) }()
	defer func() {
		stop(stopped)
		if err := <-done; !errors.Is(err, stopped) {
			t.Error(err)
		}
	}()
	<-p.Ready()
	answer := d.get("/v1/hosts")
	var list api.List[api.Host]
	decode(t, answer, &list)
	got := map[string][]string{}
	for _, h := range list.Items {
		got[h.Host] = h.Queues
	}
	if diff := cmp.Diff(map[string][]string{"one": nil, "two": {"gpu", "default"}}, got); diff != "" {
		t.Error(diff)
	}
	if n := bytes.Count(answer.body, []byte(`"queues":`)); n != 1 { // one that takes none says nothing of them
		t.Errorf("%s", answer.body)
	}
	byClient, err := d.client.Hosts(t.Context())
	seen := cmpopts.IgnoreFields(api.Host{}, "LastSeen") // it goes on between the two reads
	if err != nil || !cmp.Equal(byClient, list.Items, seen) {
		t.Errorf("by the client: %+v, %v", byClient, err)
	}
	if !d.doc.checked["list-hosts 200 OK"] {
		t.Error("it was not checked against the document")
	}
}

func TestWorkersAreDrainedStoppedAndResumedOverHTTPAndThatIsRecorded(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.works(3, "gpu")
	list := func() (l api.List[api.Worker]) {
		decode(t, d.get("/v1/workers"), &l)
		return l
	}
	if l := list(); len(l.Items) != 1 || l.Items[0].Status != "working" || l.Items[0].Concurrency != 3 || l.Items[0].Gone {
		t.Errorf("at first: %+v", l)
	}
	for _, step := range []struct{ verb, body, state string }{
		{"drain", `{"reason":"new disk"}`, "drained"}, {"drain", ``, "drained"}, {"stop", ``, "stopped"}, {"resume", `{}`, "working"},
	} {
		var w api.Worker
		a := d.post("/v1/workers/two/worker/"+step.verb, step.body)
		if decode(t, a, &w); a.status != 200 || w.Status != step.state || w.Host != "two" || w.Instance != "worker" {
			t.Errorf("%s: %d %s", step.verb, a.status, a.body)
		}
		var hosts api.List[api.Host]
		if decode(t, d.get("/v1/hosts"), &hosts); !slices.ContainsFunc(hosts.Items, func(h api.Host) bool { return h.Host == "two" && h.Status == step.state }) {
			t.Errorf("after %s hosts say %+v", step.verb, hosts.Items)
		}
		if l := list(); l.Items[0].Status != step.state || (l.Items[0].ChangedBy == "") != (step.state == "working") {
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
	if l := list(); len(l.Items) != 2 || l.Items[0].Host != "gone" || !l.Items[0].Gone || l.Items[0].Status != "drained" {
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

// stand puts a candidate as a coordinator would, and returns its term.
func (d *dock) stand(c run.Candidate) int64 {
	d.t.Helper()
	lease, _, err := d.store.Backend.Grant(d.t.Context(), time.Hour)
	if err != nil {
		d.t.Fatal(err)
	}
	rev, err := store.Commit(d.t.Context(), d.store.Backend, nil, store.Put(d.store.Keys.Coordinator(lease), c.Encode(), lease))
	if err != nil {
		d.t.Fatal(err)
	}
	return rev
}

func TestTheCoordinatorIsShown(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	if got := d.get("/v1/coordinator"); string(got.body) != "{\"leader\":null,\"others\":[]}\n" {
		t.Errorf("nobody leads: %d %s", got.status, got.body)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := d.stand(run.Candidate{Candidate: election.Candidate{Host: "one", Instance: "coordinator", Version: "v1", Since: since}, Tick: &run.Tick{
		At: since, Took: 2 * time.Millisecond, Number: 7, Queued: 6, Progress: 5, Admitted: 4, Lost: 3, Blocked: 2,
	}})
	second := d.stand(run.Candidate{Candidate: election.Candidate{Host: "two", Instance: "coordinator", Since: since}})
	d.put(d.store.Keys.Coordinators()+"no lease", "{}")
	want := api.Coordinator{
		Leader: &api.Candidate{Host: "one", Instance: "coordinator", Version: "v1", Since: since, Term: first, Tick: &api.Tick{
			At: since, Took: api.Duration(2 * time.Millisecond), Number: 7, Queued: 6, InProgress: 5, Admitted: 4, Lost: 3, Blocked: 2,
		}},
		Others: []api.Candidate{{Host: "two", Instance: "coordinator", Since: since, Term: second}},
	}
	var got api.Coordinator
	decode(t, d.get("/v1/coordinator"), &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	byClient, err := d.client.Coordinator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, byClient); diff != "" {
		t.Errorf("by the client: %s", diff)
	}
	if !d.doc.checked["get-coordinator 200 OK"] {
		t.Error("it was not checked against the document")
	}
}
