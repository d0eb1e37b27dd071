package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/sidecar/api"
)

// SubmitRun submits a run. A request without an id gets one, so that a
// request which is sent again finds its run.
func (c *Client) SubmitRun(ctx context.Context, r api.RunRequest) (*api.Run, error) {
	if r.ID == "" {
		r.ID = ulid.Make().String()
	}
	return ask[api.Run](ctx, c.call, http.MethodPost, api.RunsPath, r)
}

// Run returns a run.
func (c *Client) Run(ctx context.Context, id string) (*api.Run, error) {
	return ask[api.Run](ctx, c.call, http.MethodGet, runPath(id), nil)
}

// RunFilter selects runs. An empty field selects all.
type RunFilter struct {
	// Statuses of which a run has one.
	Statuses []string
	// Tags that a run has, all of them.
	Tags map[string]string
}

// runPageSize is how many runs are requested at once: the most that is allowed, since the
// server reads all of them for each page.
const runPageSize = 10_000

// Runs lists runs by id, or in the order of the queue if only queued ones are selected. It
// requests all pages. Records that can't be read are listed separately.
func (c *Client) Runs(ctx context.Context, f RunFilter) ([]api.Run, []api.Unreadable, error) {
	query := url.Values{"limit": {strconv.Itoa(runPageSize)}}
	if len(f.Statuses) > 0 {
		query.Set("status", strings.Join(f.Statuses, ","))
	}
	for key, value := range f.Tags {
		query.Add("tag", key+"="+value)
	}
	slices.Sort(query["tag"])
	var all []api.Run
	for {
		var page api.RunList
		if _, err := c.call(ctx, http.MethodGet, api.RunsPath+"?"+query.Encode(), nil, &page); err != nil {
			return nil, nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, page.Unreadable, nil
		}
		query.Set("cursor", page.Next)
	}
}

// WhyRun returns what a run waits for.
func (c *Client) WhyRun(ctx context.Context, id string) (*api.RunWhy, error) {
	var why api.RunWhy
	if _, err := c.call(ctx, http.MethodGet, runPath(id)+"/why", nil, &why); err != nil {
		return nil, err
	}
	return &why, nil
}

// RunEvents returns what has happened to a run, in order.
func (c *Client) RunEvents(ctx context.Context, id string) ([]api.RunEvent, error) {
	var list api.List[api.RunEvent]
	if _, err := c.call(ctx, http.MethodGet, runPath(id)+"/events", nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// CancelRun ends a run. One that was canceled already is no error.
func (c *Client) CancelRun(ctx context.Context, id string, r api.RunCancel) (*api.Run, error) {
	return ask[api.Run](ctx, c.call, http.MethodPost, runPath(id)+"/cancel", r)
}

// RetryRun retries a run that has failed or was canceled, or some of its step instances. It
// is no error if they are being retried already.
func (c *Client) RetryRun(ctx context.Context, id string, r api.RunRetry) (*api.Run, error) {
	return ask[api.Run](ctx, c.call, http.MethodPost, runPath(id)+"/retry", r)
}

// StartRun makes the caller the executor of a run that was admitted. A request without a
// name for the executor gets one, so that a request which is sent again finds its attempt.
func (c *Client) StartRun(ctx context.Context, id string, r api.RunStart) (*api.StartedRun, error) {
	if r.Executor == "" {
		r.Executor = ulid.Make().String()
	}
	return c.attemptCall(ctx, runPath(id)+"/start", r)
}

// Heartbeat reports that the executor of an attempt lives. An error of code run_lost or
// run_ended means that the run is no longer its own.
func (c *Client) Heartbeat(ctx context.Context, id string, fence int64) (*api.StartedRun, error) {
	return c.attemptCall(ctx, runPath(id)+"/heartbeat", api.RunHeartbeat{Fence: fence})
}

// FinishRun reports how an attempt has ended.
func (c *Client) FinishRun(ctx context.Context, id string, r api.RunFinish) (*api.Run, error) {
	return ask[api.Run](ctx, c.call, http.MethodPost, runPath(id)+"/finish", r)
}

// Limits returns the limits under which runs are admitted.
func (c *Client) Limits(ctx context.Context) (*api.Limits, error) {
	return c.limitsCall(ctx, http.MethodGet, nil, nil)
}

// SetLimits replaces the limits: what is left out gets its default.
func (c *Client) SetLimits(ctx context.Context, limits api.LimitsChange, when ...Condition) (*api.Limits, error) {
	return c.limitsCall(ctx, http.MethodPut, limits, when)
}

// ChangeLimits changes those of the limits that the change names, and returns all.
func (c *Client) ChangeLimits(ctx context.Context, change api.LimitsChange, when ...Condition) (*api.Limits, error) {
	return c.limitsCall(ctx, http.MethodPatch, change, when)
}

func (c *Client) limitsCall(ctx context.Context, method string, in any, when []Condition) (*api.Limits, error) {
	var l api.Limits
	var err error
	if l.Revision, err = c.tagged(ctx, method, api.LimitsPath, in, &l, when); err != nil {
		return nil, err
	}
	return &l, nil
}

// ask makes a call that is answered with a T.
func ask[T any](ctx context.Context, call func(ctx context.Context, method, path string, in, out any) (time.Duration, error), method, path string, in any) (*T, error) {
	out := new(T)
	if _, err := call(ctx, method, path, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (c *Client) attemptCall(ctx context.Context, path string, in any) (*api.StartedRun, error) {
	var r api.StartedRun
	sent, err := c.call(ctx, http.MethodPost, path, in, &r)
	if err != nil {
		return nil, err
	}
	r.Sent(sent)
	return &r, nil
}

func runPath(id string) string { return api.RunsPath + "/" + escape(id) }

// Coordinator returns the coordinator's leader and its other candidates.
func (c *Client) Coordinator(ctx context.Context) (*api.Coordinator, error) {
	var co api.Coordinator
	if _, err := c.call(ctx, http.MethodGet, api.CoordinatorPath, nil, &co); err != nil {
		return nil, err
	}
	return &co, nil
}

// FollowRunEvents calls f with the events of a run, first those that exist and then each as
// it comes, in order and none twice. It returns nil after all events of a run that has ended,
// or when f returns [io.EOF], and otherwise what f returns. While the server can't be reached
// it waits for it.
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
		case err != nil && !passes(err):
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
