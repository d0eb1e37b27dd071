package ui

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/inspect"
)

var hostsNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// present is an instance of a role.
func present(host, instance, role string, change ...func(*inspect.Host)) inspect.Host {
	r := inspect.Host{Host: host, Instance: instance, Role: role, Version: "1.2.0", PID: 7, Since: hostsNow.Add(-time.Hour)}
	for _, f := range change {
		f(&r)
	}
	return r
}

func names(t hostTable) []string {
	all := []string{}
	for _, r := range t.Rows {
		all = append(all, fmt.Sprintf("%s %d+%d", r.ID(), r.ActiveSteps, r.ActiveRuns))
	}
	return all
}

func TestInstancesAreShownByTheirPartWithWhatTheyHave(t *testing.T) {
	f := &inspect.Fleet{
		Hosts: []inspect.Host{
			present("a", "coordinator", "coordinator"),
			present("a", "sidecar", "sidecar", func(h *inspect.Host) { h.ActiveSteps, h.ActiveRuns = 1, 2 }),
			present("a", "worker", "worker", func(h *inspect.Host) {
				h.Capacity, h.Queues, h.ActiveSteps, h.Status = 4, []string{"default", "gpu"}, 3, "draining"
			}),
			present("b", "gpu", "worker", func(h *inspect.Host) { h.Capacity, h.Status = 2, "working" }),
			present("b", "p1", "exec"),
			present("b", "mine", ""),
			{Host: "c", Instance: "worker", ActiveSteps: 5, Status: "stopping", Gone: true},
		},
		Workers:    []inspect.Worker{{Host: "a", Instance: "worker", Status: "draining", Reason: "new disk"}, {Host: "d", Instance: "worker", Status: "drained", Gone: true}},
		Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Instance: "coordinator", Term: 9, Since: hostsNow}}},
	}
	p := hostsOf(f, "", hostsNow)
	states := map[string]string{}
	for _, table := range []hostTable{p.Workers, p.Sidecars, p.Others, p.Gone} {
		for _, r := range table.Rows {
			states[r.ID()] = r.Status + " " + r.Why
		}
	}
	if d := cmp.Diff(map[string]string{
		"a/worker": "draining new disk", "b/gpu": "working ", "c/worker": "stopping ", "d/worker": "drained ", "a/sidecar": " ", "b/p1": " ", "b/mine": " ",
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
		{"gone", names(p.Gone), []string{"c/worker 5+0", "d/worker 0+0"}},
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

func TestTheLeaderOrItsAbsenceIsShown(t *testing.T) {
	tick := func(ago time.Duration) *run.Tick { return &run.Tick{At: hostsNow.Add(-ago)} }
	for name, c := range map[string]struct {
		fleet            inspect.Fleet
		leads            string
		late, unreadable bool
		places           []int
		standing         int
	}{
		"none": {},
		"a coordinator that does not stand": {
			fleet: inspect.Fleet{Hosts: []inspect.Host{present("a", "coordinator", "coordinator")}}, places: []int{-1},
		},
		"one that has just begun": {
			fleet: inspect.Fleet{Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Since: hostsNow, Term: 3}}}}, leads: "a", places: []int{0},
		},
		"one that is the leader for long without a tick": {
			fleet: inspect.Fleet{Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Since: hostsNow.Add(-time.Hour), Term: 3}}}}, leads: "a", late: true, places: []int{0},
		},
		"one that ticks, and others": {
			fleet: inspect.Fleet{
				Hosts:      []inspect.Host{present("b", "", "coordinator"), present("c", "x", "coordinator")},
				Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Term: 3}, Tick: tick(30 * time.Second)}, {Candidate: election.Candidate{Host: "b", Term: 5}}},
			},
			leads: "a", places: []int{0, 1, -1}, standing: 1,
		},
		"one that has stopped": {
			fleet: inspect.Fleet{Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "a", Term: 3}, Tick: tick(2 * time.Minute)}}}, leads: "a", late: true, places: []int{0},
		},
		"one that can't be read": {
			fleet: inspect.Fleet{Candidates: []run.Candidate{{Candidate: election.Candidate{Term: 3}}}}, unreadable: true, places: []int{0},
		},
	} {
		p := hostsOf(&c.fleet, "", hostsNow)
		var places []int
		for _, row := range p.Candidates {
			places = append(places, row.Place)
		}
		if d := cmp.Diff(c.places, places); d != "" || p.OtherCandidates != c.standing {
			t.Errorf("%s: %d stand, places (-want +got):\n%s", name, p.OtherCandidates, d)
		}
		if (p.Leader == nil) != (len(c.fleet.Candidates) == 0) {
			t.Errorf("%s: leader %v", name, p.Leader)
		} else if p.Leader != nil && (p.Leader.Host != c.leads || p.Leader.Late != c.late || p.Leader.Unreadable() != c.unreadable) {
			t.Errorf("%s: leader %+v", name, p.Leader)
		}
	}
}

func TestMixedVersionsArePointedOut(t *testing.T) {
	of := func(v string) func(*inspect.Host) {
		return func(r *inspect.Host) { r.Version = v }
	}
	got := hostsOf(&inspect.Fleet{Hosts: []inspect.Host{
		present("a", "sidecar", "sidecar", of("1.3.0")), present("b", "sidecar", "sidecar", of("1.2.0")),
		present("c", "sidecar", "sidecar", of("1.2.0")), present("d", "p1", "exec", of("")),
	}}, "", hostsNow).Versions
	if d := cmp.Diff([]versionCount{{"1.2.0", 2}, {"", 1}, {"1.3.0", 1}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestThePageOfHostsIsBounded(t *testing.T) {
	f := &inspect.Fleet{}
	for i := range 1000 {
		host := fmt.Sprintf("h%04d", i)
		f.Hosts = append(f.Hosts, present(host, "p1", "exec"), inspect.Host{Host: host, Instance: "gone", ActiveSteps: 1, Gone: true})
		f.Bad = append(f.Bad, errors.New(host))
		f.Candidates = append(f.Candidates, run.Candidate{Candidate: election.Candidate{Host: host, Term: int64(i + 1)}})
	}
	p := hostsOf(f, "", hostsNow)
	if len(p.Others.Rows) != hostsRows || p.Others.LeftOut != 800 || len(p.Gone.Rows) != hostsRows || p.Gone.LeftOut != 800 {
		t.Errorf("%d others and %d, %d gone and %d", len(p.Others.Rows), p.Others.LeftOut, len(p.Gone.Rows), p.Gone.LeftOut)
	}
	if len(p.Unreadable) != hostsUnreadable || p.UnreadableLeftOut != 990 || len(p.Candidates) != hostsRows || p.OtherCandidates != 999 {
		t.Errorf("%d unreadable and %d, %d candidates of %d", len(p.Unreadable), p.UnreadableLeftOut, len(p.Candidates), p.OtherCandidates)
	}
	if p = hostsOf(f, "h0999", hostsNow); len(p.Others.Rows) != 1 || p.Others.LeftOut != 0 {
		t.Errorf("%d others are h0999", len(p.Others.Rows))
	}
}
