package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator"
)

const (
	// leaderStart bounds the time until a coordinator leads, and leaderLook is how
	// often it is asked.
	leaderStart = 30 * time.Second
	leaderLook  = 5 * time.Millisecond
	// startTimeout is longer than any case: runs that nobody starts stay admitted.
	startTimeout = 24 * time.Hour
)

// leader is a coordinator in this process, on a connection of its own.
type leader struct {
	conn *connection
	*part
}

// lead starts one, and returns when it leads.
func (r *runner) lead(ctx context.Context) (*leader, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	c := coordinator.New(coordinator.Config{
		Backend: conn, Keys: r.keys(), Host: "bench-leader", StartTimeout: startTimeout,
		CompactInterval: -1, // etcd may be somebody else's
	})
	l := &leader{conn: conn, part: start(ctx, c.Run)}
	ctx, cancel := context.WithTimeout(ctx, leaderStart)
	defer cancel()
	for !c.Leading() {
		select {
		case <-time.After(leaderLook):
			continue
		case <-l.done:
			err = l.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("the coordinator does not lead: %w", err), l.close())
	}
	return l, nil
}

func (l *leader) close() error {
	l.stop()
	return l.conn.close()
}
