package sidecar_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

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

func TestItIsToldWhoCoordinates(t *testing.T) {
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
