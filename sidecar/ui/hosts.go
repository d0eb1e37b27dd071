package ui

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

const (
	// hostsRows bounds each table of the page.
	hostsRows = 200
	// hostsUnreadable bounds the entries that are told of as such.
	hostsUnreadable = 10
	// tickLate is the age at which a leader's last tick is no recent one: it tells of
	// one every 10 seconds, and clocks of hosts differ.
	tickLate = time.Minute
)

// The roles that have a table of their own.
const (
	roleSidecar     = "sidecar"
	roleWorker      = "worker"
	roleCoordinator = "coordinator"
)

// fleet is who is there, as it is read.
type fleet struct {
	// states are the modes of workers that do not work.
	states     map[step.WorkerID]step.WorkerState
	unread     []string // modes: their workers take nothing
	seen       []lease.PresenceRecord
	unreadable []string // entries
	active     []step.Active
	candidates []run.Candidate
}

// hostsPage is what the page of hosts shows.
type hostsPage struct {
	Text string // that hosts, instances and roles have
	// Hosts and Instances that are seen, whatever Text is.
	Hosts, Instances int
	// Versions that instances have, if there are several: the most frequent first.
	Versions []versionCount
	// Active and Capacity are of all workers.
	Active, Capacity, WorkerCount int

	Leader     *candidateRow // nil: nobody leads
	Candidates []candidateRow
	// Standing is how many would take over.
	Standing int

	Workers, Sidecars, Others hostTable
	// Gone have something, and are not seen.
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

// hostRow is an instance with what it has now.
type hostRow struct {
	lease.PresenceRecord
	Steps, Runs int
	// State is whether a worker works, and Why it does not. Of others State is empty, and of
	// one that is gone unless it is not to work when it comes back.
	State, Why string
}

// ID names a row.
func (r hostRow) ID() string { return r.Host + "/" + r.Instance }

// candidateRow stands for the coordinator's part.
type candidateRow struct {
	run.Candidate
	// Place is 0 of the leader, and counts those who would take over; -1 is somebody
	// who does not stand.
	Place int
	// Late tells that a leader's last tick is none of late.
	Late bool
}

// Unreadable tells that somebody stands, and it can't be read who.
func (c candidateRow) Unreadable() bool { return c.Host == "" }

// hostsOf is the page of hosts.
func hostsOf(f fleet, text string, now time.Time) hostsPage {
	p := hostsPage{Text: text, Instances: len(f.seen), Versions: versionsOf(f.seen)}
	all := slices.Concat(f.unreadable, f.unread)
	p.Unreadable = all[:min(len(all), hostsUnreadable)]
	p.UnreadableLeftOut = len(all) - len(p.Unreadable)
	p.Leader, p.Candidates = candidatesOf(f, now)
	p.Standing = max(0, len(f.candidates)-1)

	active := step.ActiveByName(f.active)
	hosts := map[string]bool{}
	for _, h := range f.seen {
		name := [2]string{h.Host, h.Instance}
		a := active[name]
		delete(active, name)
		row := hostRow{PresenceRecord: h, Steps: a.Steps, Runs: a.Runs}
		hosts[h.Host] = true
		table := &p.Others
		switch h.Role {
		case roleWorker:
			p.Active, p.Capacity, p.WorkerCount = p.Active+a.Steps, p.Capacity+h.Capacity, p.WorkerCount+1
			table = &p.Workers
			s := f.states[name]
			row.State, row.Why = s.Name(a.Steps), s.Reason
		case roleSidecar:
			table = &p.Sidecars
		case roleCoordinator:
			continue // it is among the candidates
		}
		table.add(row, text)
	}
	p.Hosts = len(hosts)
	for _, a := range f.active { // in their order
		name := [2]string{a.Host, a.Instance}
		if _, gone := active[name]; gone {
			row := hostRow{PresenceRecord: lease.PresenceRecord{Host: a.Host, Instance: a.Instance}, Steps: a.Steps, Runs: a.Runs}
			if s, kept := f.states[name]; kept {
				row.State, row.Why = s.Name(a.Steps), s.Reason
			}
			p.Gone.add(row, text)
		}
	}
	return p
}

// add adds a row that has a text, while there is room.
func (t *hostTable) add(r hostRow, text string) {
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	switch {
	case !has(r.Host) && !has(r.Instance) && !has(r.Role) && !slices.ContainsFunc(r.Queues, has):
	case len(t.Rows) == hostsRows:
		t.LeftOut++
	default:
		t.Rows = append(t.Rows, r)
	}
}

// candidatesOf are those who stand, the leader first, and coordinators that are seen and do
// not stand.
func candidatesOf(f fleet, now time.Time) (leader *candidateRow, all []candidateRow) {
	standing := map[[2]string]bool{}
	for i, c := range f.candidates {
		standing[[2]string{c.Host, c.Instance}] = true
		row := candidateRow{Candidate: c, Place: i}
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
	for _, h := range f.seen {
		if h.Role == roleCoordinator && !standing[[2]string{h.Host, h.Instance}] {
			row := candidateRow{Place: -1}
			row.Host, row.Instance, row.Version, row.Since = h.Host, h.Instance, h.Version, h.Since
			all = append(all, row)
		}
	}
	return leader, all[:min(len(all), hostsRows)]
}

// versionsOf counts versions; none if all instances have the same.
func versionsOf(all []lease.PresenceRecord) []versionCount {
	counts := map[string]int{}
	for _, h := range all {
		counts[h.Version]++
	}
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

// hostsEvery is how often the page looks, and how old what it shows can be: what is read for
// one who looks serves all.
const hostsEvery = 2 * time.Second

// hostsLook reads who is there, for all who look.
type hostsLook struct {
	turn chan struct{} // holds one while somebody reads
	// What follows belongs to whose turn it is.
	session *Session
	last    fleet
	at      time.Time
}

func newHostsLook() *hostsLook { return &hostsLook{turn: make(chan struct{}, 1)} }

// view shows who is there.
func (l *hostsLook) view(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	f, err := l.read(ctx, s)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Hosts", Data: hostsOf(f, strings.ToLower(strings.TrimSpace(r.URL.Query().Get("q"))), time.Now())}, nil
}

// read returns who is there, as somebody has just read it.
func (l *hostsLook) read(ctx context.Context, s *Session) (fleet, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fleet{}, context.Cause(ctx)
	}
	if l.session == s && time.Since(l.at) < hostsEvery {
		return l.last, nil
	}
	f, err := readFleet(ctx, s)
	if err == nil {
		l.session, l.last, l.at = s, f, time.Now()
	}
	return f, err
}

// readFleet reads who is there. What they have, and who leads, is read at other moments.
func readFleet(ctx context.Context, s *Session) (f fleet, err error) {
	f.seen, err = s.Client.Hosts(ctx)
	if f.unreadable, err = unreadable(err); err != nil {
		return fleet{}, err
	}
	if f.active, err = s.Steps.Active(ctx); err != nil {
		return fleet{}, err
	}
	if f.candidates, err = s.Runs.Candidates(ctx); err != nil {
		return fleet{}, err
	}
	var unread []error
	if f.states, unread, err = s.Steps.WorkerStates(ctx); err != nil {
		return fleet{}, err
	}
	for _, err := range unread {
		f.unread = append(f.unread, err.Error())
	}
	return f, nil
}

// unreadable takes values that can't be read out of an error: each is one among others.
func unreadable(err error) (texts []string, other error) {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, e := range errs {
		var corrupt *store.CorruptError
		switch {
		case e == nil:
		case errors.As(e, &corrupt):
			texts = append(texts, corrupt.Error())
		default:
			return nil, err
		}
	}
	return texts, nil
}
