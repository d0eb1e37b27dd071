//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/store"
)

// connection is a connection of berth to etcd. It keeps the leases that were granted
// through it, to revoke them at the end: their keys are deleted long before they expire.
type connection struct {
	*store.Client
	requests *prometheus.Registry // counts its requests

	mu     sync.Mutex
	leases []store.LeaseID
}

// connect opens a connection.
func (r *runner) connect() (*connection, error) {
	e := r.Etcd
	requests := prometheus.NewRegistry()
	c, err := store.NewClient(store.Config{
		Endpoints: e.Endpoints, TLS: e.TLS, Username: e.Username, Password: e.Password, Registerer: requests,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return &connection{Client: c, requests: requests}, nil
}

// Grant grants a lease. It does not end with ctx: a lease whose id is not known could not be
// revoked.
func (c *connection) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bench.CloseTimeout)
	defer cancel()
	id, granted, err := c.Client.Grant(ctx, ttl)
	if err == nil {
		c.mu.Lock()
		c.leases = append(c.leases, id)
		c.mu.Unlock()
	}
	return id, granted, err
}

// revoke revokes the leases so far.
func (c *connection) revoke(ctx context.Context) error {
	c.mu.Lock()
	ids := slices.Clone(c.leases)
	c.leases = c.leases[:0]
	c.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, c.Revoke(ctx, id))
	}
	return errors.Join(errs...)
}

// close revokes the leases, and closes the connection.
func (c *connection) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bench.CloseTimeout)
	defer cancel()
	return errors.Join(c.revoke(ctx), c.Close())
}

// part runs asynchronously until it is stopped.
type part struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	err    error         // why, when it has ended
}

// start runs a part. It outlives the context, and has the labels of that in profiles.
func start(ctx context.Context, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = run(ctx)
	}()
	return p
}

// stop stops a part, and waits for its end.
func (p *part) stop() {
	p.cancel()
	<-p.done
}

// runWatch watches all runs, on a connection of its own.
type runWatch struct {
	keys  store.Keys
	conn  *connection
	feed  *store.Feed
	wants func(run.Status) bool
	// seen delivers the runs with a status that is wanted. A run can be delivered twice
	// after the watch was interrupted.
	seen chan *run.Run
	*part
}

// watchRuns watches for runs with a status that is wanted.
func (r *runner) watchRuns(ctx context.Context, wants func(run.Status) bool) (*runWatch, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	w := &runWatch{keys: r.keys(), conn: conn, wants: wants, seen: make(chan *run.Run)}
	w.feed = store.NewFeed(conn, w.keys.Runs(), hclog.NewNullLogger(), func() {})
	w.part = start(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return w.feed.Run(ctx) })
		g.Go(func() error { return w.read(ctx) })
		return g.Wait()
	})
	return w, nil
}

// read reads what the watch delivers.
func (w *runWatch) read(ctx context.Context) error {
	for m := range w.feed.Messages() {
		if m.Snapshot != nil {
			for _, kv := range m.Snapshot.KVs {
				if err := w.take(ctx, kv); err != nil {
					return err
				}
			}
		}
		for _, ev := range m.Events {
			if ev.Type == mvccpb.Event_DELETE {
				continue
			}
			if err := w.take(ctx, ev.Kv); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// take delivers a run if it is wanted.
func (w *runWatch) take(ctx context.Context, kv *mvccpb.KeyValue) error {
	r, err := run.Decode(w.keys, kv)
	if err != nil || !w.wants(r.Status) {
		return err
	}
	select {
	case w.seen <- r:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait returns a run when its status is wanted.
func (w *runWatch) wait(ctx context.Context, id string) (*run.Run, error) {
	for {
		select {
		case r := <-w.seen:
			if r.ID == id {
				return r, nil
			}
		case <-w.done:
			return nil, fmt.Errorf("the watch over the runs has ended: %w", w.err)
		case <-ctx.Done():
			return nil, fmt.Errorf("run %s was not seen: %w", id, context.Cause(ctx))
		}
	}
}

func (w *runWatch) close() error {
	w.stop()
	return w.conn.close()
}
