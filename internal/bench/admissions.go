package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// admissions is the door for one client: it submits a run, which does not count, and
// waits for it as the executor.
type admissions struct {
	*submissions
	leader   *leader
	executor *executor
	run      string // that is waited for
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
	if a.executor, err = r.openExecutor(ctx); err != nil {
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
	return nil, a.executor.wait(ctx, a.run)
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

// executor sees which runs are admitted, by one watch over all runs, on a
// connection of its own.
type executor struct {
	keys store.Keys
	conn *connection
	feed *store.Feed
	// admitted are ids of runs. One can come again after the watch was interrupted.
	admitted chan string
	*part
}

func (r *runner) openExecutor(ctx context.Context) (*executor, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	e := &executor{keys: r.keys(), conn: conn, admitted: make(chan string)}
	e.feed = store.NewFeed(conn, e.keys.Runs(), hclog.NewNullLogger(), func() {})
	e.part = start(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return e.feed.Run(ctx) })
		g.Go(func() error { return e.read(ctx) })
		return g.Wait()
	})
	return e, nil
}

// read takes what the watch delivers.
func (e *executor) read(ctx context.Context) error {
	for m := range e.feed.Messages() {
		if m.Snapshot != nil {
			for _, kv := range m.Snapshot.KVs {
				if err := e.take(ctx, kv); err != nil {
					return err
				}
			}
		}
		for _, ev := range m.Events {
			if ev.Type == mvccpb.Event_DELETE {
				continue
			}
			if err := e.take(ctx, ev.Kv); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// take passes a run on if it was admitted.
func (e *executor) take(ctx context.Context, kv *mvccpb.KeyValue) error {
	r, err := run.Decode(e.keys, kv)
	if err != nil || r.Status != run.NotStarted {
		return err
	}
	select {
	case e.admitted <- r.ID:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait returns once a run was seen to be admitted.
func (e *executor) wait(ctx context.Context, id string) error {
	for {
		select {
		case seen := <-e.admitted:
			if seen == id {
				return nil
			}
		case <-e.done:
			return fmt.Errorf("the executor has ended: %w", e.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (e *executor) close() error {
	e.stop()
	return e.conn.close()
}
