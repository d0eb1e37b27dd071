package sidecar

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// firstPause and lastPause are those between tries to reach etcd.
	firstPause, lastPause = 200 * time.Millisecond, 5 * time.Second
)

// open reaches etcd, trying until ctx ends while it does not answer. That etcd
// refuses, or that another process is this host's sidecar, is not for waiting.
func (s *Server) open(ctx context.Context, a *api) (*berth.Client, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, lastPause
	for {
		client, err := berth.Open(ctx, s.cfg.Options)
		if err == nil {
			return client, nil
		}
		if code := problem.CodeOf(err); code != problem.EtcdUnavailable && code != problem.EtcdFull {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a.missing.Store(problem.New(problem.CodeOf(err), "%w", err))
		wait := pause.NextBackOff()
		s.log.Warn("etcd can't be reached, trying again", keyError, err, keyRetry, wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
