package ui

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
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
		return q, problem.Field("tab", "%.100q is none: allowed are %s", q.tab, strings.Join(runTabs, ", "))
	}
	if q.status != "" && !slices.Contains(step.Statuses, q.status) {
		return q, problem.Field("status", "%.100q is none: allowed are %s", q.status, strings.Join(wordsOf(step.Statuses), ", "))
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
			return q, problem.Field(n.field, "%.100q is no number that it can have: allowed are 0 to %d", text, maxAfter)
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
