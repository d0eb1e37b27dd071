package sidecar_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// fullDisk has the files of bindings go where nothing can be written, as on a disk that
// is full; root can write wherever there is free space. The function that it returns ends that.
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
	r.claim(api.ClaimRequest{ID: "timed", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(time.Minute)})
	r.claim(api.ClaimRequest{ID: "bound", Pools: api.Slots{"db": 1}, PID: first.pid()})
	if got := r.raw(request{method: "GET", path: "/metrics"}); !strings.Contains(string(got.body), "berth_state_writable 1\n") {
		t.Errorf("the metric says nothing of a directory that can be written")
	}
	free := fullDisk(t, r)

	got := r.raw(request{method: "POST", path: "/v1/claims/timed/renew", body: `{"ttl":"1h"}`})
	if p := got.problem(t); p.Status != http.StatusServiceUnavailable || p.Code != "state_unwritable" || !strings.Contains(p.Detail, "not a directory") {
		t.Errorf("%+v", p)
	}
	_, err := r.client.Renew(t.Context(), "bound", api.RenewRequest{PID: second.pid()})
	wantCode(t, err, problem.StateUnwritable)
	// What was in force is: the claims can be renewed, and what is claimed now is
	// recorded in etcd.
	if c, err := r.client.Renew(t.Context(), "timed", api.RenewRequest{}); err != nil || time.Duration(*c.TTL) != time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := r.client.Get(t.Context(), "bound"); err != nil || c.PID != first.pid() {
		t.Errorf("%+v, %v", c, err)
	}
	ready := func() (h api.Health) {
		got := r.raw(request{method: "GET", path: "/readyz"})
		if err := json.Unmarshal(got.body, &h); err != nil || got.status != http.StatusOK {
			t.Errorf("%d %s, %v", got.status, got.body, err)
		}
		h.Warnings = slices.DeleteFunc(h.Warnings, func(w string) bool { return strings.HasPrefix(w, "open: ") }) // as servers of tests are
		return h
	}
	if h := ready(); len(h.Warnings) != 1 || !strings.HasPrefix(h.Warnings[0], "state: ") {
		t.Errorf("%+v", h)
	}
	if got := r.raw(request{method: "GET", path: "/metrics"}); !strings.Contains(string(got.body), "berth_state_writable 0\n") {
		t.Errorf("the metric does not report it")
	}

	free()
	if h := ready(); len(h.Warnings) != 0 {
		t.Errorf("%+v", h)
	}
	if c, err := r.client.Renew(t.Context(), "bound", api.RenewRequest{PID: second.pid()}); err != nil || c.PID != second.pid() {
		t.Errorf("%+v, %v", c, err)
	}
	second.kill()
	eventually(t, "what the second held is free", func() bool { return r.claimed("db") == 1 })
	if !first.lives() {
		t.Error("the first was stopped")
	}
}

// A process that could not be stopped by the next sidecar is not taken on, unless its
// holder stops it itself.
func TestAClaimWhoseProcessCannotBeRecordedIsRefused(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	p := spawn(t, sleeper)
	free := fullDisk(t, r)
	_, err := r.client.Claim(t.Context(), api.ClaimRequest{ID: "bound", Pools: api.Slots{"db": 1}, PID: p.pid()})
	wantCode(t, err, problem.StateUnwritable)
	r.free("db")
	c := r.claim(api.ClaimRequest{ID: "own", Pools: api.Slots{"db": 1}, PID: p.pid(), OnlyKill: true})
	if err := r.client.ReleaseFence(t.Context(), "own", c.Fence); err != nil {
		t.Fatal(err)
	}
	free()
	r.claim(api.ClaimRequest{ID: "bound", Pools: api.Slots{"db": 1}, PID: p.pid()})
	if !p.lives() {
		t.Error("the process was stopped")
	}
}

// What is recorded of a renewal is left to the next sidecar.
func TestEachRenewalOfABoundClaimIsRecorded(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 1, leases(5*time.Second))
	p := spawn(t, sleeper)
	begun := lease.BootClock().Now()
	r.claim(api.ClaimRequest{ID: "bound", Pools: api.Slots{"db": 1}, PID: p.pid()})
	type recorded struct {
		Leases []struct{ Lease, Sent, TTL int64 }
	}
	read := func() (v recorded) {
		data, err := os.ReadFile(filepath.Join(r.cfg.Options.StateDir, "sidecar", "binds", "leases"))
		if err == nil {
			err = json.Unmarshal(data, &v)
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return v
	}
	eventually(t, "a renewal is recorded", func() bool {
		v := read()
		return len(v.Leases) == 1 && time.Duration(v.Leases[0].TTL) == 5*time.Second && time.Duration(v.Leases[0].Sent) > begun+time.Second
	})
	r.server.Stop(sidecar.Leave)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if v := read(); len(v.Leases) != 1 {
		t.Errorf("what is left to the next sidecar: %+v", v)
	}
}
