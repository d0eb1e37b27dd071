package bench

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

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
