package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/store"
)

// connection is one of berth's to etcd. It knows the leases that were granted
// through it, since what hangs on them is gone long before they end.
type connection struct {
	*store.Client
	requests *prometheus.Registry // counts those that went through it

	mu     sync.Mutex
	leases []store.LeaseID
}

// connect opens one.
func (r *runner) connect() (*connection, error) {
	e := r.cfg.Etcd
	requests := prometheus.NewRegistry()
	c, err := store.NewClient(store.Config{
		Endpoints: e.Endpoints, TLS: e.TLS, Username: e.Username, Password: e.Password, Registerer: requests,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return &connection{Client: c, requests: requests}, nil
}

// Grant makes a lease.
func (c *connection) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	id, granted, err := c.Client.Grant(ctx, ttl)
	if err == nil {
		c.mu.Lock()
		c.leases = append(c.leases, id)
		c.mu.Unlock()
	}
	return id, granted, err
}

// revoke ends the leases so far.
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

// close ends the leases, and the connection.
func (c *connection) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(c.revoke(ctx), c.Close())
}
