package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/sidecar/api"
)

// Steps returns the steps of a run, in the order in which they can run. States that can't be
// read are listed separately.
func (c *Client) Steps(ctx context.Context, run string) ([]api.Step, []api.Unreadable, error) {
	var list api.StepList
	if _, err := c.call(ctx, http.MethodGet, stepPath(run), nil, &list); err != nil {
		return nil, nil, err
	}
	return list.Items, list.Unreadable, nil
}

// stepPageSize is how many instances are requested at once: the most that is allowed.
const stepPageSize = 10_000

// StepInstances lists the instances of a step by index; with statuses, those of one of
// them. It requests all pages.
func (c *Client) StepInstances(ctx context.Context, run, step string, statuses ...string) ([]api.StepInstance, []api.Unreadable, error) {
	query := url.Values{"limit": {strconv.Itoa(stepPageSize)}}
	if len(statuses) > 0 {
		query.Set("status", strings.Join(statuses, ","))
	}
	var all []api.StepInstance
	var bad []api.Unreadable
	for {
		var page api.StepInstanceList
		if _, err := c.call(ctx, http.MethodGet, stepPath(run, step)+"?"+query.Encode(), nil, &page); err != nil {
			return nil, nil, err
		}
		all, bad = append(all, page.Items...), append(bad, page.Unreadable...)
		if page.Next == "" {
			return all, bad, nil
		}
		query.Set("cursor", page.Next)
	}
}

// StepInstance returns an instance of a step, with what it is to do.
func (c *Client) StepInstance(ctx context.Context, run, step string, index int) (*api.StepWork, error) {
	var w api.StepWork
	if _, err := c.call(ctx, http.MethodGet, stepPath(run, step, strconv.Itoa(index)), nil, &w); err != nil {
		return nil, err
	}
	return &w, nil
}

// StepLog reads the end of what an instance's last attempt has written. If nothing is
// kept of it, that is a not_found problem.
func (c *Client) StepLog(ctx context.Context, run, step string, index int) ([]byte, error) {
	resp, err := c.send(ctx, http.MethodGet, stepPath(run, step, strconv.Itoa(index), "log"), nil)
	if err != nil {
		return nil, err
	}
	defer drop(resp.Body)
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	return text, nil
}

// RetryStep retries an instance of a step that has failed or was canceled. One that has not
// ended is no error.
func (c *Client) RetryStep(ctx context.Context, run, step string, index int, r api.StepRetry) (*api.StepInstance, error) {
	return ask[api.StepInstance](ctx, c.call, http.MethodPost, stepPath(run, step, strconv.Itoa(index), "retry"), r)
}

// CancelStep ends an instance of a step. One that runs is stopped, and stays running
// until it was. One that was canceled already is no error.
func (c *Client) CancelStep(ctx context.Context, run, step string, index int) (*api.StepInstance, error) {
	return ask[api.StepInstance](ctx, c.call, http.MethodPost, stepPath(run, step, strconv.Itoa(index), "cancel"), nil)
}

// stepPath is the path of a run's steps, or of what the names lead to below them.
func stepPath(run string, names ...string) string {
	path := runPath(run) + "/steps"
	for _, name := range names {
		path += "/" + escape(name)
	}
	return path
}

// ReadySteps lists the step instances that an executor can take of a queue, in order. If
// there is none, it waits for one, for at most wait.
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

// TakeStep makes the caller the executor of a step instance. A request without a name for the
// executor gets one, so that a request which is sent again finds its attempt.
func (c *Client) TakeStep(ctx context.Context, run, step string, index int, r api.StepTake) (*api.TakenStep, error) {
	if r.Executor == "" {
		r.Executor = ulid.Make().String()
	}
	t, sent, err := c.takenCall(ctx, stepPath(run, step, strconv.Itoa(index), "take"), r)
	if err != nil || !isLong(sent) {
		return t, err
	}
	if again, err := c.RenewStep(ctx, run, step, index, t.Fence); err == nil {
		t.Deadline = max(t.Deadline, again.Deadline)
	} // else its executor learns it when it renews
	return t, nil
}

// RenewStep renews an attempt: its executor lives. An error of code step_lost or
// run_ended means that it has to stop.
func (c *Client) RenewStep(ctx context.Context, run, step string, index int, fence int64) (*api.TakenStep, error) {
	t, _, err := c.takenCall(ctx, stepPath(run, step, strconv.Itoa(index), "renew"), api.StepRenewal{Fence: fence})
	return t, err
}

// FinishStep reports how an attempt has ended.
func (c *Client) FinishStep(ctx context.Context, run, step string, index int, r api.StepFinish) (*api.StepInstance, error) {
	return ask[api.StepInstance](ctx, c.call, http.MethodPost, stepPath(run, step, strconv.Itoa(index), "finish"), r)
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

// StepOutput is the end of what an attempt of a step instance has written.
type StepOutput struct {
	Text []byte
	// Attempt is the number of the attempt. It is that of the instance, unless that has
	// written nothing, or was lost.
	Attempt int
	// LeftOut is how many bytes it has written before Text.
	LeftOut int64
	// Running means that it still runs, and may write more.
	Running bool
	// Host and File are where all of it is; empty if it is kept nowhere.
	Host, File string
}

// StepOutput reads the end of what an attempt of an instance has written: the last that
// has ended, or one that a worker runs, as far as it has come. For that it waits at most
// for so long, up to 10s. If nothing is kept of it, that is a not_found problem.
func (c *Client) StepOutput(ctx context.Context, run, step string, index int, wait time.Duration) (*StepOutput, error) {
	path := stepPath(run, step, strconv.Itoa(index), "log") + "?wait=" + url.QueryEscape(wait.String())
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	defer drop(resp.Body)
	out := &StepOutput{Running: resp.Header.Get(api.OutputRunning) == "true"}
	if out.Text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return nil, c.failed(ctx, err)
	}
	// A sidecar of another version may leave them out.
	out.Attempt, _ = strconv.Atoi(resp.Header.Get(api.OutputAttempt))
	out.LeftOut, _ = strconv.ParseInt(resp.Header.Get(api.OutputLeftOut), 10, 64)
	if u, err := url.Parse(resp.Header.Get(api.OutputFile)); err == nil {
		out.Host, out.File = u.Host, u.Path
	}
	return out, nil
}
