package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// closeTimeout bounds what is done after a case or after all of them.
const closeTimeout = 10 * time.Second

// runner is one run of the benchmark.
type runner struct {
	cfg    Config
	prefix string // of everything that is written
	plain  *clientv3.Client
	admin  *berth.Admin
}

// Run measures and returns what was measured; with an error, what was until
// then. A case that fails is a row with an error, and the others go on.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	r, err := newRunner(ctx, cfg)
	if err != nil {
		return nil, err
	}
	report, err := r.run(ctx)
	return report, errors.Join(err, r.close())
}

func newRunner(ctx context.Context, cfg Config) (*runner, error) {
	r := &runner{cfg: cfg}
	base := cfg.Etcd.Prefix
	if base == "" {
		base = store.DefaultPrefix
	}
	r.prefix = store.NewKeys(base).Prefix() + "bench/" + strings.ToLower(ulid.Make().String()) + "/"
	var err error
	if r.admin, err = berth.Connect(ctx, r.options()); err != nil {
		return nil, err
	}
	if r.plain, err = cfg.plain(); err != nil {
		return nil, errors.Join(err, r.admin.Close())
	}
	return r, nil
}

// options are those of an instance for this run.
func (r *runner) options() berth.Options {
	e := r.cfg.Etcd
	return berth.Options{
		Endpoints: e.Endpoints, TLS: e.TLS, Username: e.Username, Password: e.Password,
		Prefix: r.prefix, Role: "bench",
	}
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	report, err := r.newReport(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range r.cfg.cases() {
		r.cfg.Progress(c, nil)
		row := r.measure(ctx, c)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		report.Rows = append(report.Rows, row)
		r.cfg.Progress(c, row)
	}
	report.Targets = judge(report.Rows)
	report.Seconds = time.Since(report.Began).Seconds()
	return report, err
}

// newReport says where and when.
func (r *runner) newReport(ctx context.Context) (*Report, error) {
	s, err := r.status(ctx)
	if err != nil {
		return nil, err
	}
	report := &Report{
		Began: time.Now(), Etcd: s.Version, Endpoints: r.cfg.Etcd.Endpoints,
		Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
		RoundSeconds: r.cfg.Duration.Seconds(), Rounds: r.cfg.Rounds,
		Rows: []*Row{}, Targets: []Target{},
	}
	if r.cfg.Suite == Steps {
		report.RoundSeconds = 0
	}
	return report, nil
}

// status asks the first endpoint about itself.
func (r *runner) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	s, err := r.plain.Status(ctx, r.cfg.Etcd.Endpoints[0])
	if err != nil {
		return nil, fmt.Errorf("ask etcd for its status: %w", err)
	}
	return s, nil
}

// measure returns the row of a case, with what went wrong if something did.
func (r *runner) measure(ctx context.Context, c Case) *Row {
	row := &Row{Case: c}
	how := r.measureRounds
	switch c.Kind {
	case memory:
		how = r.measureMemory
	case history:
		how = r.measureHistory
	case planIdle, planLast, planMany:
		how = r.measurePlans
	case leading:
		how = r.measureLeader
	}
	if c.Workers > 0 {
		how = r.measureSteps
	}
	if err := how(ctx, row); err != nil {
		row.Error = err.Error()
	}
	return row
}

// setPools makes the pools of a case what it needs.
func (r *runner) setPools(ctx context.Context, names []string, limit int) error {
	for _, name := range names {
		if _, err := r.admin.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return fmt.Errorf("set pool %s: %w", name, err)
		}
	}
	return nil
}

// close deletes what the run has written.
func (r *runner) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(r.wipe(ctx, r.prefix), r.plain.Close(), r.admin.Close())
}

// wipe deletes everything below prefixes.
func (r *runner) wipe(ctx context.Context, prefixes ...string) error {
	for _, p := range prefixes {
		if _, err := r.plain.Delete(ctx, p, clientv3.WithPrefix()); err != nil {
			return fmt.Errorf("delete what the benchmark left below %s: %w", p, err)
		}
	}
	return nil
}
