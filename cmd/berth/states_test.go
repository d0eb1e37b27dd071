//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/text"
)

// countdown is a time from now, whose number differs between two readings.
var countdown = regexp.MustCompile(`\(in [0-9a-z. ]+\)`)

// shows reports whether text contains part, which is from [states.records]: both without countdowns.
func shows(text, part string) bool {
	return strings.Contains(countdown.ReplaceAllString(text, "(in …)"), part)
}

// The CLI, the HTTP API and the pages show the same facts, numbers and words of everything
// in every state.
func TestEveryStateReadsAlike(t *testing.T) {
	s := newStates(t)
	deadline := time.Now().Add(scriptDeadline)
	for {
		l := s.records("claims", s.get("/v1/claims", "application/json"), "id")
		present := s.records("hosts", s.get("/v1/hosts", "application/json"), "host/instance")
		for _, host := range []string{"idle", "small", "drained", "stopped", "gone"} {
			if present[host+"/worker"] == nil {
				l = nil
			}
		}
		if l["waits-full"] != nil && l["waits-paused"] != nil && s.elements("/pools")["pool-unreadable"] != "" &&
			s.records("pools", s.get("/v1/pools", "application/json"), "name")["unreadable"].text("status") == "unreadable" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the states do not come about")
		}
		<-time.After(scriptPoll)
	}
	words := func(r record) string { return strings.ReplaceAll(r.text("status"), "_", " ") }
	for _, c := range []struct {
		name string
		// cli prints the records that are at http; by names one of them.
		cli      []string
		http, by string
		// element is the id of an element of the page about a record.
		page    string
		element func(key string, r record) string
		// page and table must show these texts of a record.
		shows func(record) []string
		table func(record) []string
		// states are the values of a member that the test must have driven.
		member string
		states []string
	}{
		{
			name: "pools", cli: []string{"pools", "list"}, http: "/v1/pools", by: "name",
			page: "/pools", element: func(key string, _ record) string { return "pool-" + key },
			shows: func(r record) []string {
				all := members("name", "claimed", "problem")(r)
				if is := r.text("status"); is != inspect.PoolOpen {
					all = append(all, is)
				}
				if limit := r["limit"].(float64); limit >= 0 && r.text("status") != inspect.PoolDeleted && r.text("status") != inspect.PoolUnreadable {
					all = append(all, fmt.Sprintf("%v/%v", r["claimed"], limit), "Lease "+text.Duration(duration(s.t, r.text("lease_duration"))))
				}
				if n := r["waiting"].(float64); n > 0 {
					all = append(all, fmt.Sprintf("%v waiting", n))
				}
				return all
			},
			table:  members("name", "claimed", "waiting", "status"),
			member: "status", states: []string{inspect.PoolOpen, inspect.PoolClosed, inspect.PoolPaused, inspect.PoolDeleted, inspect.PoolUnreadable},
		},
		{
			name: "claims", cli: []string{"claims", "list"}, http: "/v1/claims", by: "id",
			page: "/pools?open=half&open=full&open=over&open=deleted&open=unlimited&open=paused",
			element: func(key string, r record) string {
				_, name, _ := strings.Cut(key, "-")
				return map[string]string{inspect.ClaimHeld: "holds-", inspect.ClaimWaiting: "waits-"}[r.text("status")] + name + "-" + key
			},
			shows:  members("id", "host", "instance", "run_id", "step_key", "pid", "fence", "position", "reason"),
			table:  members("id", "status", "host", "run_id", "step_key", "reason"),
			member: "status", states: []string{inspect.ClaimHeld, inspect.ClaimWaiting},
		},
		{
			name: "runs", cli: []string{"runs", "list"}, http: "/v1/runs", by: "id",
			page: "/runs", element: func(key string, _ record) string { return "run-" + key },
			shows: func(r record) []string {
				return append(members("id", "name", "error", "block_reason")(r), words(r), reasonOf(s.t, r))
			},
			table: func(r record) []string {
				return append(members("id", "name", "status", "error", "block_reason")(r), reasonOf(s.t, r))
			},
			member: "status", states: []string{"storing", "queued", "not_started", "running", "succeeded", "failed", "canceled"},
		},
		{
			name: "the queue", cli: []string{"queue", "list"}, by: "id",
			page: "/queue", element: func(key string, _ record) string { return "run-" + key },
			shows: func(r record) []string {
				return append(members("id", "name", "block_reason", "priority")(r), reasonOf(s.t, r))
			},
			table:  func(r record) []string { return append(members("id", "block_reason", "priority")(r), reasonOf(s.t, r)) },
			member: "block_kind", states: []string{"", "run_limit", "tag_limit", "pool", "not_before"},
		},
		{
			name: "steps", cli: []string{"steps", "list", "steps"}, http: "/v1/runs/steps/steps", by: "name",
			page: "/runs/steps", element: func(key string, _ record) string { return "step-" + key },
			shows: func(r record) []string {
				all := members("name", "block_reason")(r)
				for status, n := range r["counts"].(map[string]any) {
					if n.(float64) > 0 {
						all = append(all, fmt.Sprintf("%s %v", status, n))
					}
				}
				return all
			},
			table:  members("name"),
			member: "block_kind", states: []string{"", "needs", "never", "pool", "no_worker", "worker"},
		},
		{
			name: "hosts", cli: []string{"hosts", "list"}, http: "/v1/hosts", by: "host/instance",
			page: "/hosts", element: func(key string, r record) string {
				if r["gone"] != nil {
					return "gone-" + key
				}
				return r.text("role") + "-" + key
			},
			shows:  members("host", "instance", "status", "version", "pid"),
			table:  members("host", "instance", "status", "version", "pid"),
			member: "status", states: []string{"", "working", "drained", "stopped"},
		},
		{
			name: "workers", cli: []string{"worker", "list"}, http: "/v1/workers", by: "host/instance",
			page: "/hosts", element: func(key string, r record) string {
				if r["gone"] != nil {
					return "gone-" + key
				}
				return "worker-" + key
			},
			shows:  members("host", "instance", "status", "reason"),
			table:  members("host", "instance", "status", "reason"),
			member: "status", states: []string{"working", "drained", "stopped"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.t = t
			byCLI := s.records(c.name, s.cli(append(c.cli, "-o", "json")...), c.by)
			if c.http != "" {
				byHTTP := s.records(c.name, s.get(c.http, "application/json"), c.by)
				// last_seen is exact to a second: it is estimated from the rest of a lease.
				estimated := cmpopts.IgnoreMapEntries(func(member string, _ any) bool { return member == "last_seen" })
				if d := cmp.Diff(byCLI, byHTTP, estimated); d != "" {
					t.Errorf("-o json differs from %s (-json +http):\n%s", c.http, d)
				}
			}
			elements, table := s.elements(c.page), strings.Join(strings.Fields(s.cli(c.cli...)), " ")
			seen := map[string]bool{}
			for _, key := range slices.Sorted(maps.Keys(byCLI)) {
				r := byCLI[key]
				seen[r.text(c.member)] = true
				got, there := elements[c.element(key, r)]
				if !there {
					t.Errorf("%s shows no %s", c.page, c.element(key, r))
				}
				for _, want := range c.shows(r) {
					if there && !shows(got, want) {
						t.Errorf("%s of %s is %q, without %q", c.element(key, r), c.page, got, want)
					}
				}
				for _, want := range c.table(r) {
					if !shows(table, want) {
						t.Errorf("berth %s does not show %q of %s", strings.Join(c.cli, " "), want, key)
					}
				}
			}
			for _, state := range c.states {
				if !seen[state] {
					t.Errorf("nothing has the %s %q", c.member, state)
				}
			}
		})
	}
	t.Run("explanations of runs", func(t *testing.T) {
		s := *s
		s.t = t
		for _, key := range slices.Sorted(maps.Keys(s.records("runs", s.cli("runs", "list", "-o", "json"), "id"))) {
			byCLI := s.records(key, s.cli("runs", "why", key, "-o", "json"), "")[""]
			if d := cmp.Diff(byCLI, s.records(key, s.get("/v1/runs/"+key+"/why", "application/json"), "")[""]); d != "" {
				t.Errorf("%s: -o json differs from HTTP (-json +http):\n%s", key, d)
			}
			page, printed := s.elements("/runs/" + key)["main"], strings.Join(strings.Fields(s.cli("runs", "why", key)), " ")
			wants := []string{byCLI.text("reason")}
			if one := record(byCLI["run"].(map[string]any)); run.Status(one.text("status")).Ended() {
				wants = members("status", "error")(one) // the page has them apart
			}
			if byCLI["position"] != nil {
				wants = append(wants, fmt.Sprintf("Position %v of %v", byCLI["position"], byCLI["waiting"]))
			}
			for _, want := range wants {
				if !shows(page, want) {
					t.Errorf("the page of %s is %q, without %q", key, page, want)
				}
			}
			if !shows(printed, byCLI.text("reason")) {
				t.Errorf("runs why %s prints %q, without %q", key, printed, byCLI.text("reason"))
			}
		}
	})
	t.Run("details of pools", func(t *testing.T) {
		s := *s
		s.t = t
		for _, name := range []string{"half", "full", "over", "closed", "paused", "deleted", "unreadable", "unlimited"} {
			byCLI, byHTTP := s.records(name, s.cli("pools", "info", name, "-o", "json"), "")[""], s.records(name, s.get("/v1/pools/"+name, "application/json"), "")[""]
			for _, r := range []record{byCLI, byHTTP} {
				for _, h := range r["holders"].([]any) {
					delete(h.(map[string]any), "expires_in") // etcd reports it in whole seconds
				}
			}
			if d := cmp.Diff(byCLI, byHTTP); d != "" {
				t.Errorf("%s: -o json differs from HTTP (-json +http):\n%s", name, d)
			}
		}
	})
	t.Run("explanations of claims", func(t *testing.T) {
		s := *s
		s.t = t
		for _, id := range []string{"holds-full", "waits-full", "waits-paused"} {
			byCLI, byHTTP := s.records(id, s.cli("claims", "why", id, "-o", "json"), "")[""], s.records(id, s.get("/v1/claims/"+id+"/why", "application/json"), "")[""]
			for _, r := range []record{byCLI, byHTTP} {
				for _, name := range local {
					delete(r["claim"].(map[string]any), name)
				}
			}
			if d := cmp.Diff(byCLI, byHTTP); d != "" {
				t.Errorf("%s: -o json differs from HTTP (-json +http):\n%s", id, d)
			}
		}
	})
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// reasonOf returns the reason of a run as lists show it.
func reasonOf(t *testing.T, r record) string {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var one inspect.Run
	if err := json.Unmarshal(data, &one); err != nil {
		t.Fatal(err)
	}
	return one.Reason()
}
