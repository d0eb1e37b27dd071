package ui

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

var hostsNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// seen is an instance of a role.
func seen(host, instance, role string, change ...func(*lease.PresenceRecord)) lease.PresenceRecord {
	r := lease.PresenceRecord{Host: host, Instance: instance, Role: role, Version: "1.2.0", PID: 7, Since: hostsNow.Add(-time.Hour)}
	for _, f := range change {
		f(&r)
	}
	return r
}

func names(t hostTable) []string {
	all := []string{}
	for _, r := range t.Rows {
		all = append(all, fmt.Sprintf("%s %d+%d", r.ID(), r.Steps, r.Runs))
	}
	return all
}

func TestInstancesAreShownByTheirPartWithWhatTheyHave(t *testing.T) {
	f := fleet{
		seen: []lease.PresenceRecord{
			seen("a", "coordinator", "coordinator"),
			seen("a", "sidecar", "sidecar"),
			seen("a", "worker", "worker", func(r *lease.PresenceRecord) { r.Capacity, r.Queues = 4, []string{"default", "gpu"} }),
			seen("b", "gpu", "worker", func(r *lease.PresenceRecord) { r.Capacity = 2 }),
			seen("b", "p1", "exec"),
			seen("b", "mine", ""),
		},
		active: []step.Active{
			{Host: "a", Instance: "sidecar", Steps: 1, Runs: 2}, {Host: "a", Instance: "worker", Steps: 3},
			{Host: "c", Instance: "worker", Steps: 5},
		},
		candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Instance: "coordinator", Term: 9, Since: hostsNow}}},
		states: map[step.WorkerID]step.WorkerState{
			{"a", "worker"}: {Mode: step.Drained, Reason: "new disk"}, {"c", "worker"}: {Mode: step.Stopped}, {"d", "worker"}: {Mode: step.Drained},
		},
	}
	p := hostsOf(f, "", hostsNow)
	states := map[string]string{}
	for _, table := range []hostTable{p.Workers, p.Sidecars, p.Others, p.Gone} {
		for _, r := range table.Rows {
			states[r.ID()] = r.State + " " + r.Why
		}
	}
	if d := cmp.Diff(map[string]string{
		"a/worker": "draining new disk", "b/gpu": "working ", "c/worker": "stopping ", "a/sidecar": " ", "b/p1": " ", "b/mine": " ",
	}, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"hosts", p.Hosts, 2}, {"instances", p.Instances, 6},
		{"workers", names(p.Workers), []string{"a/worker 3+0", "b/gpu 0+0"}},
		{"sidecars", names(p.Sidecars), []string{"a/sidecar 1+2"}},
		{"others", names(p.Others), []string{"b/p1 0+0", "b/mine 0+0"}},
		{"gone", names(p.Gone), []string{"c/worker 5+0"}},
		{"of all workers", []int{p.WorkerCount, p.Active, p.Capacity}, []int{2, 3, 6}},
		{"versions", p.Versions, []versionCount(nil)},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
	}
	for text, want := range map[string][]string{
		"a": {"a/worker 3+0"}, "gpu": {"a/worker 3+0", "b/gpu 0+0"}, "worker": {"a/worker 3+0", "b/gpu 0+0"}, "default": {"a/worker 3+0"}, "x": {},
	} {
		got := hostsOf(f, text, hostsNow)
		if d := cmp.Diff(want, names(got.Workers)); d != "" {
			t.Errorf("workers with %q (-want +got):\n%s", text, d)
		}
		if got.Hosts != 2 || got.Capacity != 6 {
			t.Errorf("with %q the sums are of %d hosts and a capacity of %d", text, got.Hosts, got.Capacity)
		}
	}
}

func TestTheLeaderIsToldApartAndItsAbsenceToo(t *testing.T) {
	tick := func(ago time.Duration) *run.Tick { return &run.Tick{At: hostsNow.Add(-ago)} }
	for name, c := range map[string]struct {
		fleet            fleet
		leads            string
		late, unreadable bool
		places           []int
		standing         int
	}{
		"nobody": {},
		"a coordinator that does not stand": {
			fleet: fleet{seen: []lease.PresenceRecord{seen("a", "coordinator", "coordinator")}}, places: []int{-1},
		},
		"one that has just begun": {
			fleet: fleet{candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Since: hostsNow, Term: 3}}}}, leads: "a", places: []int{0},
		},
		"one that stands for long without a tick": {
			fleet: fleet{candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Since: hostsNow.Add(-time.Hour), Term: 3}}}}, leads: "a", late: true, places: []int{0},
		},
		"one that ticks, and others": {
			fleet: fleet{
				seen:       []lease.PresenceRecord{seen("b", "", "coordinator"), seen("c", "x", "coordinator")},
				candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Term: 3}, Tick: tick(30 * time.Second)}, {Candidate: election.Candidate{Host: "b", Term: 5}}},
			},
			leads: "a", places: []int{0, 1, -1}, standing: 1,
		},
		"one that has stopped": {
			fleet: fleet{candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Term: 3}, Tick: tick(2 * time.Minute)}}}, leads: "a", late: true, places: []int{0},
		},
		"one that can't be read": {
			fleet: fleet{candidates: []run.Candidate{{Candidate: election.Candidate{Term: 3}}}}, unreadable: true, places: []int{0},
		},
	} {
		p := hostsOf(c.fleet, "", hostsNow)
		var places []int
		for _, row := range p.Candidates {
			places = append(places, row.Place)
		}
		if d := cmp.Diff(c.places, places); d != "" || p.Standing != c.standing {
			t.Errorf("%s: %d stand, places (-want +got):\n%s", name, p.Standing, d)
		}
		if (p.Leader == nil) != (len(c.fleet.candidates) == 0) {
			t.Errorf("%s: leader %v", name, p.Leader)
		} else if p.Leader != nil && (p.Leader.Host != c.leads || p.Leader.Late != c.late || p.Leader.Unreadable() != c.unreadable) {
			t.Errorf("%s: leader %+v", name, p.Leader)
		}
	}
}

func TestMixedVersionsArePointedOut(t *testing.T) {
	of := func(v string) func(*lease.PresenceRecord) {
		return func(r *lease.PresenceRecord) { r.Version = v }
	}
	got := hostsOf(fleet{seen: []lease.PresenceRecord{
		seen("a", "sidecar", "sidecar", of("1.3.0")), seen("b", "sidecar", "sidecar", of("1.2.0")),
		seen("c", "sidecar", "sidecar", of("1.2.0")), seen("d", "p1", "exec", of("")),
	}}, "", hostsNow).Versions
	if d := cmp.Diff([]versionCount{{"1.2.0", 2}, {"", 1}, {"1.3.0", 1}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestThePageOfHostsIsBounded(t *testing.T) {
	var f fleet
	for i := range 1000 {
		host := fmt.Sprintf("h%04d", i)
		f.seen = append(f.seen, seen(host, "p1", "exec"))
		f.active = append(f.active, step.Active{Host: host, Instance: "gone", Steps: 1})
		f.unreadable = append(f.unreadable, host)
		f.candidates = append(f.candidates, run.Candidate{Candidate: election.Candidate{Host: host, Term: int64(i + 1)}})
	}
	p := hostsOf(f, "", hostsNow)
	if len(p.Others.Rows) != hostsRows || p.Others.LeftOut != 800 || len(p.Gone.Rows) != hostsRows || p.Gone.LeftOut != 800 {
		t.Errorf("%d others and %d, %d gone and %d", len(p.Others.Rows), p.Others.LeftOut, len(p.Gone.Rows), p.Gone.LeftOut)
	}
	if len(p.Unreadable) != hostsUnreadable || p.UnreadableLeftOut != 990 || len(p.Candidates) != hostsRows || p.Standing != 999 {
		t.Errorf("%d unreadable and %d, %d candidates of %d", len(p.Unreadable), p.UnreadableLeftOut, len(p.Candidates), p.Standing)
	}
	if p = hostsOf(f, "h0999", hostsNow); len(p.Others.Rows) != 1 || p.Others.LeftOut != 0 {
		t.Errorf("%d others are h0999", len(p.Others.Rows))
	}
}

func TestEntriesThatCannotBeReadAreOneThingAmongOthers(t *testing.T) {
	corrupt := &store.CorruptError{Key: "/berth/hosts/a/b", Reason: errors.New("it is odd")}
	away := problem.New(problem.EtcdUnavailable, "away")
	for _, c := range []struct {
		err   error
		texts int
		other error
	}{
		{nil, 0, nil}, {corrupt, 1, nil}, {errors.Join(corrupt, corrupt), 2, nil}, {away, 0, away},
	} {
		texts, err := unreadable(c.err)
		if len(texts) != c.texts || err != c.other {
			t.Errorf("%v: %q, %v", c.err, texts, err)
		}
	}
	if _, err := unreadable(errors.Join(corrupt, away)); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("both: %v", err)
	}
}
