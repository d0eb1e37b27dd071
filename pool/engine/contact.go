package engine

import (
	"context"
	"errors"
	"sync"
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

// contact knows when etcd has answered last, and its latest revision in an answer.
type contact struct {
	backend store.Backend
	keys    store.Keys
	flights singleflight.Group

	mu     sync.Mutex // guards what follows
	last   time.Time  // of the request that was answered; when the engine was made before that
	none   bool       // the last transaction had no answer
	seen   written
	silent bool // it had not answered for longer than what is remembered counts, before its last answer
}

func newContact(e *Engine) *contact {
	return &contact{backend: e.cfg.Backend, keys: e.cfg.Keys, last: e.start}
}

// answered records that etcd has answered a request of a time.
func (c *contact) answered(asked time.Time, header *pb.ResponseHeader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked.Sub(c.last) > rememberFor {
		c.silent = true
	}
	if asked.After(c.last) {
		c.last = asked
	}
	c.none = false
	c.seen.at(header.Revision, c.backend.History())
}

// failed records the error of a transaction.
func (c *contact) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.none = store.OutcomeUnknown(err) && !errors.Is(err, store.ErrNoSpace)
}

// away reports whether etcd was asked last without an answer, and has not answered for some time.
func (c *contact) away() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.none && time.Since(c.last) >= store.StaleAfter
}

// latest returns the latest revision that an answer has shown, 0 if none has of the present history of etcd.
func (c *contact) latest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.at(0, c.backend.History())
	return c.seen.revision
}

// age returns for how long etcd is not known to have answered, since the engine was made at most.
func (c *contact) age() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.last)
}

// ask asks etcd, and waits for the answer until ctx ends.
func (c *contact) ask(ctx context.Context) {
	done := c.flights.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		asked := time.Now()
		if resp, err := c.backend.Range(ctx, &pb.RangeRequest{Key: []byte(c.keys.Pools()), CountOnly: true}); err == nil {
			c.answered(asked, resp.Header)
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Age returns how long ago etcd has answered a request last. If that is more than a second, it is asked now.
func (e *Engine) Age(ctx context.Context) time.Duration {
	if e.contact.age() > askAfter {
		e.contact.ask(ctx)
	}
	return e.contact.age()
}

// gap reports whether etcd has not answered for some time, or had not before its last answer: once for each time.
func (c *contact) gap(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.silent
	c.silent = false
	return was || time.Since(c.last) > d
}
