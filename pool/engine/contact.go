package engine

import (
	"context"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/singleflight"

	"github.com/berthhq/berth/internal/store"
)

const (
	// askAfter is how long ago etcd has answered at most without being asked again by who wants to know.
	askAfter = time.Second
	// askTimeout bounds that question.
	askTimeout = time.Second
)

// contact knows when etcd has answered last.
type contact struct {
	backend store.Backend
	keys    store.Keys
	start   time.Time
	last    atomic.Int64 // nanoseconds after start, of the request that was answered
	flights singleflight.Group
}

func newContact(e *Engine) *contact {
	return &contact{backend: e.cfg.Backend, keys: e.cfg.Keys, start: e.start}
}

// answered records that etcd has answered a request of a time.
func (c *contact) answered(asked time.Time) {
	at := int64(asked.Sub(c.start))
	for {
		last := c.last.Load()
		if at <= last || c.last.CompareAndSwap(last, at) {
			return
		}
	}
}

// age returns for how long etcd is not known to have answered, since the engine was made at most.
func (c *contact) age() time.Duration { return time.Since(c.start) - time.Duration(c.last.Load()) }

// ask asks etcd, and waits for the answer until ctx ends.
func (c *contact) ask(ctx context.Context) {
	done := c.flights.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		asked := time.Now()
		if _, err := c.backend.Range(ctx, &pb.RangeRequest{Key: []byte(c.keys.Pools()), CountOnly: true}); err == nil {
			c.answered(asked)
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Age returns how long ago etcd has answered a request last. If that is more than a second, it is asked now.
func (e *Engine) Age(ctx context.Context) (time.Duration, error) {
	if e.contact.age() > askAfter {
		e.contact.ask(ctx)
	}
	return e.contact.age(), nil
}
