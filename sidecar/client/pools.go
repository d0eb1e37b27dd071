package client

import (
	"context"
	"net/http"

	"github.com/berthhq/berth/sidecar/api"
)

// Pools returns all pools, by name.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	var list api.List[api.Pool]
	if _, err := c.call(ctx, http.MethodGet, api.PoolsPath, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Pool returns a pool with its holders and its waiters.
func (c *Client) Pool(ctx context.Context, name string) (*api.PoolDetail, error) {
	var p api.PoolDetail
	var err error
	if p.Revision, err = c.tagged(ctx, http.MethodGet, poolPath(name), nil, &p, nil); err != nil {
		return nil, err
	}
	return &p, nil
}

// SetPool creates a pool or replaces its settings. What is left out gets its default; the
// limit is needed.
func (c *Client) SetPool(ctx context.Context, name string, settings api.PoolChange, when ...Condition) (*api.Pool, error) {
	return c.changePool(ctx, http.MethodPut, poolPath(name), settings, when)
}

// ChangePool changes what the change names of a pool.
func (c *Client) ChangePool(ctx context.Context, name string, change api.PoolChange, when ...Condition) (*api.Pool, error) {
	return c.changePool(ctx, http.MethodPatch, poolPath(name), change, when)
}

// PausePool pauses a pool: it grants nothing until [Client.ResumePool].
func (c *Client) PausePool(ctx context.Context, name string, when ...Condition) (*api.Pool, error) {
	return c.changePool(ctx, http.MethodPost, poolPath(name)+"/pause", nil, when)
}

// ResumePool ends a pause.
func (c *Client) ResumePool(ctx context.Context, name string, when ...Condition) (*api.Pool, error) {
	return c.changePool(ctx, http.MethodPost, poolPath(name)+"/resume", nil, when)
}

func (c *Client) changePool(ctx context.Context, method, path string, in any, when []Condition) (*api.Pool, error) {
	var p api.Pool
	var err error
	if p.Revision, err = c.tagged(ctx, method, path, in, &p, when); err != nil {
		return nil, err
	}
	return &p, nil
}

// DeletePool deletes a pool. Its holders keep their slots until they release
// them, its waiters are refused.
func (c *Client) DeletePool(ctx context.Context, name string, when ...Condition) error {
	_, err := c.tagged(ctx, http.MethodDelete, poolPath(name), nil, nil, when)
	return err
}

func poolPath(name string) string { return api.PoolsPath + "/" + escape(name) }
