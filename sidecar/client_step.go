package sidecar

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/berthhq/berth/sidecar/api"
)

// Steps tells how the steps of a run stand, in the order in which they can run. States
// that can't be read are told beside the steps.
func (c *Client) Steps(ctx context.Context, run string) ([]api.Step, []api.Unreadable, error) {
	var list api.StepList
	if _, err := c.call(ctx, http.MethodGet, stepPath(run), nil, &list); err != nil {
		return nil, nil, err
	}
	return list.Items, list.Unreadable, nil
}

// stepPageSize is how many instances are asked for at once: as many as there can be.
const stepPageSize = 10_000

// StepInstances lists the instances of a step by index; with statuses, those of one of
// them. It asks for as many pages as there are.
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
		query.Set("after", page.Next)
	}
}

// StepInstance looks at an instance of a step, and at what it is to do.
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

// RetryStep has an instance of a step tried again that has failed or was canceled. One
// that has not ended is no error.
func (c *Client) RetryStep(ctx context.Context, run, step string, index int, r api.StepRetry) (*api.StepInstance, error) {
	return c.stepCall(ctx, stepPath(run, step, strconv.Itoa(index), "retry"), r)
}

// CancelStep ends an instance of a step. One that runs is stopped, and stays running
// until it was. One that was canceled already is no error.
func (c *Client) CancelStep(ctx context.Context, run, step string, index int) (*api.StepInstance, error) {
	return c.stepCall(ctx, stepPath(run, step, strconv.Itoa(index), "cancel"), nil)
}

func (c *Client) stepCall(ctx context.Context, path string, in any) (*api.StepInstance, error) {
	var i api.StepInstance
	if _, err := c.call(ctx, http.MethodPost, path, in, &i); err != nil {
		return nil, err
	}
	return &i, nil
}

// stepPath is the path of a run's steps, or of what the names lead to below them.
func stepPath(run string, names ...string) string {
	path := runPath(run) + "/steps"
	for _, name := range names {
		path += "/" + escape(name)
	}
	return path
}
