package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// declared is what a file says of the pools and of the limits; nil is nothing at
// all.
type declared struct {
	pools  map[string]declaredPool
	limits *declaredLimits
}

// declaredPool is a pool in a file. A limit must be there; a lease duration or a
// reservation that is not is the default; and a pause is left alone unless the
// file speaks of it.
type declaredPool struct {
	spec   pool.Spec
	paused *bool
}

// change is what has to be set for a pool to be as declared.
func (d declaredPool) change() pool.Change {
	s := d.spec
	return pool.Change{Limit: &s.Limit, LeaseDuration: &s.LeaseDuration, ReserveAfter: &s.ReserveAfter, Paused: d.paused}
}

// decodeDeclared reads a file of the form
//
//	pools:
//	  NAME:
//	    limit: 3
//	    lease_duration: 5m
//	    reserve_after: 1m
//	    paused: false
//	limits:
//	  max_concurrent_runs: 10
//	  tags:
//	    env=prod: 2
//
// strictly. Its error is [*fileProblems], with all of them.
func decodeDeclared(name string, data []byte) (declared, error) {
	var d decoder
	d.document(data)
	if err := d.problems(name); err != nil {
		return declared{}, err
	}
	return d.found, nil
}

// decoder walks through a document and notes what is wrong with it.
type decoder struct {
	strict
	found declared
}

func (d *decoder) document(data []byte) {
	root := d.root(data, "pools or limits")
	if root == nil {
		return
	}
	d.mapping(root, "the file", []string{"pools", "limits"}, func(_ string, key, value *yaml.Node) {
		if key.Value == "limits" {
			d.limits(value)
			return
		}
		d.found.pools = map[string]declaredPool{}
		d.mapping(value, "pools", nil, d.pool)
	})
	if d.found.pools == nil && d.found.limits == nil && len(d.lines) == 0 {
		d.wrong(root, "pools and limits are missing")
	}
}

// pool reads one pool.
func (d *decoder) pool(path string, key, n *yaml.Node) {
	before := len(d.lines)
	if err := pool.ValidateName(key.Value); err != nil {
		d.wrong(key, "%s", messageOf(err))
	}
	p := declaredPool{spec: pool.DefaultSpec()}
	limit := false
	values := map[string]*yaml.Node{}
	d.mapping(n, path, []string{"limit", "lease_duration", "reserve_after", "paused"}, func(path string, key, value *yaml.Node) {
		limit = limit || key.Value == "limit"
		values[key.Value] = value
		if value.Kind != yaml.ScalarNode || isEmpty(value) {
			d.wrong(value, "%s must be a single value", path)
		} else if !d.plain(path, value) {
			return
		} else if must := p.set(key.Value, value.Value); must != "" {
			d.wrong(value, "%s can't be %q: it must be %s", path, value.Value, must)
			p.reset(key.Value)
		}
	})
	if !limit && n.Kind == yaml.MappingNode {
		d.wrong(key, "%s needs a limit", path)
	}
	for err := p.spec.Validate(); values[fieldOf(err)] != nil; err = p.spec.Validate() {
		d.wrong(values[fieldOf(err)], "%s.%s", path, err)
		p.reset(fieldOf(err)) // to see what else is wrong
	}
	if len(d.lines) == before {
		d.found.pools[key.Value] = p
	}
}

// reset makes a field what it is if nothing is said.
func (d *declaredPool) reset(field string) {
	s := pool.DefaultSpec()
	switch field {
	case "limit":
		d.spec.Limit = s.Limit
	case "lease_duration":
		d.spec.LeaseDuration = s.LeaseDuration
	case "reserve_after":
		d.spec.ReserveAfter = s.ReserveAfter
	}
}

// set reads one field. What it returns says what the field must be, if it can't
// be read.
func (d *declaredPool) set(field, text string) (must string) {
	var err error
	switch field {
	case "limit":
		d.spec.Limit, err = strconv.Atoi(text)
		must = "a number of slots, 0 (closed) or -1 (unlimited)"
	case "lease_duration":
		d.spec.LeaseDuration, err = time.ParseDuration(text)
		must = "a duration such as 30s, 5m or 1h30m"
	case "reserve_after":
		d.spec.ReserveAfter, err = pool.ParseReserveAfter(text)
		must = "a duration such as 30s or 5m, 0 (at once) or -1 (never)"
	case "paused":
		d.paused = new(text == "true")
		if text != "true" && text != "false" {
			err = strconv.ErrSyntax
		}
		must = "true or false"
	}
	if err == nil {
		return ""
	}
	return must
}

// fieldOf returns the field that a problem is about, messageOf its message
// without the field.
func fieldOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Field
	}
	return ""
}

func messageOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Message
	}
	return err.Error()
}

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
	if a, b := inspect.LimitText(old.MaxConcurrentRuns), inspect.LimitText(new.MaxConcurrentRuns); a != b {
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
