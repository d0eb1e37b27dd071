package engine

import (
	"context"

	"github.com/berthhq/berth/internal/problem"
)

// ask has the loop answer a question, once claims can be made.
func ask[T any](ctx context.Context, e *Engine, f func() T) (answer T, err error) {
	if err := e.Ready(ctx); err != nil {
		return answer, unavailable(ctx, err)
	}
	reply := make(chan T, 1)
	if !e.inbox.put(func() { reply <- f() }) {
		return answer, errStopped
	}
	select {
	case answer = <-reply:
		return answer, nil
	case <-ctx.Done():
		return answer, unavailable(ctx, context.Cause(ctx))
	case <-e.stopped:
		return answer, errStopped
	}
}

// unavailable returns the error for a caller whose question was not answered before its context has ended.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet: %w", err)
}
