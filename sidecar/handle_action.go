package sidecar

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
)

// actionListInput is the input of GET /v1/actions.
type actionListInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many to answer at most."`
	Cursor string `query:"cursor" maxLength:"64" doc:"Where to begin: next of the page before."`
}

// listActions answers GET /v1/actions.
func (a *apiServer) listActions(ctx context.Context, in *actionListInput) (*output[inspect.ActionList], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	return outputOf(s.reader.Actions(ctx, in.Cursor, in.Limit))
}

// registerActions registers the endpoint of actions.
func (a *apiServer) registerActions(h huma.API) {
	op := operation(h, "list-actions", http.MethodGet, api.ActionsPath, "actions", "List what operators asked for, the newest first")
	op.Description = "Each action has who asked for it and from where, the state before and after, and its outcome; whether it was asked for over HTTP, by the berth command or on a page. Actions are kept as long as the events of runs."
	handle(a, h, op, a.listActions)
}
