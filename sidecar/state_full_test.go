package sidecar_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
)

// fullDisk has the files of bindings go where nothing can be written, as on a disk that
// is full; root writes wherever there is room. The function that it returns ends that.
func fullDisk(t *testing.T, r *running) (end func()) {
	t.Helper()
	dir := filepath.Join(r.cfg.Options.StateDir, "sidecar", "binds")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARenewalThatCannotBeKeptSaysSoAndLeavesTheClaimAsItWas(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 2)
	first, second := spawn(t, sleeper), spawn(t, sleeper)
	r.claim(sidecar.ClaimRequest{ID: "timed", Pools: sidecar.Slots{"db": 1}, TTL: sidecar.DurationOf(time.Minute)})
	r.claim(sidecar.ClaimRequest{ID: "bound", Pools: sidecar.Slots{"db": 1}, PID: first.pid()})
	if got := r.raw(request{method: "GET", path: "/metrics"}); !strings.Contains(string(got.body), "berth_state_writable 1\n") {
		t.Errorf("the metric says nothing of a directory that can be written")
	}
	room := fullDisk(t, r)

	got := r.raw(request{method: "POST", path: "/v1/claims/timed/renew", body: `{"ttl":"1h"}`})
	if p := got.problem(t); p.Status != http.StatusServiceUnavailable || p.Code != "state_unwritable" || !strings.Contains(p.Detail, "not a directory") {
		t.Errorf("%+v", p)
	}
	_, err := r.client.Renew(t.Context(), "bound", sidecar.RenewRequest{PID: second.pid()})
	wantCode(t, err, problem.StateUnwritable)
	// What was in force is: the claims can be renewed, and what is claimed now is
	// recorded in etcd.
	if c, err := r.client.Renew(t.Context(), "timed", sidecar.RenewRequest{}); err != nil || time.Duration(*c.TTL) != time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := r.client.Get(t.Context(), "bound"); err != nil || c.PID != first.pid() {
		t.Errorf("%+v, %v", c, err)
	}
	ready := func() (h sidecar.Health) {
		got := r.raw(request{method: "GET", path: "/readyz"})
		if err := json.Unmarshal(got.body, &h); err != nil || got.status != http.StatusOK {
			t.Errorf("%d %s, %v", got.status, got.body, err)
		}
		return h
	}
	if h := ready(); len(h.Warnings) != 1 || !strings.HasPrefix(h.Warnings[0], "state: ") {
		t.Errorf("%+v", h)
	}
	if got := r.raw(request{method: "GET", path: "/metrics"}); !strings.Contains(string(got.body), "berth_state_writable 0\n") {
		t.Errorf("the metric does not tell")
	}

	room()
	if h := ready(); len(h.Warnings) != 0 {
		t.Errorf("%+v", h)
	}
	if c, err := r.client.Renew(t.Context(), "bound", sidecar.RenewRequest{PID: second.pid()}); err != nil || c.PID != second.pid() {
		t.Errorf("%+v, %v", c, err)
	}
	second.kill()
	eventually(t, "what the second held is free", func() bool { return r.claimed("db") == 1 })
	if !first.lives() {
		t.Error("the first was stopped")
	}
}
