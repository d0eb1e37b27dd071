package ui

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// queuePage is what the page of the queue shows.
type queuePage struct {
	// Waiting is how many runs are queued, and InProgress how many count against the
	// limits.
	Waiting, InProgress int
	// Leader is the coordinator that admits runs; empty if there is none.
	Leader     string
	Limits     limitsView
	Filter     filterForm
	Rows       []queueRow
	Pager      listPager
	Unreadable unreadableRuns
}

// Submitters are the identities that have submitted the runs.
func (p queuePage) Submitters() []string {
	all := make([]string, len(p.Rows))
	for i, r := range p.Rows {
		all[i] = r.SubmittedBy
	}
	return all
}

// queueRow is a queued run.
type queueRow struct {
	Position        int // 0 of one whose time has not come
	ID, Name, Owner string
	// SubmittedBy is the identity that has submitted it.
	SubmittedBy string
	Priority    int
	Since       time.Time
	// Reason is why it still waits, and Kind what is in the way; it is empty before the
	// coordinator has found out.
	Reason string
	Kind   run.BlockKind
	// Steps are those that it has, and Pools the slots that it needs as a whole.
	Steps stepChips
	Pools []poolSlots
	Tags  tagList
	// Attempt counts its starts so far.
	Attempt int
}

// poolSlots are slots of a pool.
type poolSlots struct {
	Pool  string
	Slots int
}

// queueState is what the page takes of the runs, while they are locked.
type queueState struct {
	page       listPage
	positions  []int // of its rows, in the whole queue
	waiting    int
	use        tagUse
	unreadable unreadableRuns
}

func queueStateOf(set *runSet, f *runFilter, after listPlace) queueState {
	l := queueState{waiting: len(set.queue.all), use: tagUseOf(set), unreadable: set.unreadable()}
	if f.Wrong != "" {
		return l
	}
	l.page = set.queue.only(f).pageAfter(after, rowsPerPage)
	for _, r := range l.page.rows {
		at, _ := set.queue.find(r.Run)
		if r.Deferred() { // they come last
			at = -1
		}
		l.positions = append(l.positions, at+1)
	}
	return l
}

// viewQueue reads the page of the queue.
func (p *Pages) viewQueue(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	at := listAddressOf(r, "q", "tag", "limits", "after")
	f := parseRunFilter(at.query)
	after, err := afterOf(at.query)
	if err != nil {
		return nil, err
	}
	env, err := p.runs.environment.read(ctx, s)
	if err != nil {
		return nil, err
	}
	var l queueState
	if err := p.runs.read(ctx, s.Runs, func(set *runSet) { l = queueStateOf(set, &f, after) }); err != nil {
		return nil, err
	}
	steps, err := p.runs.chips.read(ctx, s.Runs, l.page.rows)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Queue", Data: queueOf(l, env, steps, f, at)}, nil
}

// queueOf makes the page.
func queueOf(l queueState, env environment, steps map[submitted]stepChips, f runFilter, at listAddress) queuePage {
	page := queuePage{
		Waiting: l.waiting, InProgress: l.use.runs, Leader: leaderOf(env.candidates),
		Limits: limitsOf(env, l.use, at),
		Filter: f.form(at, "limits"), Pager: pagerOf(l.page, at), Unreadable: l.unreadable,
	}
	space := pool.NewSpace(env.pools...)
	for i, r := range l.page.rows {
		row := queueRow{
			Position: l.positions[i], ID: r.ID, Name: text.Visible(r.Name), Owner: text.Visible(r.Owner), SubmittedBy: r.SubmittedBy, Priority: r.Priority, Since: r.QueuedAt,
			Steps: steps[submittedOf(r.Run)], Tags: at.tags(r.Tags), Attempt: r.Attempt,
		}
		for name, slots := range sortedPools(r.Pools) {
			row.Pools = append(row.Pools, poolSlots{name, slots})
		}
		row.Reason, row.Kind = reasonOf(r.Run, space)
		page.Rows = append(page.Rows, row)
	}
	return page
}

// reasonOf says why a run still waits. Of pools it has the numbers of now, while what is
// noted is no newer than it must be to be true.
func reasonOf(r *run.Run, space *pool.Space) (string, run.BlockKind) {
	b := r.BlockAt(time.Now())
	if b == nil {
		return run.NotChecked, ""
	}
	s := b.Text
	if b.Kind == run.BlockPool {
		if exact := space.Why(r.Pools); exact != "" {
			s = exact
		}
	}
	return text.Visible(s), b.Kind
}

// leaderOf names the coordinator that admits runs.
func leaderOf(candidates []run.Candidate) string {
	switch {
	case len(candidates) == 0:
		return ""
	case candidates[0].Host == "":
		return "a coordinator of another version"
	}
	return text.Visible(candidates[0].Host + "/" + candidates[0].Instance)
}

const (
	// limitsShown is how many limits of tags the queue shows, unless it is asked for all.
	limitsShown = 8
	// valuesShown is how many values it shows of a limit that each value has by itself.
	valuesShown = 5
)

// tagUse is what runs in progress take of limits.
type tagUse struct {
	runs int
	// tags are how many have a tag, by key and value.
	tags map[string]map[string]int
}

func tagUseOf(set *runSet) tagUse {
	use := tagUse{len(set.progress), map[string]map[string]int{}}
	for _, r := range set.progress {
		for key, value := range r.Tags {
			if use.tags[key] == nil {
				use.tags[key] = map[string]int{}
			}
			use.tags[key][value]++
		}
	}
	return use
}

// limitsView is the limits that runs are admitted under, and how full they are.
type limitsView struct {
	// Wrong says why they can't be read.
	Wrong string
	Rows  []limitRow
	// More is how many are not shown, and All where they are.
	More int
	All  string
}

// limitRow is one limit.
type limitRow struct {
	// Name is what is limited. The first row is about all runs, and has none.
	Name string
	// Each is the limit that each value has by itself, of which this is one: KEY=*.
	Each string
	// Used of Limit, which is [run.Unlimited] for none.
	Used, Limit int
	// Hidden is how many more values of such a limit are in use, less than this one.
	Hidden int
}

// Closed reports whether the limit admits no run.
func (l limitRow) Closed() bool { return l.Limit == 0 }

// fullness is how full a limit is. One that admits nothing is full.
func (l limitRow) fullness() float64 {
	if l.Limit == 0 {
		return max(1, float64(l.Used))
	}
	return float64(l.Used) / float64(l.Limit)
}

// limitsOf returns the limits: that of all runs first, then those of tags, the fullest
// first.
func limitsOf(env environment, use tagUse, at listAddress) limitsView {
	if env.limitsWrong != nil {
		return limitsView{Wrong: text.Visible(env.limitsWrong.Error())}
	}
	var tags []limitRow
	for _, t := range env.limits.Tags {
		tags = append(tags, limitRows(t, use.tags[t.Key])...)
	}
	slices.SortStableFunc(tags, func(a, b limitRow) int {
		return cmp.Or(cmp.Compare(b.fullness(), a.fullness()), cmp.Compare(a.Name, b.Name))
	})
	v := limitsView{Rows: []limitRow{{Used: use.runs, Limit: env.limits.MaxConcurrentRuns}}}
	if more := len(tags) - limitsShown; more > 0 && at.query.Get("limits") != "all" {
		v.More, v.All = more, at.with("limits", "all")
		tags = tags[:limitsShown]
	}
	v.Rows = append(v.Rows, tags...)
	return v
}

// limitRows are the rows of a limit of a tag, of whose values so many runs have each.
func limitRows(t run.TagLimit, values map[string]int) []limitRow {
	switch {
	case !t.PerUniqueValue && t.Value != "":
		return []limitRow{{Name: text.Visible(t.Name()), Used: values[t.Value], Limit: t.Limit}}
	case !t.PerUniqueValue:
		row := limitRow{Name: text.Visible(t.Name()), Limit: t.Limit}
		for _, n := range values {
			row.Used += n
		}
		return []limitRow{row}
	case len(values) == 0:
		return []limitRow{{Name: text.Visible(t.Name()), Each: text.Visible(t.Name()), Limit: t.Limit}}
	}
	fullest := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	var rows []limitRow
	for _, value := range fullest[:min(len(fullest), valuesShown)] {
		rows = append(rows, limitRow{Name: text.Visible(t.Key + "=" + value), Each: text.Visible(t.Name()), Used: values[value], Limit: t.Limit})
	}
	rows[len(rows)-1].Hidden = len(fullest) - len(rows)
	return rows
}

// sortedPools are slots by the name of their pool, in order.
func sortedPools(slots map[string]int) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for _, name := range slices.Sorted(maps.Keys(slots)) {
			if !yield(name, slots[name]) {
				return
			}
		}
	}
}

const (
	// chipsShown is how many steps of a run the queue names.
	chipsShown = 6
	// chipReads is how many graphs are read at a time: one can be of half a megabyte.
	chipReads = 10
	// chipsKept bounds the runs whose steps are kept in memory.
	chipsKept = 2000
)

// stepChips is the steps of a run, as the queue shows them.
type stepChips struct {
	Steps []stepChip
	// More is how many are not named.
	More int
	// Wrong says why they can't be shown.
	Wrong string
}

// stepChip is one step.
type stepChip struct {
	Name  string
	Count int // of its instances
}

// submitted distinguishes a run from an earlier one with the same id.
type submitted struct {
	id      string
	created int64
}

func submittedOf(r *run.Run) submitted { return submitted{r.ID, r.Created} }

// chipNotes caches the steps of runs for all pages. The steps of a run never change, so they
// are read once.
type chipNotes struct {
	mu  sync.Mutex
	now map[submitted]stepChips
}

// read returns the steps of those of some runs that have any.
func (c *chipNotes) read(ctx context.Context, s run.Store, runs []*listed) (map[submitted]stepChips, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[submitted]stepChips{}
	var missing []*listed
	for _, l := range runs {
		if l.Steps == 0 {
			continue
		}
		if list, ok := c.now[submittedOf(l.Run)]; ok {
			found[submittedOf(l.Run)] = list
		} else {
			missing = append(missing, l)
		}
	}
	for some := range slices.Chunk(missing, chipReads) {
		if err := readChips(ctx, s, some, found); err != nil {
			return nil, err
		}
	}
	if c.now == nil || len(c.now) > chipsKept {
		c.now = map[submitted]stepChips{}
	}
	for _, l := range missing {
		c.now[submittedOf(l.Run)] = found[submittedOf(l.Run)]
	}
	return found, nil
}

func (c *chipNotes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = nil
}

// readChips reads the steps of some runs.
func readChips(ctx context.Context, s run.Store, runs []*listed, into map[submitted]stepChips) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), environmentTimeout)
	defer cancel()
	reads := make([]*pb.RequestOp, len(runs))
	for i, l := range runs {
		reads[i] = store.Get(s.Keys.Graph(l.ID))
	}
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
	if err != nil {
		return store.Problem("the steps of queued runs could not be read", err)
	}
	for i, l := range runs {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			into[submittedOf(l.Run)] = stepChips{Wrong: "they are gone"}
			continue
		}
		into[submittedOf(l.Run)] = stepChipsOf(string(kvs[0].Key), kvs[0].Value)
	}
	return nil
}

// stepChipsOf returns the steps of a graph.
func stepChipsOf(key string, data []byte) stepChips {
	g, err := step.DecodeGraph(key, data)
	if err != nil {
		return stepChips{Wrong: err.Error()}
	}
	shapes := g.Shapes()
	var list stepChips
	for _, sh := range shapes[:min(len(shapes), chipsShown)] {
		list.Steps = append(list.Steps, stepChip{sh.Name, sh.Count})
	}
	list.More = len(shapes) - len(list.Steps)
	return list
}
