package api

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
)

// encodeCursor writes the place of a cursor. Its values are plain, so that can't fail.
func encodeCursor(at any) string {
	data, err := json.Marshal(at)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// decodeCursor reads the place of a cursor.
func decodeCursor(text string, at any) error {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, at)
}

// ClaimListInput is the input of GET /v1/claims.
type ClaimListInput struct {
	Pool   string `query:"pool" doc:"Only claims of this pool."`
	Host   string `query:"host" doc:"Only claims of this host."`
	Status string `query:"status" enum:"held,waiting" doc:"Only claims that are held, or that wait."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many to answer at most."`
	Cursor string `query:"cursor" maxLength:"512" doc:"Where to begin: next of the page before."`
}

// Page returns the selected claims that follow the cursor, and where the next page begins.
func (in *ClaimListInput) Page(all []Claim) (List[Claim], error) {
	after, err := parseClaimCursor(in.Cursor)
	if err != nil {
		return List[Claim]{}, err
	}
	selected := slices.DeleteFunc(all, func(c Claim) bool {
		_, ofPool := c.Pools[in.Pool]
		return in.Host != "" && c.Host != in.Host || in.Status != "" && c.Status != in.Status ||
			in.Pool != "" && !ofPool || claimCursorOf(c).compare(after) <= 0
	})
	slices.SortFunc(selected, func(a, b Claim) int { return claimCursorOf(a).compare(claimCursorOf(b)) })
	page := List[Claim]{Items: selected[:min(in.Limit, len(selected))]}
	if len(selected) > in.Limit {
		page.Next = claimCursorOf(selected[in.Limit-1]).String()
	}
	return page, nil
}

// claimCursor is a place in the list of claims: those that are held by fence, then
// those that wait by priority and time. It stays good while claims come and go.
type claimCursor struct {
	Waiting  bool   `json:"w,omitempty"`
	Fence    int64  `json:"f,omitempty"`
	Priority int    `json:"p,omitempty"`
	Since    int64  `json:"s,omitempty"`
	ID       string `json:"i"`
}

func claimCursorOf(c Claim) claimCursor {
	if c.Status == ClaimWaiting {
		return claimCursor{Waiting: true, Priority: c.Priority, Since: c.QueuedAt.UnixNano(), ID: c.ID}
	}
	return claimCursor{Fence: c.Fence, ID: c.ID}
}

// compare orders places: held before waiting, then by age, then by id.
func (c claimCursor) compare(o claimCursor) int {
	if c.Waiting != o.Waiting {
		if o.Waiting {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(c.Fence, o.Fence),
		cmp.Compare(o.Priority, c.Priority),
		cmp.Compare(c.Since, o.Since),
		cmp.Compare(c.ID, o.ID),
	)
}

func (c claimCursor) String() string { return encodeCursor(c) }

// parseClaimCursor reads a cursor. The place before all is that of an empty one.
func parseClaimCursor(text string) (c claimCursor, err error) {
	if text == "" {
		return claimCursor{}, nil
	}
	err = decodeCursor(text, &c)
	if err != nil {
		return claimCursor{}, problem.Field("cursor", "%s is none that was answered as next", problem.Quote(text))
	}
	return c, nil
}

// RunListInput is the input of GET /v1/runs.
type RunListInput struct {
	Status []string `query:"status" doc:"Only runs of these statuses, separated by commas."`
	Tag    []string `query:"tag,explode" doc:"Only runs with this tag, KEY=VALUE; given more than once, only those with all of them."`
	Limit  int      `query:"limit" minimum:"1" maximum:"10000" default:"100" doc:"How many to answer at most."`
	Cursor string   `query:"cursor" maxLength:"1024" doc:"Where to begin: next of the page before."`
}

// RunFilter selects the runs of a page, and their order.
type RunFilter struct {
	statuses []run.Status
	tags     map[string]string
	after    runCursor
	limit    int
}

// Filter returns the selection, or what is wrong with it.
func (in *RunListInput) Filter() (f RunFilter, err error) {
	f.limit = in.Limit
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
			return f, problem.Field("tag", "%s is not a tag that a run can have: write KEY=VALUE, each key once", problem.Quote(text))
		}
		f.tags[key] = value
	}
	f.after, err = parseRunCursor(in.Cursor)
	if err == nil && in.Cursor != "" && f.after.Queue != f.queued() {
		err = problem.Field("cursor", "%s belongs to a list in another order", problem.Quote(in.Cursor))
	}
	return f, err
}

// queued reports whether only queued runs are selected.
func (f *RunFilter) queued() bool {
	return len(f.statuses) > 0 && !slices.ContainsFunc(f.statuses, func(s run.Status) bool { return s != run.Queued })
}

// matches reports whether a run has the selected tags.
func (f *RunFilter) matches(r *run.Run) bool {
	for key, value := range f.tags {
		if there, ok := r.Tags[key]; !ok || there != value {
			return false
		}
	}
	return true
}

// After returns the id after which the runs are to be read: those before it are not selected.
func (f *RunFilter) After() string {
	if f.queued() {
		return ""
	}
	return f.after.ID
}

// maxListBytes bounds the records of a page in bytes.
const maxListBytes = 4 << 20

// RunPage collects the page of a list of runs from all runs, in the order of their ids. It keeps
// no more of them than two pages.
type RunPage struct {
	filter *RunFilter
	kept   []keptRun
	bytes  int // of those kept
	bad    []error
	// next reports that more runs are selected than the page has.
	next bool
}

type keptRun struct {
	run  *run.Run
	size int
}

// NewPage returns a page without runs.
func (f *RunFilter) NewPage() *RunPage { return &RunPage{filter: f} }

// Take takes a run with the size of its record, or why one can't be read. It returns false if no
// later run can be on the page.
func (p *RunPage) Take(r *run.Run, size int, err error) bool {
	f := p.filter
	switch {
	case err != nil:
		p.bad = append(p.bad, err)
		return true
	case len(f.statuses) > 0 && !slices.Contains(f.statuses, r.Status), !f.matches(r), f.after.ID != "" && !f.after.before(r):
		return true
	}
	if !f.queued() && p.full(len(p.kept), p.bytes, size) {
		p.next = true
		return false
	}
	p.kept, p.bytes = append(p.kept, keptRun{r, size}), p.bytes+size
	if f.queued() && (len(p.kept) > 2*f.limit || p.bytes > 2*maxListBytes) {
		p.cut()
	}
	return true
}

// full reports whether a page with some runs has no place for one of a size.
func (p *RunPage) full(runs, bytes, size int) bool {
	return runs == p.filter.limit || runs > 0 && bytes+size > maxListBytes
}

// cut drops the runs of the queue that are behind the page.
func (p *RunPage) cut() {
	slices.SortFunc(p.kept, func(a, b keptRun) int { return a.run.Compare(b.run) })
	bytes := 0
	for n, k := range p.kept {
		if p.full(n, bytes, k.size) {
			clear(p.kept[n:])
			p.kept, p.next = p.kept[:n], true
			break
		}
		bytes += k.size
	}
	p.bytes = bytes
}

// List returns the selected runs that follow the cursor, and where the next page begins.
func (p *RunPage) List() RunList {
	if p.filter.queued() {
		p.cut()
	}
	list := RunList{Items: make([]Run, len(p.kept)), Unreadable: inspect.UnreadableOf(p.bad)}
	for n, k := range p.kept {
		list.Items[n] = inspect.RunOf(k.run)
	}
	if p.next {
		list.Next = runCursorOf(p.kept[len(p.kept)-1].run, p.filter.queued()).String()
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

// before reports whether a place comes before a run.
func (c runCursor) before(r *run.Run) bool {
	if !c.Queue {
		return c.ID < r.ID
	}
	at := run.Run{ID: c.ID, Created: c.Created}
	at.Status, at.Priority, at.Joined, at.NotBefore = run.Queued, c.Priority, c.Joined, c.NotBefore
	return at.Compare(r) < 0
}

func (c runCursor) String() string { return encodeCursor(c) }

// parseRunCursor reads a cursor. The place before all is that of an empty one.
func parseRunCursor(text string) (c runCursor, err error) {
	if text == "" {
		return runCursor{}, nil
	}
	err = decodeCursor(text, &c)
	if err != nil || c.ID == "" {
		return runCursor{}, problem.Field("cursor", "%s is none that was answered as next", problem.Quote(text))
	}
	return c, nil
}

// StepListInput is the input of GET /v1/runs/{id}/steps/{step}.
type StepListInput struct {
	ID     string   `path:"id"`
	Step   string   `path:"step"`
	Status []string `query:"status" doc:"Only instances of these statuses, separated by commas."`
	Limit  int      `query:"limit" minimum:"1" maximum:"10000" default:"100" doc:"How many to answer at most."`
	Cursor string   `query:"cursor" maxLength:"16" doc:"Where to begin: next of the page before."`
}

// Page returns the selection, or what is wrong with it.
func (in *StepListInput) Page() (step.Page, error) {
	from, err := parseStepCursor(in.Cursor)
	page := step.Page{From: from, Limit: in.Limit}
	for _, text := range in.Status {
		status, wrong := parseStepStatus(text)
		if err == nil {
			err = wrong
		}
		page.Statuses = append(page.Statuses, status)
	}
	return page, err
}

// parseStepCursor reads where a page begins: the index of its first instance.
func parseStepCursor(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > step.MaxItems || strconv.Itoa(n) != text {
		return 0, problem.Field("cursor", "%s is none that was answered as next", problem.Quote(text))
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
	return "", problem.Field("status", "%s is none: use %s", problem.Quote(text), strings.Join(names, ", "))
}
