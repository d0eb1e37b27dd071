package client

import (
	"context"
	"net/http"
	"time"

	"github.com/berthhq/berth/sidecar/api"
)

// Sources returns all sources, by name.
func (c *Client) Sources(ctx context.Context) ([]api.Source, error) {
	var list api.List[api.Source]
	if _, err := c.call(ctx, http.MethodGet, api.SourcesPath, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Source returns a source.
func (c *Client) Source(ctx context.Context, name string) (*api.Source, error) {
	var s api.Source
	if _, err := c.call(ctx, http.MethodGet, sourcePath(name), nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// WakeSource has a source poll at once, on whatever host it runs, or once more if it polls just
// now. It waits for that for at most wait, and returns the result: nil if it was not over in
// time, or wait is 0. If no process runs the source, that is a precondition_failed problem.
func (c *Client) WakeSource(ctx context.Context, name string, wait time.Duration) (*api.SourcePoll, error) {
	var req api.SourceWake
	if wait != 0 {
		req.Wait = api.DurationOf(wait)
	}
	var woken api.SourceWoken
	if _, err := c.call(ctx, http.MethodPost, sourcePath(name)+"/wake", req, &woken); err != nil {
		return nil, err
	}
	return woken.Poll, nil
}

func sourcePath(name string) string { return api.SourcesPath + "/" + escape(name) }
