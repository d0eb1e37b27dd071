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

// missingOf makes of what is waited for at the start the problem of requests that
// come meanwhile: one that may be over soon. Another process that has the name may
// be one that has ended; if it has not, the server does.
func missingOf(why error) *problem.Error {
	switch code := problem.CodeOf(why); code {
	case problem.EtcdUnavailable, problem.EtcdFull, problem.EtcdDenied:
		return problem.New(code, "%w", why)
	}
	return problem.New(problem.Unavailable, "%w", why)
}

// open reaches etcd, trying until ctx ends while it does not answer. That etcd
// refuses, or that another process is this host's sidecar, is not for waiting.
func (s *Server) open(ctx context.Context, a *apiServer) (*berth.Client, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, lastPause
	options := s.cfg.Options
	options.OnWait = func(why error) { a.missing.Store(missingOf(why)) }
	for {
		client, err := berth.Open(ctx, options)
		if err == nil {
			return client, nil
		}
		if code := problem.CodeOf(err); code != problem.EtcdUnavailable && code != problem.EtcdFull {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a.missing.Store(missingOf(err))
		wait := pause.NextBackOff()
		s.log.Warn("etcd can't be reached, trying again", keyError, err, keyRetry, wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
