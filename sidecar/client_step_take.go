package sidecar

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/berthhq/berth/sidecar/api"
	"github.com/oklog/ulid/v2"
)

// ReadySteps lists the step instances that an executor can take of a queue, in order.
// If there is none, it waits for some, for as long as it is told.
func (c *Client) ReadySteps(ctx context.Context, queue string, wait time.Duration) ([]api.ReadyStep, error) {
	path := api.QueuesPath + "/" + escape(queue) + "/ready"
	if wait > 0 {
		path += "?" + url.Values{"wait": {api.Duration(wait).String()}}.Encode()
	}
	var list api.ReadyList
	if _, err := c.call(ctx, http.MethodGet, path, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// TakeStep has the asker be the executor of a step instance. A request without a name
// for the executor gets one, so that a request which is sent again finds its attempt.
func (c *Client) TakeStep(ctx context.Context, run, step string, index int, r api.StepTake) (*api.TakenStep, error) {
	if r.Executor == "" {
		r.Executor = ulid.Make().String()
	}
	t, sent, err := c.takenCall(ctx, stepPath(run, step, strconv.Itoa(index), "take"), r)
	if err != nil || !isLong(sent) {
		return t, err
	}
	if again, err := c.HeartbeatStep(ctx, run, step, index, t.Fence); err == nil {
		t.Deadline = max(t.Deadline, again.Deadline)
	} // else its executor is told with its next heartbeat
	return t, nil
}

// HeartbeatStep says that the executor of an attempt lives. An error of the codes
// step_lost and run_ended says that it has to stop.
func (c *Client) HeartbeatStep(ctx context.Context, run, step string, index int, fence int64) (*api.TakenStep, error) {
	t, _, err := c.takenCall(ctx, stepPath(run, step, strconv.Itoa(index), "heartbeat"), api.StepHeartbeat{Fence: fence})
	return t, err
}

// FinishStep tells how an attempt has ended.
func (c *Client) FinishStep(ctx context.Context, run, step string, index int, r api.StepFinish) (*api.StepInstance, error) {
	return c.stepCall(ctx, stepPath(run, step, strconv.Itoa(index), "finish"), r)
}

func (c *Client) takenCall(ctx context.Context, path string, in any) (*api.TakenStep, time.Duration, error) {
	var t api.TakenStep
	sent, err := c.call(ctx, http.MethodPost, path, in, &t)
	if err != nil {
		return nil, sent, err
	}
	t.Sent(sent)
	return &t, sent, nil
}
