package engine

import (
	"context"

	"github.com/berthhq/berth/internal/problem"
)

// await has the loop run f, which replies now or later, or closes the channel. It returns the reply, or why there is none: ctx or
// the engine has ended.
func await[T any](ctx context.Context, e *Engine, f func(reply chan<- T)) (answer T, err error) {
	reply := make(chan T, 1)
	if !e.inbox.put(func() { f(reply) }) {
		return answer, errStopped
	}
	select {
	case answer = <-reply:
		return answer, nil
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	case <-e.stopped:
		return answer, errStopped
	}
}

// ask has the loop answer a question, once claims can be made.
func ask[T any](ctx context.Context, e *Engine, f func() T) (T, error) {
	return askLater(ctx, e, func(reply chan<- T) { reply <- f() })
}

// askLater is [ask] for an answer that may come later.
func askLater[T any](ctx context.Context, e *Engine, f func(reply chan<- T)) (answer T, err error) {
	if err = e.Ready(ctx); err == nil {
		answer, err = await(ctx, e, f)
	}
	if err != nil && ctx.Err() != nil {
		err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet: %w", err)
	}
	return answer, err
}
