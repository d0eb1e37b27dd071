package client

import (
	"context"
	"net/http"

	"github.com/berthhq/berth/sidecar/api"
)

// Workers returns all workers, by name.
func (c *Client) Workers(ctx context.Context) ([]api.Worker, error) {
	var list api.List[api.Worker]
	if _, err := c.call(ctx, http.MethodGet, api.WorkersPath, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ControlWorker has a worker take no new steps (drain), stop those that it runs, too (stop), or take steps again
// (resume), and returns it. The reason, one line, is kept with the worker.
func (c *Client) ControlWorker(ctx context.Context, host, instance, verb, reason string) (*api.Worker, error) {
	path := api.WorkersPath + "/" + escape(host) + "/" + escape(instance) + "/" + escape(verb)
	return ask[api.Worker](ctx, c.call, http.MethodPost, path, api.WorkerChange{Reason: reason})
}
