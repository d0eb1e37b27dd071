package sidecar

import (
	"context"
	"net/http"
)

// Pools returns all pools, by name.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	var list List[Pool]
	if _, err := c.call(ctx, http.MethodGet, poolsPath, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Pool returns a pool with its holders and its line.
func (c *Client) Pool(ctx context.Context, name string) (*PoolDetail, error) {
	var p PoolDetail
	if _, err := c.call(ctx, http.MethodGet, poolPath(name), nil, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// SetPool creates a pool or changes what the change names of it.
func (c *Client) SetPool(ctx context.Context, name string, change PoolChange) (*Pool, error) {
	return c.changePool(ctx, http.MethodPut, poolPath(name), change)
}

// PausePool has a pool grant nothing until [Client.ResumePool].
func (c *Client) PausePool(ctx context.Context, name string) (*Pool, error) {
	return c.changePool(ctx, http.MethodPost, poolPath(name)+"/pause", nil)
}

// ResumePool ends a pause.
func (c *Client) ResumePool(ctx context.Context, name string) (*Pool, error) {
	return c.changePool(ctx, http.MethodPost, poolPath(name)+"/resume", nil)
}

func (c *Client) changePool(ctx context.Context, method, path string, in any) (*Pool, error) {
	var p Pool
	if _, err := c.call(ctx, method, path, in, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// DeletePool deletes a pool. Its holders keep their slots until they release
// them, its waiters are refused.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, poolPath(name), nil, nil)
	return err
}

func poolPath(name string) string { return poolsPath + "/" + escape(name) }
