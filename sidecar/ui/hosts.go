package ui

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
)

const (
	// hostsRows bounds each table of the page.
	hostsRows = 200
	// hostsUnreadable bounds the entries that are listed as unreadable.
	hostsUnreadable = 10
	// tickLate is the age from which a leader's last tick is late: it reports one every 10
	// seconds, and the clocks of hosts differ.
	tickLate = time.Minute
)

// The roles that have a table of their own.
const (
	roleSidecar     = "sidecar"
	roleWorker      = "worker"
	roleCoordinator = "coordinator"
)

// hostsPage is what the page of hosts shows.
type hostsPage struct {
	Now  time.Time
	Text string // that hosts, instances, roles or queues contain
	// Hosts and Instances count those that are present, whatever Text is.
	Hosts, Instances int
	// Versions that instances have, if there are several: the most frequent first.
	Versions []versionCount
	// Active and Capacity are of all workers.
	Active, Capacity, WorkerCount int

	Dispatcher *inspect.Dispatcher // nil: there is none
	// Undispatched says that nobody dispatches although claims wait; empty if that is not so.
	Undispatched string
	Leader       *candidateRow // nil: there is no leader
	Candidates   []candidateRow
	// OtherCandidates counts the candidates that would take over.
	OtherCandidates int

	Workers, Sidecars, Others hostTable
	// Gone are not present, and still have work or a mode.
	Gone hostTable

	Unreadable        []string
	UnreadableLeftOut int
}

// versionCount is how many instances have a version.
type versionCount struct {
	Version string
	Count   int
}

// hostTable are some instances, and how many more there are.
type hostTable struct {
	Rows    []hostRow
	LeftOut int
}

// hostRow is an instance, with the reason why it is drained or stopped.
type hostRow struct {
	inspect.Host
	Why string
}

// ID names a row.
func (r hostRow) ID() string { return r.Host.Host + "/" + r.Instance }

// candidateRow is a candidate for coordinator.
type candidateRow struct {
	run.Candidate
	// Place is 0 of the leader, and the order of those who would take over; -1 is a
	// coordinator that is no candidate.
	Place int
	// Late reports whether a leader's last tick is older than [tickLate].
	Late bool
	// Silent is when it was last seen, if that is long ago; zero if it is not.
	Silent time.Time
}

// Unreadable reports whether the record of the candidate can't be read.
func (c candidateRow) Unreadable() bool { return c.Host == "" }

// hostsOf is the page of hosts.
func hostsOf(f *inspect.Fleet, text string, now time.Time) hostsPage {
	p := hostsPage{Now: now, Text: text}
	for _, err := range f.Bad[:min(len(f.Bad), hostsUnreadable)] {
		p.Unreadable = append(p.Unreadable, err.Error())
	}
	p.UnreadableLeftOut = len(f.Bad) - len(p.Unreadable)
	p.Dispatcher, p.Undispatched = f.Dispatch.Dispatcher, f.Dispatch.Warning()
	p.Leader, p.Candidates = candidatesOf(f, now)
	p.OtherCandidates = max(0, len(f.Candidates)-1)

	workers := map[[2]string]inspect.Worker{}
	for _, w := range f.Workers {
		workers[[2]string{w.Host, w.Instance}] = w
	}
	hosts := map[string]bool{}
	versions := map[string]int{}
	for _, h := range f.Hosts {
		name := [2]string{h.Host, h.Instance}
		row := hostRow{Host: h, Why: workers[name].Reason}
		delete(workers, name)
		if h.Gone {
			p.Gone.add(row, text)
			continue
		}
		hosts[h.Host] = true
		versions[h.Version]++
		p.Instances++
		table := &p.Others
		switch h.Role {
		case roleWorker:
			p.Active, p.Capacity, p.WorkerCount = p.Active+h.ActiveSteps, p.Capacity+h.Capacity, p.WorkerCount+1
			table = &p.Workers
		case roleSidecar:
			table = &p.Sidecars
		case roleCoordinator:
			continue // it is among the candidates
		}
		table.add(row, text)
	}
	for _, w := range f.Workers { // those of which only the mode is left
		if _, left := workers[[2]string{w.Host, w.Instance}]; left {
			p.Gone.add(hostRow{inspect.Host{Host: w.Host, Instance: w.Instance, Status: w.Status, Gone: true}, w.Reason}, text)
		}
	}
	p.Hosts, p.Versions = len(hosts), versionsOf(versions)
	return p
}

// add adds a row that contains a text, up to [hostsRows] of them.
func (t *hostTable) add(r hostRow, text string) {
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	switch {
	case !has(r.Host.Host) && !has(r.Instance) && !has(r.Role) && !slices.ContainsFunc(r.Queues, has):
	case len(t.Rows) == hostsRows:
		t.LeftOut++
	default:
		t.Rows = append(t.Rows, r)
	}
}

// candidatesOf returns the candidates, the leader first, and then the coordinators that are
// present and no candidates.
func candidatesOf(f *inspect.Fleet, now time.Time) (leader *candidateRow, all []candidateRow) {
	candidates := map[[2]string]bool{}
	silent := map[[2]string]time.Time{}
	for _, h := range f.Hosts {
		if h.Silent {
			silent[[2]string{h.Host, h.Instance}] = h.LastSeen
		}
	}
	for i, c := range f.Candidates {
		candidates[[2]string{c.Host, c.Instance}] = true
		row := candidateRow{Candidate: c, Place: i, Silent: silent[[2]string{c.Host, c.Instance}]}
		if i == 0 && !row.Unreadable() {
			last := c.Since
			if c.Tick != nil {
				last = c.Tick.At
			}
			row.Late = now.Sub(last) > tickLate
		}
		all = append(all, row)
	}
	if len(all) > 0 {
		leader = &all[0]
	}
	for _, h := range f.Hosts {
		if h.Role == roleCoordinator && !candidates[[2]string{h.Host, h.Instance}] {
			row := candidateRow{Place: -1}
			row.Host, row.Instance, row.Version, row.Since = h.Host, h.Instance, h.Version, h.Since
			all = append(all, row)
		}
	}
	return leader, all[:min(len(all), hostsRows)]
}

// versionsOf lists versions, the most frequent first; none if all instances have the same.
func versionsOf(counts map[string]int) []versionCount {
	if len(counts) < 2 {
		return nil
	}
	versions := make([]versionCount, 0, len(counts))
	for v, n := range counts {
		versions = append(versions, versionCount{v, n})
	}
	slices.SortFunc(versions, func(a, b versionCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Version, b.Version))
	})
	return versions
}

// hostsEvery is how often the page is updated, and how old the state that it shows can be:
// one reading serves all pages.
const hostsEvery = 2 * time.Second

// fleetCache reads the hosts for all pages.
type fleetCache struct {
	turn chan struct{} // holds one during a reading
	// What follows belongs to the holder of the turn.
	session *Session
	last    *inspect.Fleet
	at      time.Time
}

func newFleetCache() *fleetCache { return &fleetCache{turn: make(chan struct{}, 1)} }

// view reads the page of hosts.
func (l *fleetCache) view(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	f, err := l.read(ctx, s)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Hosts", Data: hostsOf(f, strings.ToLower(strings.TrimSpace(r.URL.Query().Get("q"))), time.Now())}, nil
}

// read returns the hosts as they were at most [hostsEvery] ago. They are not to be changed.
func (l *fleetCache) read(ctx context.Context, s *Session) (*inspect.Fleet, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l.session == s && time.Since(l.at) < hostsEvery {
		return l.last, nil
	}
	f, err := s.reader(nil).Fleet(ctx)
	if err == nil {
		l.session, l.last, l.at = s, f, time.Now()
	}
	return f, err
}
