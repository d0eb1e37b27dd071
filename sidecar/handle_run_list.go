package sidecar

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// runListInput is the input of GET /v1/runs.
type runListInput struct {
	Status []string `query:"status" doc:"Only runs of these statuses, separated by commas."`
	Tag    []string `query:"tag,explode" doc:"Only runs with this tag, KEY=VALUE; given more than once, only those with all of them."`
	Limit  int      `query:"limit" minimum:"1" maximum:"10000" default:"100" doc:"How many to answer at most."`
	After  string   `query:"after" maxLength:"1024" doc:"Where to begin: next of the page before."`
}

// listRuns answers GET /v1/runs.
func (a *apiServer) listRuns(ctx context.Context, in *runListInput) (*output[api.RunList], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	filter, err := parseRunFilter(in)
	if err != nil {
		return nil, err
	}
	all, err := s.runs.All(ctx)
	if err != nil {
		return nil, err
	}
	list := filter.page(all, in.Limit)
	list.Unreadable = inspect.UnreadableOf(all.Bad)
	return outputOf(list, s.reader.Explain(ctx, list.Items))
}

// runFilter says which runs are on a page, and in what order.
type runFilter struct {
	statuses []run.Status
	tags     map[string]string
	after    runCursor
}

func parseRunFilter(in *runListInput) (f runFilter, err error) {
	for _, text := range in.Status {
		s, err := run.ParseStatus(text)
		if err != nil {
			return f, err
		}
		f.statuses = append(f.statuses, s)
	}
	f.tags = map[string]string{}
	for _, text := range in.Tag {
		key, value, ok := strings.Cut(text, "=")
		if there, twice := f.tags[key]; !ok || key == "" || twice && there != value {
			return f, problem.Field("tag", "%s is no tag that a run can have: write KEY=VALUE, each key once", problem.Quote(text))
		}
		f.tags[key] = value
	}
	f.after, err = parseRunCursor(in.After)
	if err == nil && in.After != "" && f.after.Queue != f.queued() {
		err = problem.Field("after", "%s belongs to a list in another order", problem.Quote(in.After))
	}
	return f, err
}

// queued tells whether only queued runs are asked for.
func (f *runFilter) queued() bool {
	return len(f.statuses) > 0 && !slices.ContainsFunc(f.statuses, func(s run.Status) bool { return s != run.Queued })
}

// matches tells whether a run has the tags that are asked for.
func (f *runFilter) matches(r *run.Run) bool {
	for key, value := range f.tags {
		if there, ok := r.Tags[key]; !ok || there != value {
			return false
		}
	}
	return true
}

// page returns the runs that follow on the cursor, and where the next page begins.
func (f *runFilter) page(all run.All, limit int) api.RunList {
	runs := all.With(f.statuses...)
	if f.queued() {
		runs = all.Queue()
	}
	list := api.RunList{Items: []api.Run{}}
	var last *run.Run
	for _, r := range runs {
		if !f.matches(r) || f.after.ID != "" && !f.after.before(r) {
			continue
		}
		if len(list.Items) == limit {
			list.Next = runCursorOf(last, f.queued()).String()
			break
		}
		list.Items = append(list.Items, inspect.RunOf(r))
		last = r
	}
	return list
}

// runCursor is a place in a list of runs: by id, or in the order of the queue. It
// stays good while runs come and go.
type runCursor struct {
	Queue    bool  `json:"q,omitempty"`
	Priority int   `json:"p,omitempty"`
	Created  int64 `json:"c,omitempty"`
	// Joined and NotBefore are of runs that had to wait for a time, or do.
	Joined    int64       `json:"j,omitempty"`
	NotBefore run.Instant `json:"n,omitzero"`
	ID        string      `json:"i"`
}

func runCursorOf(r *run.Run, queue bool) runCursor {
	if !queue {
		return runCursor{ID: r.ID}
	}
	return runCursor{
		Queue: true, Priority: r.Priority, Created: r.Created, Joined: r.Joined, NotBefore: r.NotBefore, ID: r.ID,
	}
}

// before tells whether a place comes before a run.
func (c runCursor) before(r *run.Run) bool {
	if !c.Queue {
		return c.ID < r.ID
	}
	at := run.Run{ID: c.ID, Created: c.Created}
	at.Status, at.Priority, at.Joined, at.NotBefore = run.Queued, c.Priority, c.Joined, c.NotBefore
	return at.Compare(r) < 0
}

func (c runCursor) String() string {
	data, err := json.Marshal(c)
	if err != nil {
		return "" // plain values can be written
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// parseRunCursor reads a cursor. The place before all is that of an empty one.
func parseRunCursor(text string) (c runCursor, err error) {
	if text == "" {
		return runCursor{}, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil || c.ID == "" {
		return runCursor{}, problem.Field("after", "%s is none that was answered as next", problem.Quote(text))
	}
	return c, nil
}
