package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// The kinds of load of the queue.
const (
	submit   = "submit"    // runs are put into it
	admit    = "admit"     // they are, there is room, and an executor waits
	planIdle = "plan/idle" // plans where nothing has changed
	planLast = "plan/last" // where the last run of the queue may go
	planMany = "plan/many" // where very many may
	leading  = "leader"    // a coordinator that leads
)

const (
	// admitHold leaves the coordinator idle between two runs, and admitStretch makes
	// rounds longer: there are fewer than 50 in a second.
	admitHold    = 20 * time.Millisecond
	admitStretch = 4
)

func (c *Config) queueCases() []Case {
	var all []Case
	for _, n := range c.Clients {
		all = append(all, Case{Name: fmt.Sprintf("%s/%dc", submit, n), Kind: submit, Clients: n, stretch: 1})
	}
	all = append(all, Case{Name: admit + "/1c", Kind: admit, Clients: 1, hold: admitHold, stretch: admitStretch})
	for _, kind := range []string{planIdle, planLast, planMany, leading} {
		all = append(all, Case{Name: fmt.Sprintf("%s/%dq", kind, c.Queued), Kind: kind, Queued: c.Queued})
	}
	return all
}

// Submissions are runs that were put into the queue, beside the floor: a put of
// one record for each.
type Submissions struct {
	// PerSecond is the median of the rounds.
	PerSecond float64 `json:"runs_per_second"`
	// Submit is the time from the asking to the answer.
	Submit *Latency `json:"submit"`
}

// Admissions are runs that were admitted by a coordinator that had nothing else to
// do.
type Admissions struct {
	// Seen is the time from the answer to a submission until the executor that waits
	// for the run has seen that it was admitted.
	Seen *Latency `json:"seen"`
	// SeenToPut is its p50 as a multiple of that of the floor's puts.
	SeenToPut *Spread `json:"seen_p50_to_put_p50"`
}

// Leader is what a coordinator takes that leads in this process. Megabytes are of
// 2^20 bytes.
type Leader struct {
	Queued     int `json:"queued"`
	InProgress int `json:"in_progress"`
	TagLimits  int `json:"tag_limits"`
	// Seconds are those from its start until each run had the reason noted for which
	// it is queued.
	Seconds float64 `json:"seconds"`
	// Heap is what garbage collection leaves of Go's heap, and Resident the memory of
	// the process after free memory was given back: how much more than before it
	// started.
	Heap     float64 `json:"heap_mb"`
	Resident float64 `json:"resident_mb"`
	// Peak is the most that was resident on the way there, likewise.
	Peak float64 `json:"peak_mb"`
	// Before is what was resident then: the benchmark itself.
	Before float64 `json:"before_mb"`
}

func (r *Row) fillSubmissions(all *rounds) {
	r.Ratio = spread(all.ratio)
	r.Submissions = &Submissions{PerSecond: median(all.ownRate), Submit: summarize(all.own.claim)}
}

func (r *Row) fillAdmissions(all *rounds) {
	r.Admissions = &Admissions{Seen: summarize(all.own.claim), SeenToPut: spread(all.claimToPut)}
}

// submissions is the door to the queue: runs are put into it, and stay.
type submissions struct {
	runner *runner
	conn   *connection
	store  run.Store
}

// keys are those of everything that is written.
func (r *runner) keys() store.Keys { return store.NewKeys(r.prefix) }

func (r *runner) openSubmissions() (*submissions, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	return &submissions{runner: r, conn: conn, store: r.runs(conn)}, nil
}

// runs are reached through a connection.
func (r *runner) runs(conn *connection) run.Store {
	keys := r.keys()
	return run.Store{Backend: conn, Keys: keys, Journal: run.NewJournal(conn, keys, "bench/bench", 0)}
}

// newID is one that no run has.
func newID() string { return strings.ToLower(ulid.Make().String()) }

func (s *submissions) claim(ctx context.Context, client int) (held, error) {
	_, _, err := s.store.Submit(ctx, newID(), crowdSpec(client))
	return nil, err
}

// tidy empties the queue, so that rounds are alike.
func (s *submissions) tidy(ctx context.Context) error {
	if err := s.runner.wipeRuns(ctx); err != nil {
		return err
	}
	s.store.Journal.Forget()
	return s.conn.revoke(ctx)
}

func (s *submissions) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(s.runner.wipeRuns(ctx), s.conn.close())
}

// wipeRuns deletes the runs with what is known of them.
func (r *runner) wipeRuns(ctx context.Context) error {
	return r.wipe(ctx, r.keys().Runs(), r.keys().EventsAll())
}

// recordFloor puts a key of its own for each run, as large as its record.
type recordFloor struct {
	runner *runner
	conn   *clientv3.Client
	prefix string
	record string
}

func (r *runner) openRecordFloor() (*recordFloor, error) {
	conn, err := r.cfg.plain()
	if err != nil {
		return nil, err
	}
	record := run.Record{Spec: crowdSpec(0), Status: run.Queued, QueuedAt: time.Now()}.Encode()
	return &recordFloor{runner: r, conn: conn, prefix: r.prefix + "floor/", record: string(record)}, nil
}

func (f *recordFloor) claim(ctx context.Context, _ int) (held, error) {
	_, err := f.conn.Put(ctx, f.prefix+newID(), f.record)
	return nil, err
}

func (f *recordFloor) tidy(ctx context.Context) error { return f.runner.wipe(ctx, f.prefix) }

func (f *recordFloor) close() error { return f.conn.Close() }

// admissions is the door for one client: it submits a run, which does not count, and
// waits for it as the executor.
type admissions struct {
	*submissions
	leader   *leader
	executor *runWatch // that sees which runs are admitted
	run      string    // that is waited for
}

// openAdmissions starts a coordinator under limits that leave room for all, and an
// executor.
func (r *runner) openAdmissions(ctx context.Context) (_ *admissions, err error) {
	s, err := r.openSubmissions()
	if err != nil {
		return nil, err
	}
	a := &admissions{submissions: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	unlimited := run.Unlimited
	if _, err := a.store.SetLimits(ctx, run.LimitsChange{MaxConcurrentRuns: &unlimited}); err != nil {
		return nil, err
	}
	if a.executor, err = r.watchRuns(ctx, func(s run.Status) bool { return s == run.NotStarted }); err != nil {
		return nil, err
	}
	a.leader, err = r.lead(ctx)
	return a, err
}

// prepare submits the next run.
func (a *admissions) prepare(ctx context.Context, _ int) error {
	a.run = newID()
	_, _, err := a.store.Submit(ctx, a.run, crowdSpec(0))
	return err
}

func (a *admissions) claim(ctx context.Context, _ int) (held, error) {
	_, err := a.executor.wait(ctx, a.run)
	return nil, err
}

func (a *admissions) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if a.leader != nil {
		errs = append(errs, a.leader.close())
	}
	if a.executor != nil {
		errs = append(errs, a.executor.close())
	}
	errs = append(errs, a.runner.wipe(ctx, a.runner.keys().Limits()))
	return errors.Join(append(errs, a.submissions.close())...)
}
