package sidecar

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/sidecar/api"
	"github.com/oklog/ulid/v2"
)

// SubmitRun puts a run into the queue. A request without an id gets one, so that a
// request which is sent again finds its run.
func (c *Client) SubmitRun(ctx context.Context, r api.RunRequest) (*api.Run, error) {
	if r.ID == "" {
		r.ID = ulid.Make().String()
	}
	return c.runCall(ctx, http.MethodPost, api.RunsPath, r)
}

// Run looks at a run.
func (c *Client) Run(ctx context.Context, id string) (*api.Run, error) {
	return c.runCall(ctx, http.MethodGet, runPath(id), nil)
}

// RunFilter says which runs to list. What is empty lets all pass.
type RunFilter struct {
	// Statuses of which a run has one.
	Statuses []string
	// Tags that a run has, all of them.
	Tags map[string]string
}

// runPageSize is how many runs are asked for at once: as many as there can be,
// since the server reads all of them for each page.
const runPageSize = 10_000

// Runs lists runs by id; in the order of the queue, if only queued ones are asked
// for. It asks for as many pages as there are. Records that can't be read are told
// beside the others.
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
		query.Set("after", page.Next)
	}
}

// WhyRun tells what a run waits for.
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
	return c.runCall(ctx, http.MethodPost, runPath(id)+"/cancel", r)
}

// RetryRun has a run tried again that has failed or was canceled, or some of its step
// instances. To ask again for what is on its way already is no error.
func (c *Client) RetryRun(ctx context.Context, id string, r api.RunRetry) (*api.Run, error) {
	return c.runCall(ctx, http.MethodPost, runPath(id)+"/retry", r)
}

// StartRun has the asker be the executor of a run that was admitted. A request
// without a name for the executor gets one, so that a request which is sent again
// finds its attempt.
func (c *Client) StartRun(ctx context.Context, id string, r api.RunStart) (*api.StartedRun, error) {
	if r.Executor == "" {
		r.Executor = ulid.Make().String()
	}
	return c.attemptCall(ctx, runPath(id)+"/start", r)
}

// Heartbeat says that the executor of an attempt lives. An error of the codes
// run_lost and run_ended says that the run is not its own any more.
func (c *Client) Heartbeat(ctx context.Context, id string, fence int64) (*api.StartedRun, error) {
	return c.attemptCall(ctx, runPath(id)+"/heartbeat", api.RunHeartbeat{Fence: fence})
}

// FinishRun tells how an attempt has ended.
func (c *Client) FinishRun(ctx context.Context, id string, r api.RunFinish) (*api.Run, error) {
	return c.runCall(ctx, http.MethodPost, runPath(id)+"/finish", r)
}

// Limits returns what runs are admitted under.
func (c *Client) Limits(ctx context.Context) (*api.Limits, error) {
	return c.limitsCall(ctx, http.MethodGet, nil)
}

// SetLimits changes what the change names of the limits, and returns what they are
// then.
func (c *Client) SetLimits(ctx context.Context, change api.LimitsChange) (*api.Limits, error) {
	return c.limitsCall(ctx, http.MethodPut, change)
}

func (c *Client) limitsCall(ctx context.Context, method string, in any) (*api.Limits, error) {
	var l api.Limits
	if _, err := c.call(ctx, method, api.LimitsPath, in, &l); err != nil {
		return nil, err
	}
	return &l, nil
}

func (c *Client) runCall(ctx context.Context, method, path string, in any) (*api.Run, error) {
	var r api.Run
	if _, err := c.call(ctx, method, path, in, &r); err != nil {
		return nil, err
	}
	return &r, nil
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

// Coordinator tells who admits runs, and who would.
func (c *Client) Coordinator(ctx context.Context) (*api.Coordinator, error) {
	var co api.Coordinator
	if _, err := c.call(ctx, http.MethodGet, api.CoordinatorPath, nil, &co); err != nil {
		return nil, err
	}
	return &co, nil
}
