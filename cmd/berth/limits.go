package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func limitsCommand() *cli.Command {
	return &cli.Command{
		Name:        "limits",
		Category:    running,
		Usage:       "show and change the limits of runs",
		Subcommands: []*cli.Command{limitsGetCommand(), limitsSetCommand()},
	}
}

func limitsGetCommand() *cli.Command {
	return &cli.Command{
		Name:   "get",
		Usage:  "show the limits, and how much of them is used",
		Action: onEtcd(limitsGet),
	}
}

func limitsGet(r *request) error {
	limits, _, err := r.Runs.Limits(r.ctx())
	if err != nil {
		return err
	}
	used, err := usedOf(r, limits)
	if err != nil {
		return err
	}
	return r.print(limitsRecordOf(limits, used), func(out *page) { limitsTable(out, used) })
}

// limitsRecord is what limits are printed as: as in the file of export, with what is
// used of them.
type limitsRecord struct {
	exportedLimits
	Used usedRecord `json:"used"`
}

// usedRecord is what is used of limits, by their names in [exportedLimits]. Fullest is the
// value that Tags has the use of, where each value has a limit of its own.
type usedRecord struct {
	exportedLimits
	Fullest map[string]string `json:"fullest,omitempty"`
}

func limitsRecordOf(l run.Limits, used []usedLimit) limitsRecord {
	r := limitsRecord{exportedLimits: exportLimits(l)}
	r.Used.Tags, r.Used.Fullest = map[string]int{}, map[string]string{}
	for _, u := range used {
		if u.name == maxRuns {
			r.Used.MaxConcurrentRuns = u.used
			continue
		}
		r.Used.Tags[u.name] = u.used
		if u.value != "" {
			r.Used.Fullest[u.name] = u.value
		}
	}
	return r
}

// usedLimit is a limit with what is used of it.
type usedLimit struct {
	name  string
	limit int
	used  int
	value string // the fullest one, where each has a limit of its own
}

// over reports whether the use exceeds the limit.
func (u usedLimit) over() bool { return u.limit != run.Unlimited && u.used > u.limit }

// text says what is used.
func (u usedLimit) text() string {
	if u.value != "" {
		return fmt.Sprintf("%d (%s)", u.used, u.value)
	}
	return strconv.Itoa(u.used)
}

const maxRuns = "max_concurrent_runs"

// usedOf counts the runs in progress by what limits them.
func usedOf(r *request, l run.Limits) ([]usedLimit, error) {
	all, err := r.Runs.All(r.ctx())
	if err != nil {
		return nil, err
	}
	return usedLimits(all.With(run.NotStarted, run.Running), l), nil
}

func usedLimits(runs []*run.Run, l run.Limits) []usedLimit {
	all := []usedLimit{{name: maxRuns, limit: l.MaxConcurrentRuns, used: len(runs)}}
	for _, t := range l.Tags {
		u := usedLimit{name: t.Name(), limit: t.Limit}
		byValue := map[string]int{}
		for _, r := range runs {
			if value, ok := r.Tags[t.Key]; ok && (t.Value == "" || t.Value == value) {
				byValue[value]++
			}
		}
		for _, value := range sortedNames(byValue) {
			switch n := byValue[value]; {
			case !t.PerUniqueValue:
				u.used += n
			case n > u.used:
				u.used, u.value = n, value
			}
		}
		all = append(all, u)
	}
	return all
}

func limitsTable(out *page, used []usedLimit) {
	var rows [][]string
	for _, u := range used {
		rows = append(rows, []string{u.name, pool.LimitText(u.limit), u.text()})
	}
	out.table("", []string{"RUNS IN PROGRESS", "LIMIT", "USED"}, rows)
}

// unchanged is the default of what a command leaves alone.
const unchanged = "unchanged"

func limitsSetCommand() *cli.Command {
	return &cli.Command{
		Name:  "set",
		Usage: "change limits",
		Description: `Limits that no flag names are not changed. The limit of a tag counts the runs in progress

   env=prod=2   with the tag env=prod
   team=5       with the tag team, all values together
   tenant=*=1   with the tag tenant, each value separately

and is removed by the number -1. A limit of 0 admits no run. A lower limit stops no run:
no more are admitted until enough runs have ended.`,
		Flags: wayFlags(
			&cli.StringFlag{Name: "max-concurrent-runs", Usage: "admit at most `N` runs at a time, -1 for no limit", DefaultText: unchanged},
			&cli.StringSliceFlag{Name: "tag", Usage: "set the `LIMIT` of a tag, as above; may be repeated"},
		),
		Action: handle(limitsSet),
	}
}

func limitsSet(r *request) error {
	var change run.LimitsChange
	if r.IsSet("max-concurrent-runs") {
		n, err := pool.ParseLimit(r.String("max-concurrent-runs"))
		if err != nil {
			return usagef("--max-concurrent-runs %s", problem.Of(err).Message)
		}
		change.MaxConcurrentRuns = &n
	}
	for _, text := range r.StringSlice("tag") {
		t, err := run.ParseTagLimit(text)
		if err != nil {
			return ofLine(err)
		}
		change.Tags = append(change.Tags, t)
	}
	if change.MaxConcurrentRuns == nil && len(change.Tags) == 0 {
		return usagef("no limit is given: use --max-concurrent-runs N or --tag LIMIT")
	}
	if err := change.Validate(); err != nil {
		return ofLine(err)
	}
	return way{r: r}.change(
		func(w way) error { return w.setLimits(change) },
		func() error { return setLimits(r, change) },
	)
}

func setLimits(r *request, change run.LimitsChange) error {
	before, _, err := r.Runs.Limits(r.ctx())
	if err != nil {
		return err
	}
	limits, _, err := r.SetLimits(r.ctx(), change)
	if err != nil {
		return err
	}
	used, err := usedOf(r, limits)
	if err != nil {
		return err
	}
	return printLimits(r, before, limits, used)
}

// printLimits prints how limits were changed.
func printLimits(r *request, before, limits run.Limits, used []usedLimit) error {
	warnOfExcessRuns(r, used)
	return r.print(limitsRecordOf(limits, used), func(out *page) {
		if changes := limitsChanges(before, limits); len(changes) > 0 {
			out.line("limits changed: %s", strings.Join(changes, ", "))
		} else {
			out.line("limits unchanged")
		}
	})
}

// warnOfExcessRuns warns of the limits that are below the number of runs in progress.
func warnOfExcessRuns(r *request, used []usedLimit) {
	for _, u := range used {
		if u.over() {
			r.say("warning: %s runs in progress count against %s, above its limit of %d; none is stopped, and none is admitted until %d have ended",
				u.text(), u.name, u.limit, u.used-u.limit+1)
		}
	}
}

// limitsPlan is what has to be done to the limits to make them as declared.
type limitsPlan struct {
	Action  action   `json:"action"`
	Changes []string `json:"changes,omitempty"`
	// Others are limits of tags that are not in the file, and stay.
	Others []string `json:"others,omitempty"`

	change run.LimitsChange
	then   run.Limits
}

// planLimits compares what is declared with what is. Limits of tags that are not
// declared are removed with prune, and left alone without.
func planLimits(is run.Limits, want manifest.Limits, prune bool) limitsPlan {
	plan := limitsPlan{Action: keeps}
	plan.then.MaxConcurrentRuns = is.MaxConcurrentRuns
	tags := tagsByName(is.Tags)
	if want.Max != nil {
		plan.then.MaxConcurrentRuns, plan.change.MaxConcurrentRuns = *want.Max, want.Max
	}
	then := maps.Clone(tags)
	for name, t := range want.Tags {
		if t.Limit == run.Unlimited {
			delete(then, name)
		} else {
			then[name] = t
		}
	}
	for _, name := range sortedNames(tags) {
		if _, declared := want.Tags[name]; declared {
			continue
		}
		if prune && want.Tags != nil {
			delete(then, name)
		} else {
			plan.Others = append(plan.Others, name)
		}
	}
	plan.then.Tags = slices.Collect(maps.Values(then))
	for _, name := range sortedNames(then) {
		if then[name] != tags[name] {
			plan.change.Tags = append(plan.change.Tags, then[name])
		}
	}
	for name, t := range tags {
		if _, stays := then[name]; !stays {
			t.Limit = run.Unlimited
			plan.change.Tags = append(plan.change.Tags, t)
		}
	}
	if plan.Changes = limitsChanges(is, plan.then); len(plan.Changes) > 0 {
		plan.Action = changes
	}
	if want.Tags == nil {
		plan.Others = nil // the file is about something else
	}
	return plan
}

func tagsByName(tags []run.TagLimit) map[string]run.TagLimit {
	all := map[string]run.TagLimit{}
	for _, t := range tags {
		all[t.Name()] = t
	}
	return all
}

// limitsChanges says what differs between two sets of limits.
func limitsChanges(old, new run.Limits) []string {
	var all []string
	if a, b := pool.LimitText(old.MaxConcurrentRuns), pool.LimitText(new.MaxConcurrentRuns); a != b {
		all = append(all, "max_concurrent_runs "+a+" → "+b)
	}
	before, after := tagsByName(old.Tags), tagsByName(new.Tags)
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range sortedNames(names) {
		a, was := before[name]
		b, is := after[name]
		switch {
		case !was:
			all = append(all, fmt.Sprintf("%s none → %d", name, b.Limit))
		case !is:
			all = append(all, fmt.Sprintf("%s %d → none", name, a.Limit))
		case a.Limit != b.Limit:
			all = append(all, fmt.Sprintf("%s %d → %d", name, a.Limit, b.Limit))
		}
	}
	return all
}
