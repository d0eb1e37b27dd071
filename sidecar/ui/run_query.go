package ui

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// The tabs of the page of a run.
const (
	tabSteps       = "steps"
	tabTimeline    = "timeline"
	tabConcurrency = "concurrency"
	tabLogs        = "logs"
	tabEvents      = "events"
)

var runTabs = []string{tabSteps, tabTimeline, tabConcurrency, tabLogs, tabEvents}

// runQuery is what the address of a run's page says.
type runQuery struct {
	run string
	tab string // empty: the one that suits the run
	// step is the one that is expanded, or whose output is shown.
	step string
	// after is the index that the instances of the step begin after; -1: from the first on.
	after  int
	status step.Status // of the instances; empty: all
	// index is the instance whose output is shown; -1: none was asked for.
	index int
	// from is the first of the steps that are shown; -1: those with the expanded one.
	from int
	// before is the place that the events end before; the zero value: the latest.
	before run.Place
}

// maxAfter bounds numbers in addresses.
const maxAfter = step.MaxInstances

// runQueryOf reads the address of a run. What can't be meant is a problem of the field.
func runQueryOf(id string, v url.Values) (runQuery, error) {
	q := runQuery{run: id, tab: v.Get("tab"), step: v.Get("step"), status: step.Status(v.Get("status"))}
	if q.tab != "" && !slices.Contains(runTabs, q.tab) {
		return q, problem.Field("tab", "%.100q is none: use %s", q.tab, strings.Join(runTabs, ", "))
	}
	if q.status != "" && !slices.Contains(step.Statuses, q.status) {
		return q, problem.Field("status", "%.100q is none: use %s", q.status, strings.Join(wordsOf(step.Statuses), ", "))
	}
	for _, n := range []struct {
		field string
		to    *int
	}{{"after", &q.after}, {"index", &q.index}, {"from", &q.from}} {
		text := v.Get(n.field)
		if text == "" {
			*n.to = -1
			continue
		}
		number, err := strconv.Atoi(text)
		if err != nil || number < 0 || number > maxAfter {
			return q, problem.Field(n.field, "%.100q is no number that it can have: use 0 to %d", text, maxAfter)
		}
		*n.to = number
	}
	var err error
	q.before, err = run.ParsePlace("before", v.Get("before"))
	return q, err
}

// href is the address that says this.
func (q runQuery) href() string {
	v := url.Values{}
	for key, text := range map[string]string{"tab": q.tab, "step": q.step, "status": string(q.status)} {
		if text != "" {
			v.Set(key, text)
		}
	}
	for key, n := range map[string]int{"after": q.after, "index": q.index, "from": q.from} {
		if n >= 0 {
			v.Set(key, strconv.Itoa(n))
		}
	}
	if q.before != (run.Place{}) {
		v.Set("before", q.before.String())
	}
	return addressOf("/runs/"+q.run, v)
}

// onTab is a tab of a run with nothing else.
func onTab(run, tab string) runQuery {
	return runQuery{run: run, tab: tab, after: -1, index: -1, from: -1}
}

// in is the tab with a step.
func (q runQuery) in(step string) runQuery {
	q.step, q.after, q.status, q.index = step, -1, "", -1
	return q
}

// logOf is where the output of an instance is.
func logOf(id store.StepID) string {
	q := onTab(id.Run, tabLogs).in(id.Step)
	q.index = id.Index
	return q.href()
}

// wordsOf are texts as plain strings.
func wordsOf[T ~string](all []T) []string {
	some := make([]string, len(all))
	for i, s := range all {
		some[i] = string(s)
	}
	return some
}

// took is the time between two that are known, by clocks that may differ a little;
// empty if one is not known.
func took(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return ""
	}
	return text.Duration(max(0, to.Sub(from)))
}

// pair is a name with what it is set to.
type pair struct{ Key, Value string }

// pairsOf returns tags, labels or the like by name, with visible characters.
func pairsOf(m map[string]string) []pair {
	all := make([]pair, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, pair{text.Visible(key), text.Visible(m[key])})
	}
	return all
}

// countsText says how many instances there are of each status: what has ended badly
// first, and nothing of which there is none.
func countsText(counts map[step.Status]int) string {
	var all []string
	for _, s := range countsOrder {
		if n := counts[s]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(all, ", ")
}

var countsOrder = []step.Status{step.Failed, step.Canceled, step.Running, step.Scheduled, step.Requested, step.Succeeded}

// fewBad are the first of values that can't be read.
func fewBad(bad []error) []string {
	const most = 5
	var all []string
	for _, err := range bad[:min(most, len(bad))] {
		all = append(all, text.Visible(err.Error()))
	}
	if more := len(bad) - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}

const (
	// glanceShare is how many times as long as it took a reading is used again, up to
	// glanceMost: so pages of a large run cost at most a tenth of one reader's capacity, however
	// many are open.
	glanceShare = 9
	glanceMost  = 4 * time.Second
	// glances bounds the readings that are kept.
	glances = 64
)

// glance shares readings among pages that show the same. What is shared is not to be changed.
type glance[T any] struct {
	mu   sync.Mutex
	some map[string]*glanced[T]
}

// glanced is one reading.
type glanced[T any] struct {
	turn  chan struct{} // holds one during a reading
	value T
	until time.Time // when it is too old; zero before the first
}

// get returns a recent reading of a key, or reads it. Errors are not shared.
func (g *glance[T]) get(ctx context.Context, key string, read func(context.Context) (T, error)) (T, error) {
	var none T
	one := g.of(key)
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	defer func() { <-one.turn }()
	begun := time.Now()
	if g.fresh(one, begun) {
		return one.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return none, err
	}
	now := time.Now()
	one.value = value
	g.mu.Lock()
	defer g.mu.Unlock()
	one.until = now.Add(min(glanceShare*now.Sub(begun), glanceMost))
	return value, nil
}

func (g *glance[T]) fresh(one *glanced[T], now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Before(one.until)
}

// of returns the reading of a key, and forgets old ones where there are too many.
func (g *glance[T]) of(key string) *glanced[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.some[key]
	if one != nil {
		return one
	}
	if g.some == nil {
		g.some = map[string]*glanced[T]{}
	}
	now := time.Now()
	for other, o := range g.some {
		if len(g.some) < glances {
			break
		}
		if !now.Before(o.until) {
			delete(g.some, other)
		}
	}
	if len(g.some) >= glances {
		clear(g.some)
	}
	one = &glanced[T]{turn: make(chan struct{}, 1)}
	g.some[key] = one
	return one
}
