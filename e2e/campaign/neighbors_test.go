//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestNeighborsAreJudgedWhileNoFaultCanHurtThem(t *testing.T) {
	const s = int64(time.Second)
	turn := func(from, to int64, text string) record {
		return record{What: "turn", Host: "h3/65001", Job: "calm", Asked: from, At: to, Text: text}
	}
	for name, c := range map[string]struct {
		disturbed []stretch
		turns     []record
		judged    int
		want      []string
	}{
		"all is well":                  {nil, []record{turn(1, 2, ""), turn(3, 4, "")}, 2, nil},
		"a claim is lost":              {nil, []record{turn(1, 2, ""), turn(3, 4, "renewal: 409 claim_lost")}, 2, []string{"renewal: 409 claim_lost"}},
		"during a fault":               {[]stretch{{10 * s, 20 * s}}, []record{turn(12*s, 13*s, "claim: no answer")}, 0, nil},
		"begun before a fault":         {[]stretch{{10 * s, 20 * s}}, []record{turn(9*s, 11*s, "claim: no answer")}, 0, nil},
		"shortly after a fault":        {[]stretch{{10 * s, 20 * s}}, []record{turn(21*s, 22*s, "claim: no answer")}, 0, nil},
		"before and long after faults": {[]stretch{{10 * s, 20 * s}}, []record{turn(8*s, 9*s, "a"), turn(36*s, 37*s, "b")}, 2, []string{": a", ": b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			n := newNeighborhood(func(_, text string) { got = append(got, text) })
			for _, d := range c.disturbed {
				n.disturb(d.from, d.to)
			}
			for _, r := range c.turns {
				n.take(r)
			}
			n.judge()
			n.judge() // judges nothing twice
			if !slices.EqualFunc(got, c.want, strings.HasSuffix) {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if k := n.counts["h3/65001"]; k.all != len(c.turns) || k.judged != c.judged {
				t.Errorf("counted %+v of %d, %d of them judged", k, len(c.turns), c.judged)
			}
		})
	}
}

func TestASidecarThatEndsByItselfIsAViolation(t *testing.T) {
	found := 0
	n := newNeighborhood(func(string, string) { found++ })
	n.disturb(0, 1)
	n.ended()
	if found != 1 {
		t.Errorf("found %d", found)
	}
}

func TestWhatIsAnsweredToAttacksIsInTheReport(t *testing.T) {
	n := newNeighborhood(func(_, text string) { t.Error(text) })
	n.take(record{What: "sent", Host: "h3/65001", Via: "task pools", Answers: map[string]int{"403 forbidden": 2}})
	n.take(record{What: "sent", Host: "h3/65001", Via: "task pools", Answers: map[string]int{"403 forbidden": 1, "201": 4}})
	var rows []string
	row := func(name string, value any) { rows = append(rows, name+" | "+value.(string)) }
	n.rows(row)
	if want := []string{"sent by h3/65001 task pools | 201: 4, 403 forbidden: 3"}; !slices.Equal(rows, want) {
		t.Errorf("reported %q, want %q", rows, want)
	}
	rows, n.leftOut = nil, "only root can"
	n.rows(row)
	if want := []string{"neighbors | left out: only root can"}; !slices.Equal(rows, want) {
		t.Errorf("reported %q, want %q", rows, want)
	}
}

func TestANeighborIsRefusedOnlyForItsOwnAttacks(t *testing.T) {
	busy := answer{status: http.StatusTooManyRequests, Code: "too_many_requests"}
	forbidden := answer{status: http.StatusForbidden, Code: "not_holder"}
	for name, c := range map[string]struct {
		a        answer
		attacker bool
		want     string
	}{
		"as it should be":                  {answer{status: http.StatusNoContent}, false, ""},
		"no answer":                        {answer{}, false, "release: no answer within 15s"},
		"no answer to an attacker":         {answer{}, true, ""},
		"too many requests":                {busy, false, "release: 429 too_many_requests "},
		"too many requests of an attacker": {busy, true, ""},
		"refused to the owner":             {forbidden, false, "release: 403 not_holder "},
		"refused to an owner that attacks": {forbidden, true, "release: 403 not_holder "},
	} {
		if got := complaint("release", c.a, c.attacker, http.StatusNoContent); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestNeighborsTakeTurns(t *testing.T) {
	turn := int64(attackFor)
	for at, want := range map[int64][2]bool{0: {true, false}, turn: {false, true}, 2*turn + 1: {true, true}, 3 * turn: {true, false}} {
		if got := [2]bool{attacks(0, at), attacks(1, at)}; got != want {
			t.Errorf("at %s: %v, want %v", time.Duration(at), got, want)
		}
	}
	for _, c := range []struct {
		from, to int64
		want     bool
	}{
		{turn + int64(attackEnds), 2*turn - 1, false},
		{turn + 1, turn + 2, true}, // its own turn has just ended
		{2*turn - 2, 2 * turn, true},
		{turn + int64(attackEnds), 3 * turn, true},
	} {
		if got := attacked(0, c.from, c.to); got != c.want {
			t.Errorf("from %s to %s: %v", time.Duration(c.from), time.Duration(c.to), got)
		}
	}
}

func TestNeighborsDoNotTakeAllConnectionsTogether(t *testing.T) {
	for at := int64(0); at < 3*int64(attackFor); at += int64(100 * time.Millisecond) {
		for index := range neighborUIDs {
			if !attacks(index, at) || connectionsNow(index, at) <= fewConnections {
				continue
			}
			for then := at; then <= at+int64(connectionsEnd); then += int64(100 * time.Millisecond) {
				if attacks(1-index, then) {
					t.Fatalf("both neighbors attack at %s, while one has most connections since %s", time.Duration(then), time.Duration(at))
				}
			}
		}
	}
	if connectionsNow(0, 0) != connections || connectionsNow(1, int64(attackFor)) != connections {
		t.Error("a neighbor that attacks alone does not exceed its bound")
	}
}

func TestFaultsReachASidecar(t *testing.T) {
	for _, c := range []struct {
		kind kind
		host int
		want bool
	}{
		{"kill-leader", 0, true}, {"restore-new-id", 1, true}, {lostServer, 0, true},
		{"partition", 3, true}, {"partition", 1, false}, {"cut-dispatcher", 1, true},
		{"kill-sidecar", 3, true}, {"kill-sidecar", 1, false}, {"stop-dispatcher", 1, true},
		{"kill-worker", 3, false}, {"full-disk", 3, false}, {"limit", 3, false}, {"compaction", 3, false},
	} {
		if got := (fault{Kind: c.kind, Host: c.host}).reaches(3); got != c.want {
			t.Errorf("%s on host %d reaches it: %v", c.kind, c.host, got)
		}
	}
}

func TestExtremesNameEachFieldAndHaveAnIDOfTheirOwn(t *testing.T) {
	ids := 0
	all := extremes("own", func() string { ids++; return "id" })
	if len(all) < 150 || ids < 50 {
		t.Fatalf("%d requests, %d of runs", len(all), ids)
	}
	for _, q := range all {
		if q.body != "" && !q.form && !json.Valid([]byte(q.body)) {
			t.Errorf("%s %s: %s", q.method, q.path, q.body)
		}
	}
	for _, part := range []string{
		`{"limit":-9223372036854775808}`, `{"max_concurrent_runs":-9223372036854775808}`, `{"lease_duration":"-9223372036854775808ns"}`,
		`{"lease_duration":"-9223372036854775808ns"}`, `"priority":-9223372036854775808`, `"wait":"-2562047h47m16.854775808s"`,
		`"delay":"2562048h"`, `"pid":9223372036854775807`, `"timeout":"-9223372036854775808ns"`, "limit=-9223372036854775808",
	} {
		if !slices.ContainsFunc(all, func(q request) bool { return strings.Contains(q.body, part) }) {
			t.Errorf("no request has %s", part)
		}
	}
}

func TestWhatWorkLeavesBehindIsFound(t *testing.T) {
	keys := store.NewKeys("/berth/")
	all := []string{
		keys.Run("kept"), keys.Canceled("kept"), keys.CanceledSteps("kept") + "s/0", keys.Canceled("gone"),
		keys.Revocation("h0", "a"), keys.Revocation("h3", "calm-65001-1"), keys.Pools() + "db/spec", keys.Pools() + "db/demands/h0/sidecar/0",
		keys.Pending("db"), keys.ID("a"), keys.OffersTo("h0") + "sidecar/0", keys.Dispatcher() + "role", keys.Layout(),
	}
	want := []string{
		keys.Canceled("gone"), keys.Revocation("h0", "a"), keys.Pools() + "db/demands/h0/sidecar/0",
		keys.Pending("db"), keys.ID("a"), keys.OffersTo("h0") + "sidecar/0",
	}
	if got := remnants(keys, all); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
