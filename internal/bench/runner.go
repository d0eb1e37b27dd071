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

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// CloseTimeout bounds what is done after a case or after all of them.
const CloseTimeout = 10 * time.Second

// Runner measures on one etcd.
type Runner struct {
	Config
	// Prefix is that of all keys that are written.
	Prefix string

	plain *clientv3.Client
	pools registry.Registry
	close func() error
}

// NewRunner connects to etcd.
func NewRunner(ctx context.Context, cfg Config) (*Runner, error) {
	if err := cfg.Fill(); err != nil {
		return nil, err
	}
	r := &Runner{Config: cfg}
	base := cfg.Etcd.Prefix
	if base == "" {
		base = store.DefaultPrefix
	}
	r.Prefix = store.NewKeys(base).Prefix() + "bench/" + strings.ToLower(ulid.Make().String()) + "/"
	b, keys, err := instance.Connect(ctx, r.Options())
	if err != nil {
		return nil, err
	}
	r.pools, r.close = registry.Registry{Backend: b, Keys: keys}, b.Close
	if r.plain, err = r.PlainClient(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return r, nil
}

// Options are those of an instance that takes part in the benchmark.
func (r *Runner) Options() instance.Options {
	e := r.Etcd
	return instance.Options{
		Endpoints: e.Endpoints, TLS: e.TLS, Username: e.Username, Password: e.Password,
		Prefix: r.Prefix, Role: "bench",
	}
}

// Measure measures rows with a function, one after another, until ctx ends: then the
// report holds those measured before, and there is an error. A case that fails is a
// row with an error, and the others are measured.
func Measure[R Result](ctx context.Context, r *Runner, rows []R, measure func(context.Context, R) error) (*Report[R], error) {
	s, err := r.Status(ctx)
	if err != nil {
		return nil, err
	}
	report := &Report[R]{
		Began: time.Now(), Etcd: s.Version, Endpoints: r.Etcd.Endpoints,
		Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
		RoundSeconds: r.Duration.Seconds(), Rounds: r.Rounds,
		Rows: []R{},
	}
	for i, row := range rows {
		began := time.Now()
		err := measure(ctx, row)
		if ctx.Err() != nil {
			report.Seconds = time.Since(report.Began).Seconds()
			return report, context.Cause(ctx)
		}
		line := fmt.Sprintf("%d/%d %s", i+1, len(rows), row.row().Name)
		if err != nil {
			row.row().Error = err.Error()
			line += " failed: " + row.row().Error
		} else {
			line += fmt.Sprintf(": %s (%s)", strings.Join(row.Summary(), ", "), text.Duration(time.Since(began)))
		}
		report.Rows = append(report.Rows, row)
		r.Progress(line)
	}
	report.Seconds = time.Since(report.Began).Seconds()
	return report, nil
}

// MeasureClaims measures a case of claims.
func (r *Runner) MeasureClaims(ctx context.Context, row *Row) error {
	switch row.Kind {
	case memory:
		return r.measureMemory(ctx, row)
	case history:
		return r.measureHistory(ctx, row)
	}
	return r.measureRounds(ctx, row)
}

// SetPools creates pools with a limit, or sets it.
func (r *Runner) SetPools(ctx context.Context, names []string, limit int) error {
	for _, name := range names {
		if _, err := r.pools.Set(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return fmt.Errorf("set pool %s: %w", name, err)
		}
	}
	return nil
}

// Status returns the status of the first endpoint.
func (r *Runner) Status(ctx context.Context) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, CloseTimeout)
	defer cancel()
	s, err := r.plain.Status(ctx, r.Etcd.Endpoints[0])
	if err != nil {
		return nil, fmt.Errorf("get the status of etcd: %w", err)
	}
	return s, nil
}

// Database returns the size of the first endpoint's database in megabytes, and how
// much of that is in use.
func (r *Runner) Database(ctx context.Context) (size, inUse float64, err error) {
	s, err := r.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	return float64(s.DbSize) / (1 << 20), float64(s.DbSizeInUse) / (1 << 20), nil
}

// Wipe deletes all keys below prefixes.
func (r *Runner) Wipe(ctx context.Context, prefixes ...string) error {
	for _, p := range prefixes {
		if _, err := r.plain.Delete(ctx, p, clientv3.WithPrefix()); err != nil {
			return fmt.Errorf("delete the benchmark's keys below %s: %w", p, err)
		}
	}
	return nil
}

// Close deletes everything that was written, and closes the connections.
func (r *Runner) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	return errors.Join(r.Wipe(ctx, r.Prefix), r.plain.Close(), r.close())
}
