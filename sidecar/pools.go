package sidecar

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
)

var poolType = reflect.TypeFor[api.Pool]()

// poolInput is the input of an endpoint of one pool.
type poolInput struct {
	Pool string `path:"pool"`
}

// poolBody is poolInput with a body.
type poolBody struct {
	Pool    string `path:"pool"`
	RawBody []byte `contentType:"application/json"`
}

// listPools answers GET /v1/pools.
func (a *apiServer) listPools(ctx context.Context, s *session, _ *struct{}) (*output[api.List[api.Pool]], error) {
	all, err := s.client.Pools(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.ListOf(all, inspect.PoolOf), nil)
}

// getPool answers GET /v1/pools/{pool}.
func (a *apiServer) getPool(ctx context.Context, s *session, in *poolInput) (*output[api.PoolDetail], error) {
	if err := pool.ValidateName(in.Pool); err != nil {
		return nil, err
	}
	return outputOf(s.reader.Detail(ctx, in.Pool))
}

// putPool answers PUT /v1/pools/{pool}.
func (a *apiServer) putPool(ctx context.Context, s *session, in *poolBody, c api.PoolChange) (*poolOutput, error) {
	put, err := s.operator(ctx).SetPool(ctx, in.Pool, pool.Change{
		Limit: c.Limit, Paused: c.Paused,
		LeaseDuration: (*time.Duration)(c.LeaseDuration), ReserveAfter: (*time.Duration)(c.ReserveAfter),
	})
	if err != nil {
		return nil, err
	}
	out := &poolOutput{Status: http.StatusOK, Body: s.poolAfter(ctx, in.Pool, put.Spec)}
	if put.Created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

// poolOutput answers with a pool that may be new.
type poolOutput struct {
	Status int
	Body   api.Pool
}

// poolAfter is a pool after a change: with the spec that was put, although the
// view may be behind it.
func (s *session) poolAfter(ctx context.Context, name string, spec pool.Spec) api.Pool {
	d, err := s.client.Pool(ctx, name)
	if err != nil {
		d = pool.Detail{} // new, or etcd is slow: nothing is known to be claimed
	}
	d.Name, d.Spec, d.Deleted = name, spec, false
	return inspect.PoolOf(d.Status)
}

// deletePool answers DELETE /v1/pools/{pool}.
func (a *apiServer) deletePool(ctx context.Context, s *session, in *poolInput) (*struct{}, error) {
	return nil, s.operator(ctx).DeletePool(ctx, in.Pool)
}

// pausePool answers POST /v1/pools/{pool}/pause.
func (a *apiServer) pausePool(ctx context.Context, s *session, in *poolInput) (*output[api.Pool], error) {
	return a.changePaused(ctx, s, in.Pool, true)
}

// resumePool answers POST /v1/pools/{pool}/resume.
func (a *apiServer) resumePool(ctx context.Context, s *session, in *poolInput) (*output[api.Pool], error) {
	return a.changePaused(ctx, s, in.Pool, false)
}

func (a *apiServer) changePaused(ctx context.Context, s *session, name string, paused bool) (*output[api.Pool], error) {
	if err := s.operator(ctx).PausePool(ctx, name, paused); err != nil {
		return nil, err
	}
	d, err := s.client.Pool(ctx, name)
	if err != nil {
		return nil, err
	}
	d.Paused = paused
	return outputOf(inspect.PoolOf(d.Status), nil)
}

// registerPools registers the endpoints of pools.
func (a *apiServer) registerPools(h huma.API) {
	const tag, one = "pools", api.PoolsPath + "/{pool}"
	handle(a, h, operation(h, "list-pools", http.MethodGet, api.PoolsPath, tag, "List pools"), a.listPools)
	handle(a, h, operation(h, "get-pool", http.MethodGet, one, tag, "Get a pool, its holders and its wait queue"), a.getPool)
	op := operation(h, "put-pool", http.MethodPut, one, tag, "Create a pool or change it")
	op.Description = "What is left out stays, or gets its default in a new pool, which needs a limit."
	op.Responses["201"] = &huma.Response{Description: "Created", Content: map[string]*huma.MediaType{
		"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(poolType, true, "")},
	}}
	handleBody(a, h, op, false, func(in *poolBody) []byte { return in.RawBody }, a.putPool)
	op = operation(h, "delete-pool", http.MethodDelete, one, tag, "Delete a pool")
	op.Description = "Its holders keep their slots until they release them; its waiters are refused."
	handle(a, h, op, a.deletePool)
	handle(a, h, operation(h, "pause-pool", http.MethodPost, one+"/pause", tag, "Have a pool grant nothing for now"), a.pausePool)
	handle(a, h, operation(h, "resume-pool", http.MethodPost, one+"/resume", tag, "End a pause"), a.resumePool)
}
