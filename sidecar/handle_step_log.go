package sidecar

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// maxLogWait bounds the wait for what an attempt has written so far.
const maxLogWait = 10 * time.Second

// logInput is the input of GET /v1/runs/{id}/steps/{step}/{index}/log.
type logInput struct {
	ID    string `path:"id"`
	Step  string `path:"step"`
	Index int    `path:"index" minimum:"0"`
	Wait  string `query:"wait" example:"2s" doc:"How long to wait, where a worker runs the instance, until it has shown what the attempt has written so far: 0s to 10s, 2s if left out."`
}

func (in *logInput) id() store.StepID {
	return store.StepID{Run: in.ID, Step: in.Step, Index: in.Index}
}

// logOutput answers with what a command has written: bytes of any kind, which no reader
// should take for a page.
type logOutput struct {
	ContentType string `header:"Content-Type"`
	Sniff       string `header:"X-Content-Type-Options"`
	Attempt     int    `header:"Berth-Output-Attempt" doc:"Which attempt has written it, 1 for the first."`
	LeftOut     int64  `header:"Berth-Output-Left-Out" doc:"How many bytes it has written before this."`
	Running     bool   `header:"Berth-Output-Running" doc:"Whether it runs still, and may write more."`
	File        string `header:"Berth-Output-File" doc:"Where all of it is, as file://HOST/PATH; left out if it is kept nowhere. The file stays for up to 24 hours after the attempt."`
	Body        []byte
}

const textType = "text/plain"

// getStepLog answers GET /v1/runs/{id}/steps/{step}/{index}/log.
func (a *apiServer) getStepLog(ctx context.Context, v *step.Viewer, in *logInput) (*logOutput, error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	wait := step.ShowWithin
	if in.Wait != "" {
		if wait, err = time.ParseDuration(in.Wait); err != nil || wait < 0 || wait > maxLogWait {
			return nil, problem.Field("wait", "%s is no time to wait: allowed are 0s to %s, as in 2s", problem.Quote(in.Wait), api.Duration(maxLogWait))
		}
	}
	seen, err := a.see(ctx, s, v, in, wait)
	switch {
	case err != nil:
		return nil, err
	case seen.Log == nil && seen.Unasked != nil:
		return nil, seen.Unasked
	case seen.Log == nil:
		return nil, step.NoLog(in.id())
	}
	return logOutputOf(seen), nil
}

// see looks at the output of an instance. It waits for nothing where as many wait as may,
// or the server stops: what is kept is an answer, too.
func (a *apiServer) see(ctx context.Context, s *session, v *step.Viewer, in *logInput, wait time.Duration) (*step.Seen, error) {
	select {
	case s.runStreams <- struct{}{}: // each has a watch
		defer func() { <-s.runStreams }()
	default:
		wait = 0
	}
	waiting, one, err := a.waits.enter(ctx, "")
	if err != nil {
		return v.See(ctx, s.steps, in.id(), 0)
	}
	defer a.waits.leave(one)
	seen, err := v.See(waiting, s.steps, in.id(), wait)
	if ended := a.waits.ended(one); ended != nil {
		return nil, ended
	}
	return seen, err
}

func logOutputOf(seen *step.Seen) *logOutput {
	l := seen.Log
	out := &logOutput{
		ContentType: textType + "; charset=utf-8", Sniff: "nosniff",
		Attempt: l.Attempt, LeftOut: l.Before, Running: l.Standing(&seen.Instance) == step.SoFar, Body: l.Text,
	}
	if l.File != "" {
		out.File = (&url.URL{Scheme: "file", Host: l.Host, Path: l.File}).String()
	}
	return out
}

// registerLog registers the endpoint of the output of step instances.
func (a *apiServer) registerLog(h huma.API) {
	op := operation(h, "get-step-log", http.MethodGet, stepsPath+"/{step}/{index}/log", "steps", "Read the end of what an instance's last attempt has written")
	op.Description = "At most 16 KiB: of the last attempt that has ended, or of one that a worker runs, as far as it has come. If nothing is kept, that is not_found."
	op.Responses["200"] = &huma.Response{Description: "The text", Content: map[string]*huma.MediaType{
		textType: {Schema: &huma.Schema{Type: huma.TypeString}},
	}}
	v := &step.Viewer{}
	handle(a, h, op, func(ctx context.Context, in *logInput) (*logOutput, error) { return a.getStepLog(ctx, v, in) })
}
