package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// FollowRunEvents calls f with the events of a run, first those that there are and
// then each as it comes, in order and none twice. It returns nil when the run has
// ended and they are told, or f returns [io.EOF], and else what f returns. While the
// server is away it waits for it.
func (c *Client) FollowRunEvents(ctx context.Context, id string, f func(api.RunEvent) error) error {
	pause, last := watchPause, ""
	for {
		ended, err := c.followRunOnce(ctx, id, &last, func(ev api.RunEvent) error {
			pause = watchPause
			return f(ev)
		})
		switch {
		case ended && errors.Is(err, io.EOF):
			return nil
		case ended:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && problem.CodeOf(err).Status() < http.StatusInternalServerError:
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
			pause = min(2*pause, maxWatchPause)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// followRunOnce follows the events of a run on one stream, after the one with the id
// last, which it keeps up to date. If that has not ended, the stream has.
func (c *Client) followRunOnce(ctx context.Context, id string, last *string, f func(api.RunEvent) error) (ended bool, err error) {
	var result error
	end := func(why error) error {
		ended, result = true, why
		return io.EOF
	}
	err = c.stream(ctx, runPath(id)+"/events", *last, func(m streamed) error {
		switch m.event {
		case api.EventRunEnd:
			return end(nil)
		case api.EventRunFailed:
			var p api.Problem
			if err := json.Unmarshal(m.data, &p); err != nil {
				return c.failed(ctx, err)
			}
			return end(p.Err())
		case api.EventStopping:
			return nil // and the stream ends
		}
		var ev api.RunEvent
		if err := json.Unmarshal(m.data, &ev); err != nil {
			return c.failed(ctx, err)
		}
		if err := f(ev); err != nil {
			return end(err)
		}
		*last = m.id
		return nil
	})
	if ended {
		return true, result
	}
	return false, err
}
