package sidecar

import (
	"context"
	"errors"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// operation describes an endpoint. Errors of all kinds are problems.
func operation(h huma.API, id, method, path, tag, summary string) huma.Operation {
	schema := h.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.Problem](), true, "")
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Responses: map[string]*huma.Response{
			"default": {
				Description: "A problem, by its code.",
				Content:     map[string]*huma.MediaType{api.ProblemType: {Schema: schema}},
			},
		},
	}
}

// output is an answer with a body.
type output[T any] struct{ Body T }

// outputOf answers with a body, or with an error.
func outputOf[T any](v T, err error) (*output[T], error) {
	if err != nil {
		return nil, err
	}
	return &output[T]{Body: v}, nil
}

// handle registers an endpoint without a body.
func handle[I, O any](a *apiServer, h huma.API, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	huma.Register(h, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, a.fail(op.OperationID, hungUp(ctx, err))
		}
		return out, nil
	})
}

// hungUp makes one problem of the errors by which calls end whose client is gone:
// they are no fault, and nobody hears of them.
func hungUp(ctx context.Context, err error) error {
	gone := errors.Is(err, context.Canceled) || problem.CodeOf(err) == problem.EtcdUnavailable
	if ctx.Err() == nil || !gone {
		return err
	}
	return problem.New(problem.ClaimCanceled, "the request was canceled: its client has hung up")
}

// withBody is the input of an endpoint whose only input is a body.
type withBody struct {
	RawBody []byte `contentType:"application/json"`
}

// withID is the input of an endpoint of one claim or pool, with a body.
type withID struct {
	ID      string `path:"id"`
	RawBody []byte `contentType:"application/json"`
}

// handleBody registers an endpoint with a body of type T. It is read by our own
// [decoder]: huma would take fields in other spellings, and names given twice.
func handleBody[T, I, O any](a *apiServer, h huma.API, op huma.Operation, optional bool, raw func(*I) []byte, f func(context.Context, *I, T) (*O, error)) {
	d := api.NewDecoder[T](optional)
	op.RequestBody = &huma.RequestBody{}
	op.SkipValidateBody = true
	op.MaxBodyBytes = maxRunBody + 1 // the door has checked it
	op.BodyReadTimeout = -1          // as well
	handle(a, h, op, func(ctx context.Context, in *I) (*O, error) {
		v, err := d.Decode(raw(in))
		if err != nil {
			return nil, err
		}
		return f(ctx, in, v)
	})
	t := reflect.TypeFor[T]()
	op.RequestBody.Required = !optional
	op.RequestBody.Content["application/json"] = &huma.MediaType{
		Schema: h.OpenAPI().Components.Schemas.Schema(t, true, ""),
	}
}
