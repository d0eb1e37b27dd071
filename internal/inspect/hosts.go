package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
)

// Host is an instance of berth: a process that has a presence key, or one that has none any
// more and still has work.
type Host struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Role     string    `json:"role,omitempty"`
	Version  string    `json:"version,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Status   string    `json:"status,omitempty" enum:"working,draining,drained,stopping,stopped" doc:"Of a worker: draining and stopping while it still has step instances."`
	Capacity int       `json:"capacity" doc:"How many step instances it runs at a time; 0 if it is no worker."`
	Queues   []string  `json:"queues,omitempty" nullable:"false" doc:"Queues that it takes step instances from; left out if it is no worker."`
	Since    time.Time `json:"since,omitzero" doc:"When it started to use its name."`

	ActiveSteps int  `json:"active_steps" doc:"Step instances that it runs, or that were taken through it."`
	ActiveRuns  int  `json:"active_runs" doc:"Running runs that were started through it."`
	Leader      bool `json:"leader,omitempty" doc:"It is the coordinator that admits runs. Not set if it is silent."`

	DispatchesSince time.Time `json:"dispatches_since,omitzero" doc:"Since when it is the dispatcher, which offers slots to the waiting claims of all hosts. Left out if it is not, or is silent."`

	LastSeen time.Time `json:"last_seen,omitzero" doc:"When it last renewed its presence, exact to a second. When etcd changes its leader, the leases of all instances are prolonged and this is the time of that. Left out if it is not known, or if it is gone."`
	Silent   bool      `json:"silent,omitempty" doc:"It has not renewed its presence for 5 seconds: it was killed, hangs, or is cut off from etcd. It is listed until its presence ends."`

	Gone     bool     `json:"gone,omitempty" doc:"It has no presence key any more, and still has work. Nothing else is known of it."`
	WorkLeft Duration `json:"work_left,omitzero" doc:"How long the work of an instance that is gone stays assigned to it unless it returns. Then the work is lost, and tried again if it has retries left."`
}

// Worker is a worker as it is now.
type Worker struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Status   string `json:"status" enum:"working,draining,drained,stopping,stopped" doc:"draining and stopping while it still has step instances."`

	Queues      []string  `json:"queues,omitempty" nullable:"false" doc:"Queues that it takes step instances from."`
	Concurrency int       `json:"concurrency" doc:"How many step instances it runs at a time; 0 if it is gone."`
	Active      int       `json:"active" doc:"How many it has now."`
	Version     string    `json:"version,omitempty"`
	Since       time.Time `json:"since,omitzero" doc:"When it started to use its name."`
	Gone        bool      `json:"gone,omitempty" doc:"It has no presence key. It is listed while it still has work, or while a mode is kept for its return."`
	WorkLeft    Duration  `json:"work_left,omitzero" doc:"How long the work of a worker that is gone stays assigned to it unless it returns."`
	LastSeen    time.Time `json:"last_seen,omitzero" doc:"When it last renewed its presence, exact to a second. Left out if it is not known, or if it is gone."`
	Silent      bool      `json:"silent,omitempty" doc:"It has not renewed its presence for 5 seconds."`

	ChangedAt time.Time `json:"changed_at,omitzero" doc:"When it was drained or stopped."`
	ChangedBy string    `json:"changed_by,omitempty" doc:"Who drained or stopped it, and from where."`
	Reason    string    `json:"reason,omitempty"`
}

// Fleet is the instances of berth, with their work and modes.
type Fleet struct {
	// Hosts are all instances, by host and name, those included that are gone.
	Hosts []Host
	// Workers are the workers among them, and those for whose return a mode is kept.
	Workers []Worker
	// Candidates are those for coordinator, the leader first.
	Candidates []run.Candidate
	// Dispatch is who dispatches.
	Dispatch Dispatch
	// Bad are errors about values that can't be read. They are left out of the lists.
	Bad []error

	seen   []lease.PresenceRecord
	active []step.Active
	states map[step.WorkerID]step.WorkerState
}

// StepWorkers returns the workers as waits of step instances depend on them.
func (f *Fleet) StepWorkers() []step.Worker { return step.WorkersOf(f.seen, f.active, f.states) }

// Fleet reads all instances. Their presence, their work and their modes are read one
// after another.
func (r *Reader) Fleet(ctx context.Context) (*Fleet, error) {
	f, err := r.fleet(ctx)
	if err != nil {
		return nil, err
	}
	if f.Candidates, err = r.Runs.Candidates(ctx); err != nil {
		return nil, err
	}
	if f.Dispatch, err = r.Dispatch(ctx); err != nil {
		bad, other := Corrupt(err)
		if other != nil {
			return nil, err
		}
		f.Bad = append(f.Bad, bad...)
	}
	f.setHosts()
	if err := r.setSeen(ctx, f, time.Now()); err != nil {
		return nil, err
	}
	if err := r.addGone(ctx, f); err != nil {
		return nil, err
	}
	f.setWorkers()
	return f, nil
}

// fleet reads who is there, without the records.
func (r *Reader) fleet(ctx context.Context) (f *Fleet, err error) {
	f = &Fleet{}
	f.seen, err = r.Hosts(ctx)
	if f.Bad, err = Corrupt(err); err != nil {
		return nil, err
	}
	if f.active, err = r.Steps.Active(ctx); err != nil {
		return nil, err
	}
	states, bad, err := r.Steps.WorkerStates(ctx)
	f.states, f.Bad = states, append(f.Bad, bad...)
	return f, err
}

// Corrupt splits an error into those about values that can't be read, and another; nil
// if there is none.
func Corrupt(err error) (bad []error, other error) {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, e := range errs {
		var corrupt *store.CorruptError
		switch {
		case e == nil:
		case errors.As(e, &corrupt):
			bad = append(bad, e)
		default:
			return nil, err
		}
	}
	return bad, nil
}

// setHosts makes the records of the instances that are present.
func (f *Fleet) setHosts() {
	counts := step.ActiveByName(f.active)
	f.Hosts = make([]Host, len(f.seen))
	for i, h := range f.seen {
		n := counts[[2]string{h.Host, h.Instance}]
		f.Hosts[i] = Host{
			Host: h.Host, Instance: h.Instance, Role: h.Role, Version: h.Version,
			PID: h.PID, Capacity: h.Capacity, Queues: h.Queues, Since: h.Since,
			ActiveSteps: n.Steps, ActiveRuns: n.Runs,
			Leader: len(f.Candidates) > 0 && f.Candidates[0].Host == h.Host && f.Candidates[0].Instance == h.Instance,
		}
		if d := f.Dispatch.Dispatcher; d != nil && d.Host == h.Host && d.Instance == h.Instance {
			f.Hosts[i].DispatchesSince = d.Since
		}
	}
}

// setSeen sets when each instance was last seen. A leader that is silent does not lead.
func (r *Reader) setSeen(ctx context.Context, f *Fleet, now time.Time) error {
	leases := make([]store.LeaseID, len(f.seen))
	for i, h := range f.seen {
		leases[i] = h.Lease
	}
	left, err := r.LeaseEnds(ctx, leases)
	if err != nil {
		return err
	}
	for i, h := range f.seen {
		if ttl, ok := left[h.Lease]; ok && h.Lease != 0 {
			f.Hosts[i].LastSeen = lease.LastSeen(now, ttl)
			f.Hosts[i].Silent = now.Sub(f.Hosts[i].LastSeen) >= lease.SeenWithin
			if f.Hosts[i].Silent {
				f.Hosts[i].Leader, f.Hosts[i].DispatchesSince = false, time.Time{}
			}
		}
	}
	return nil
}

// maxGoneLeases bounds the leases that etcd is asked about for one instance that is
// gone: all leases of an instance are renewed at about the same time.
const maxGoneLeases = 4

// addGone adds the instances that are not present any more and still have work: until
// its leases end, they may return to it.
func (r *Reader) addGone(ctx context.Context, f *Fleet) error {
	known := make(map[[2]string]bool, len(f.Hosts))
	for _, h := range f.Hosts {
		known[[2]string{h.Host, h.Instance}] = true
	}
	b, keys := r.Runs.Backend, r.Runs.Keys
	for _, a := range f.active {
		if known[[2]string{a.Host, a.Instance}] {
			continue
		}
		// An instance that has just started, or whose key can't be read, has work and is
		// not in the list.
		resp, err := b.Range(ctx, &pb.RangeRequest{Key: []byte(keys.Presence(a.Host, a.Instance)), KeysOnly: true})
		if err != nil {
			return store.Problem("the hosts could not be read", err)
		}
		if len(resp.Kvs) > 0 {
			continue
		}
		left, err := workLeft(ctx, b, a.Leases)
		if err != nil {
			return store.Problem("the leases of hosts that are gone could not be read", err)
		}
		if left > 0 {
			f.Hosts = append(f.Hosts, Host{
				Host: a.Host, Instance: a.Instance, ActiveSteps: a.Steps, ActiveRuns: a.Runs,
				Gone: true, WorkLeft: Duration(left),
			})
		}
	}
	slices.SortStableFunc(f.Hosts, func(a, b Host) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return nil
}

// workLeft returns how long the last of some leases lives unless it is renewed.
func workLeft(ctx context.Context, b store.Backend, leases []store.LeaseID) (longest time.Duration, err error) {
	for _, id := range leases[:min(len(leases), maxGoneLeases)] {
		left, err := b.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return 0, err
		}
		longest = max(longest, left)
	}
	return longest, nil
}

// setWorkers sets the states of hosts, and makes the records of workers.
func (f *Fleet) setWorkers() {
	known := map[step.WorkerID]bool{}
	add := func(id step.WorkerID, w Worker) {
		known[id] = true
		s := f.states[id]
		w.Host, w.Instance, w.Status = id[0], id[1], s.Name(w.Active)
		w.ChangedAt, w.ChangedBy, w.Reason = s.At, s.By, s.Reason
		if s.From != "" {
			w.ChangedBy += " from " + s.From
		}
		f.Workers = append(f.Workers, w)
	}
	f.Workers = []Worker{}
	for i := range f.Hosts {
		h := &f.Hosts[i]
		id := step.WorkerID{h.Host, h.Instance}
		s, kept := f.states[id]
		worker := h.Capacity > 0 || h.Gone && (h.ActiveSteps > 0 || kept)
		if worker || kept {
			h.Status = s.Name(h.ActiveSteps)
		}
		if worker {
			add(id, Worker{
				Queues: h.Queues, Concurrency: h.Capacity, Active: h.ActiveSteps, Version: h.Version, Since: h.Since,
				Gone: h.Gone, WorkLeft: h.WorkLeft, LastSeen: h.LastSeen, Silent: h.Silent,
			})
		}
	}
	for id := range f.states {
		if !known[id] {
			add(id, Worker{Gone: true})
		}
	}
	slices.SortFunc(f.Workers, func(a, b Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
}

// Worker returns a worker by name. An unknown one is a NotFound problem.
func (f *Fleet) Worker(id step.WorkerID) (Worker, error) {
	for _, w := range f.Workers {
		if w.Host == id[0] && w.Instance == id[1] {
			return w, nil
		}
	}
	return Worker{}, problem.New(problem.NotFound, "there is no worker %s: 'berth worker list' lists the workers", id)
}

// SeenText writes when an instance was last seen: "now" unless it is silent or gone.
func (h *Host) SeenText(now time.Time) string {
	return seenText(now, h.LastSeen, h.Silent, h.Gone, h.WorkLeft)
}

// SeenText writes when a worker was last seen, as [Host.SeenText] does.
func (w *Worker) SeenText(now time.Time) string {
	return seenText(now, w.LastSeen, w.Silent, w.Gone, w.WorkLeft)
}

func seenText(now, seen time.Time, silent, gone bool, left Duration) string {
	switch {
	case gone && left == 0:
		return "gone"
	case gone:
		return "gone; its work stays assigned for " + text.About(time.Duration(left))
	case silent:
		return text.Ago(now, seen)
	}
	return "now"
}
