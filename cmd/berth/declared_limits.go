package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/run"
)

// declaredLimits is what a file says of the limits of runs. What it does not say
// stays.
type declaredLimits struct {
	max *int
	// tags by their names; nil if the file does not speak of them. A limit of
	// [run.Unlimited] is to be removed.
	tags map[string]run.TagLimit
}

// limits reads the section of the limits.
func (d *decoder) limits(n *yaml.Node) {
	found := declaredLimits{}
	d.mapping(n, "limits", []string{"max_concurrent_runs", "tags"}, func(path string, key, value *yaml.Node) {
		if key.Value == "tags" {
			found.tags = map[string]run.TagLimit{}
			d.mapping(value, path, nil, func(path string, key, value *yaml.Node) {
				d.tagLimit(found.tags, path, key, value)
			})
			return
		}
		max := d.number(path, value)
		limits := run.Limits{MaxConcurrentRuns: max}
		if err := limits.Validate(); err != nil {
			d.wrong(value, "limits.%s", err)
		}
		found.max = &max
	})
	d.found.limits = &found
}

func (d *decoder) tagLimit(to map[string]run.TagLimit, path string, key, value *yaml.Node) {
	before := len(d.lines)
	n := d.number(path, value)
	if len(d.lines) > before {
		return
	}
	if strings.HasSuffix(key.Value, "=") || key.Value == "" {
		d.wrong(key, "limits.tags: %q is no tag: write KEY=VALUE, KEY for all values together, or KEY=* for each value by itself", key.Value)
		return
	}
	t, err := run.ParseTagLimit(key.Value + "=" + strconv.Itoa(n))
	switch {
	case err == nil:
		to[t.Name()] = t
	case fieldOf(err) == "tag.limit":
		d.wrong(value, "%s: %s", path, messageOf(err))
	default:
		d.wrong(key, "limits.tags: %s", messageOf(err))
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
func planLimits(is run.Limits, want declaredLimits, prune bool) limitsPlan {
	plan := limitsPlan{Action: keeps}
	plan.then.MaxConcurrentRuns = is.MaxConcurrentRuns
	tags := tagsByName(is.Tags)
	if want.max != nil {
		plan.then.MaxConcurrentRuns, plan.change.MaxConcurrentRuns = *want.max, want.max
	}
	then := maps.Clone(tags)
	for name, t := range want.tags {
		if t.Limit == run.Unlimited {
			delete(then, name)
		} else {
			then[name] = t
		}
	}
	for _, name := range sortedNames(tags) {
		if _, declared := want.tags[name]; declared {
			continue
		}
		if prune && want.tags != nil {
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
	if want.tags == nil {
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
	if a, b := runLimitText(old.MaxConcurrentRuns), runLimitText(new.MaxConcurrentRuns); a != b {
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
