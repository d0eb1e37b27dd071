package sidecar

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

const stepsPath = api.RunsPath + "/{id}/steps"

// stepInput is the input of an endpoint of one step instance.
type stepInput struct {
	ID    string `path:"id"`
	Step  string `path:"step"`
	Index int    `path:"index" minimum:"0"`
}

func (in *stepInput) id() store.StepID {
	return store.StepID{Run: in.ID, Step: in.Step, Index: in.Index}
}

// stepListInput is the input of GET /v1/runs/{id}/steps/{step}.
type stepListInput struct {
	ID     string   `path:"id"`
	Step   string   `path:"step"`
	Status []string `query:"status" doc:"Only instances of these statuses, separated by commas."`
	Limit  int      `query:"limit" minimum:"1" maximum:"10000" default:"100" doc:"How many to answer at most."`
	After  string   `query:"after" maxLength:"16" doc:"Where to begin: next of the page before."`
}

// listSteps answers GET /v1/runs/{id}/steps.
func (a *apiServer) listSteps(ctx context.Context, in *idInput) (*output[api.StepList], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	o, err := s.steps.Overview(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	waits, err := s.reader.Waits(ctx, o)
	if err != nil {
		return nil, err
	}
	return outputOf(inspect.StepsWaitingOf(o, waits), nil)
}

// listInstances answers GET /v1/runs/{id}/steps/{step}.
func (a *apiServer) listInstances(ctx context.Context, in *stepListInput) (*output[api.StepInstanceList], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	page := step.Page{Limit: in.Limit}
	if page.From, err = parseStepCursor(in.After); err != nil {
		return nil, err
	}
	for _, text := range in.Status {
		status, err := parseStepStatus(text)
		if err != nil {
			return nil, err
		}
		page.Statuses = append(page.Statuses, status)
	}
	found, err := s.steps.Instances(ctx, in.ID, in.Step, page)
	if err != nil {
		return nil, err
	}
	list := api.StepInstanceList{Items: make([]api.StepInstance, len(found.Items)), Unreadable: inspect.UnreadableOf(found.Bad)}
	for n, i := range found.Items {
		list.Items[n] = inspect.StepInstanceOf(i)
	}
	if found.Next > 0 {
		list.Next = strconv.Itoa(found.Next)
	}
	return outputOf(list, nil)
}

// parseStepCursor reads where a page begins: the index of its first instance.
func parseStepCursor(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > step.MaxItems || strconv.Itoa(n) != text {
		return 0, problem.Field("after", "%s is none that was answered as next", problem.Quote(text))
	}
	return n, nil
}

func parseStepStatus(text string) (step.Status, error) {
	if s := step.Status(text); slices.Contains(step.Statuses, s) {
		return s, nil
	}
	names := make([]string, len(step.Statuses))
	for i, s := range step.Statuses {
		names[i] = string(s)
	}
	return "", problem.Field("status", "%s is none: allowed are %s", problem.Quote(text), strings.Join(names, ", "))
}

// getInstance answers GET /v1/runs/{id}/steps/{step}/{index}.
func (a *apiServer) getInstance(ctx context.Context, in *stepInput) (*output[api.StepWork], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	d, err := s.steps.Detail(ctx, in.id())
	if err != nil {
		return nil, err
	}
	w := inspect.StepWorkOf(d)
	if d.Status == step.Scheduled {
		a, err := s.reader.Outlook().Around(ctx, func(of step.Status) bool { return of == step.Scheduled })
		if err != nil {
			return nil, err
		}
		wait := d.Shape.Wait(a)
		w.BlockReason, w.BlockKind = wait.Text, string(wait.Kind)
	}
	return outputOf(w, nil)
}

// registerSteps registers the endpoints of steps.
func (a *apiServer) registerSteps(h huma.API) {
	const tag, one = "steps", stepsPath + "/{step}"
	op := operation(h, "list-steps", http.MethodGet, stepsPath, tag, "Look at the steps of a run")
	op.Description = "In the order in which they can run, all at one revision. A run without steps has none, and so has one that is still being stored."
	handle(a, h, op, a.listSteps)
	op = operation(h, "list-step-instances", http.MethodGet, one, tag, "List the instances of a step")
	op.Description = "By index."
	handle(a, h, op, a.listInstances)
	handle(a, h, operation(h, "get-step-instance", http.MethodGet, one+"/{index}", tag, "Look at an instance of a step, and at what it is to do"), a.getInstance)
	a.registerLog(h)
	a.registerTaking(h)
	a.registerRetrying(h)
}
