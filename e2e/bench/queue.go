//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// The kinds of load of the queue.
const (
	submit   = "submit"    // runs are submitted
	admit    = "admit"     // runs are submitted, the limits allow more, and an executor waits
	planIdle = "plan/idle" // plans where nothing has changed
	planLast = "plan/last" // plans where the last run of the queue may start
	planMany = "plan/many" // plans where very many may
	leading  = "leader"    // a coordinator that leads
)

const (
	// admitHold leaves the coordinator idle between two runs, and admitFactor makes
	// rounds longer: there are fewer than 50 runs in a second.
	admitHold   = 20 * time.Millisecond
	admitFactor = 4
)

// Bounds and default of the number of queued runs. Targets are for the default.
const (
	defaultQueued = 100_000
	maxQueued     = 1_000_000
)

// queueSuite measures the queue.
func queueSuite() suite {
	return suite{
		name: "queue", usage: "measure the queue and the coordinator, compared with plain writes to etcd",
		description: "submit: clients submit runs in a closed loop, in alternation with the floor: one\n" +
			"plain put for each run, as large as its record. admit: a coordinator leads, its\n" +
			"limits allow more runs, and an executor waits; the time is that from the response\n" +
			"to a submission until the executor has seen that its run may start. plan: what a\n" +
			"tick has to decide over a long queue with 50 limits of tags and 1,000 runs in\n" +
			"progress. leader: the memory that a coordinator takes over such a queue.\n\n" +
			"The coordinator runs in this process, below a prefix of its own: those that lead\n" +
			"elsewhere take no part.",
		flags: append(bench.Flags(quickUsage, bench.DurationUsage, "submit/64c"),
			bench.ClientsFlag([]int{1, 16, 64}),
			&cli.IntFlag{Name: "queued", Value: defaultQueued, Usage: "`NUMBER` of runs that wait while plans and the memory of a leader are measured; targets are for the default"},
		),
		config: rowsConfig,
		plan:   ofRows(func(c *cli.Context, cfg *bench.Config) ([]*row, error) { return queueRows(cfg, c.Int("queued")) }, writeQueue),
	}
}

// queueRows returns the rows of the queue that the configuration selects.
func queueRows(cfg *bench.Config, queued int) ([]*row, error) {
	if err := errors.Join(cfg.Fill(), bench.InRange("queued", queued, 1, maxQueued)); err != nil {
		return nil, err
	}
	planned := func(c bench.Case, queued int) *row { return &row{Row: bench.Row{Case: c}, Queued: queued} }
	var all []*row
	for _, n := range cfg.Clients {
		all = append(all, planned(bench.Case{Name: fmt.Sprintf("%s/%dc", submit, n), Kind: submit, Clients: n}, 0))
	}
	all = append(all, planned(bench.Case{Name: admit + "/1c", Kind: admit, Clients: 1, Hold: admitHold}, 0))
	for _, kind := range []string{planIdle, planLast, planMany, leading} {
		all = append(all, planned(bench.Case{Name: fmt.Sprintf("%s/%dq", kind, queued), Kind: kind}, queued))
	}
	return selected(cfg, all)
}

// submissionFigures are of runs that were submitted. The floor is a put of one record
// for each.
type submissionFigures struct {
	// PerSecond is the median of the rounds.
	PerSecond float64 `json:"runs_per_second"`
	// Submit is the time from the request to the response.
	Submit *bench.Latency `json:"submit"`
}

// measureSubmissions measures how fast runs are submitted.
func (r *runner) measureSubmissions(ctx context.Context, row *row) (err error) {
	s, err := bench.Labeled(ctx, "case", func(context.Context) (*submissions, error) { return r.openSubmissions() })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	f, err := r.openRecordFloor()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	load := func(d bench.Driver) bench.Load {
		return bench.Load{Driver: d, Clients: row.Clients, Duration: r.Duration}
	}
	what := fmt.Sprintf("a put per run/%dc", row.Clients)
	all, err := bench.Alternate(ctx, r.Rounds, load(s), load(f), what)
	if err != nil {
		return err
	}
	own := bench.Combine(all.Own)
	row.Reference, row.Ratio = bench.ReferenceOf(what, all.Reference), all.Ratio()
	row.Submissions = &submissionFigures{PerSecond: own.PerSecond, Submit: bench.Summarize(own.Claim)}
	return nil
}

// admissionFigures are of runs that were admitted by a coordinator that had nothing
// else to do.
type admissionFigures struct {
	// Seen is the time from the response to a submission until the executor that waits
	// for the run has seen that it was admitted.
	Seen *bench.Latency `json:"seen"`
	// SeenToPut is its p50 as a multiple of that of the floor's puts.
	SeenToPut *bench.Spread `json:"seen_p50_to_put_p50"`
}

// measureAdmissions measures how fast runs are admitted.
func (r *runner) measureAdmissions(ctx context.Context, row *row) (err error) {
	a, err := bench.Labeled(ctx, "case", r.openAdmissions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	own := bench.Load{Driver: a, Clients: 1, Hold: row.Hold, Duration: r.Duration * admitFactor}
	floor, err := r.SlowFloor(own)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, floor.Driver.Close()) }()
	const what = "floor/1c/1h"
	all, err := bench.Alternate(ctx, r.Rounds, own, floor, what)
	if err != nil {
		return err
	}
	row.Reference = bench.ReferenceOf(what, all.Reference)
	row.Admissions = &admissionFigures{Seen: bench.Summarize(bench.Combine(all.Own).Claim), SeenToPut: all.ClaimToPut()}
	return nil
}

// submissions is a driver that submits runs, which stay queued.
type submissions struct {
	runner *runner
	conn   *connection
	store  run.Store
}

// keys are the keys of everything that is written.
func (r *runner) keys() store.Keys { return store.NewKeys(r.Prefix) }

func (r *runner) openSubmissions() (*submissions, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	return &submissions{runner: r, conn: conn, store: r.runs(conn)}, nil
}

// runs returns the runs, through a connection.
func (r *runner) runs(conn *connection) run.Store {
	keys := r.keys()
	return run.Store{Backend: conn, Keys: keys, Journal: run.NewJournal(conn, keys, "bench/bench", 0)}
}

// newID returns the id of a new run.
func newID() string { return strings.ToLower(ulid.Make().String()) }

// Claim submits a run.
func (s *submissions) Claim(ctx context.Context, client int) (bench.Held, error) {
	_, _, err := s.store.Submit(ctx, newID(), backlogSpec(client))
	return nil, err
}

// Tidy empties the queue, so that rounds are alike.
func (s *submissions) Tidy(ctx context.Context) error {
	if err := s.runner.wipeRuns(ctx); err != nil {
		return err
	}
	s.store.Journal.Forget()
	return s.conn.revoke(ctx)
}

// Close deletes the runs, and closes the connection.
func (s *submissions) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bench.CloseTimeout)
	defer cancel()
	return errors.Join(s.runner.wipeRuns(ctx), s.conn.close())
}

// wipeRuns deletes the runs and their events.
func (r *runner) wipeRuns(ctx context.Context) error {
	return r.Wipe(ctx, r.keys().Runs(), r.keys().EventsAll())
}

// recordFloor is a driver that puts a key for each run, as large as its record.
type recordFloor struct {
	runner *runner
	conn   *clientv3.Client
	prefix string
	record string
}

func (r *runner) openRecordFloor() (*recordFloor, error) {
	conn, err := r.PlainClient()
	if err != nil {
		return nil, err
	}
	record := run.Record{Spec: backlogSpec(0), Status: run.Queued, QueuedAt: time.Now()}.Encode()
	return &recordFloor{runner: r, conn: conn, prefix: r.Prefix + "floor/", record: string(record)}, nil
}

// Claim puts a key.
func (f *recordFloor) Claim(ctx context.Context, _ int) (bench.Held, error) {
	_, err := f.conn.Put(ctx, f.prefix+newID(), f.record)
	return nil, err
}

// Tidy deletes the keys.
func (f *recordFloor) Tidy(ctx context.Context) error { return f.runner.Wipe(ctx, f.prefix) }

// Close closes the connection.
func (f *recordFloor) Close() error { return f.conn.Close() }

// admissions is a driver with one client, which submits a run, which does not count,
// and waits for it as the executor.
type admissions struct {
	*submissions
	leader   *leader
	executor *runWatch // of runs that are admitted
	run      string    // that is waited for
}

// openAdmissions starts a coordinator without limits, and an executor.
func (r *runner) openAdmissions(ctx context.Context) (_ *admissions, err error) {
	s, err := r.openSubmissions()
	if err != nil {
		return nil, err
	}
	a := &admissions{submissions: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	unlimited := run.Unlimited
	if _, _, err := a.store.SetLimits(ctx, run.LimitsChange{MaxConcurrentRuns: &unlimited}); err != nil {
		return nil, err
	}
	if a.executor, err = r.watchRuns(ctx, func(s run.Status) bool { return s == run.NotStarted }); err != nil {
		return nil, err
	}
	a.leader, err = r.lead(ctx)
	return a, err
}

// Prepare submits the next run.
func (a *admissions) Prepare(ctx context.Context, _ int) error {
	a.run = newID()
	_, _, err := a.store.Submit(ctx, a.run, backlogSpec(0))
	return err
}

// Claim waits until the run is admitted.
func (a *admissions) Claim(ctx context.Context, _ int) (bench.Held, error) {
	_, err := a.executor.wait(ctx, a.run)
	return nil, err
}

// Close stops coordinator and executor, and deletes the runs.
func (a *admissions) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bench.CloseTimeout)
	defer cancel()
	var errs []error
	if a.leader != nil {
		errs = append(errs, a.leader.close())
	}
	if a.executor != nil {
		errs = append(errs, a.executor.close())
	}
	errs = append(errs, a.runner.Wipe(ctx, a.runner.keys().Limits()))
	return errors.Join(append(errs, a.submissions.Close())...)
}

// writeQueue writes a report of the queue for people.
func writeQueue(w io.Writer, report *report) {
	report.WriteHead(w)
	var cells [][]string
	for _, r := range report.Rows {
		line := []string{r.Name, "", "", "", "", "", "", "", ""}
		switch {
		case r.Submissions != nil:
			line = append(line[:1],
				fmt.Sprintf("%.0f", r.Reference.PerSecond), fmt.Sprintf("%.0f", r.Submissions.PerSecond),
				fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High),
				r.Reference.Put.Cell(), r.Submissions.Submit.Cell(), "", "")
		case r.Admissions != nil:
			line[5], line[7] = r.Reference.Put.Cell(), r.Admissions.Seen.Cell()
		case r.Plan != nil:
			line[8] = r.Plan.Cell()
		default:
			continue // it has failed, or has a line below the table
		}
		cells = append(cells, line)
	}
	if len(cells) > 0 {
		bench.Columns(w, []string{
			"CASE", "FLOOR/S", "RUNS/S", "RATIO", "ROUNDS", "PUT MS", "SUBMIT MS", "SEEN MS", "PLAN MS",
		}, cells)
		fmt.Fprintln(w, "RATIO is the median of the rounds; times in ms are p50/p99.")
	}
	for _, r := range report.Rows {
		if l := r.Leader; l != nil {
			fmt.Fprintf(w, "%s: %s queued, %d in progress, %s of tags: %.1f MB of Go's heap, %.1f MB resident and %.1f MB at the peak, next to %.1f MB of the benchmark; all reasons noted after %.1fs\n",
				r.Name, text.Count(l.Queued, "run"), l.InProgress, text.Count(l.TagLimits, "limit"), l.Heap, l.Resident, l.Peak, l.Before, l.Seconds)
		}
	}
	report.WriteFailures(w)
}
