package sidecar

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
)

var poolType = reflect.TypeFor[api.Pool]()

// poolInput is the input of an endpoint of one pool.
type poolInput struct {
	Pool string `path:"pool"`
}

// poolVerb is the input of a verb of one pool.
type poolVerb struct {
	Pool string `path:"pool"`
	api.IfMatch
}

// poolPatch is the input of PATCH /v1/pools/{pool}.
type poolPatch struct {
	Pool string `path:"pool"`
	api.IfMatch
	RawBody []byte `contentType:"application/json"`
}

// poolPut is the input of PUT /v1/pools/{pool}.
type poolPut struct {
	Pool string `path:"pool"`
	api.Put
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
func (a *apiServer) getPool(ctx context.Context, s *session, in *poolInput) (*tagged[api.PoolDetail], error) {
	if err := pool.ValidateName(in.Pool); err != nil {
		return nil, err
	}
	d, err := s.reader.Detail(ctx, in.Pool)
	if err != nil {
		return nil, err
	}
	return &tagged[api.PoolDetail]{api.ETag(d.Revision), d}, nil
}

// putPool answers PUT /v1/pools/{pool}.
func (a *apiServer) putPool(ctx context.Context, s *session, in *poolPut, c api.PoolChange) (*poolOutput, error) {
	change, status := poolChange(c), http.StatusOK
	change.Replace = true
	out, err := s.onPool(ctx, in.Pool, in.Put, func(o inspect.Operator) (pool.Put, error) {
		put, err := o.SetPool(ctx, in.Pool, change)
		if put.Created {
			status = http.StatusCreated
		}
		return put, err
	})
	if err != nil {
		return nil, err
	}
	return &poolOutput{status, out.ETag, out.Body}, nil
}

// patchPool answers PATCH /v1/pools/{pool}.
func (a *apiServer) patchPool(ctx context.Context, s *session, in *poolPatch, c api.PoolChange) (*tagged[api.Pool], error) {
	return s.onPool(ctx, in.Pool, in.IfMatch, func(o inspect.Operator) (pool.Put, error) { return o.ChangePool(ctx, in.Pool, poolChange(c)) })
}

func poolChange(c api.PoolChange) pool.Change {
	return pool.Change{
		Limit: c.Limit, Paused: c.Paused,
		LeaseDuration: (*time.Duration)(c.LeaseDuration), ReserveAfter: (*time.Duration)(c.ReserveAfter),
	}
}

// poolOutput answers with a pool that may be new.
type poolOutput struct {
	Status int
	ETag   string `header:"ETag"`
	Body   api.Pool
}

// onPool carries out a verb, and answers with the pool.
func (s *session) onPool(ctx context.Context, name string, when conditions, do func(inspect.Operator) (pool.Put, error)) (*tagged[api.Pool], error) {
	o, err := s.operatorIf(ctx, when, poolText(name))
	if err != nil {
		return nil, err
	}
	put, err := do(o)
	if err != nil {
		return nil, err
	}
	d, err := s.client.Pool(ctx, name)
	if err != nil {
		d = pool.Detail{} // new, or etcd is slow: nothing is known to be claimed
	}
	d.Name, d.Spec, d.Deleted = name, put.Spec, false // the view may be behind
	return &tagged[api.Pool]{api.ETag(put.Revision), inspect.PoolOf(d.Status)}, nil
}

func poolText(name string) string { return "pool '" + problem.Clip(name) + "'" }

// deletePool answers DELETE /v1/pools/{pool}.
func (a *apiServer) deletePool(ctx context.Context, s *session, in *poolVerb) (*struct{}, error) {
	o, err := s.operatorIf(ctx, in.IfMatch, poolText(in.Pool))
	if err != nil {
		return nil, err
	}
	return nil, o.DeletePool(ctx, in.Pool)
}

// pausePool answers POST /v1/pools/{pool}/pause, and resume.
func (a *apiServer) pausePool(paused bool) func(context.Context, *session, *poolVerb) (*tagged[api.Pool], error) {
	return func(ctx context.Context, s *session, in *poolVerb) (*tagged[api.Pool], error) {
		return s.onPool(ctx, in.Pool, in.IfMatch, func(o inspect.Operator) (pool.Put, error) { return o.PausePool(ctx, in.Pool, paused) })
	}
}

// registerPools registers the endpoints of pools.
func (a *apiServer) registerPools(h huma.API) {
	const tag, one = "pools", api.PoolsPath + "/{pool}"
	handle(a, h, operation(h, "list-pools", http.MethodGet, api.PoolsPath, tag, "List pools"), a.listPools)
	handle(a, h, operation(h, "get-pool", http.MethodGet, one, tag, "Get a pool, its holders and its wait queue"), a.getPool)
	op := operation(h, "put-pool", http.MethodPut, one, tag, "Create a pool or replace its settings")
	op.Description = "A pool needs a limit; what else is left out gets its default. Holders and waiters stay."
	op.Responses["201"] = &huma.Response{Description: "Created", Content: map[string]*huma.MediaType{
		"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(poolType, true, "")},
	}}
	handleBody(a, h, op, false, func(in *poolPut) []byte { return in.RawBody }, a.putPool)
	op = operation(h, "patch-pool", http.MethodPatch, one, tag, "Change a pool")
	op.Description = "What is left out stays."
	handleBody(a, h, op, false, func(in *poolPatch) []byte { return in.RawBody }, a.patchPool)
	op = operation(h, "delete-pool", http.MethodDelete, one, tag, "Delete a pool")
	op.Description = "Its holders keep their slots until they release them; its waiters are refused."
	handle(a, h, op, a.deletePool)
	handle(a, h, operation(h, "pause-pool", http.MethodPost, one+"/pause", tag, "Have a pool grant nothing for now"), a.pausePool(true))
	handle(a, h, operation(h, "resume-pool", http.MethodPost, one+"/resume", tag, "End a pause"), a.pausePool(false))
}
