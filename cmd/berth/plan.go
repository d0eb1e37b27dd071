package main

import (
	"strings"

	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// poolPlan is what has to be done to one pool to make it as declared.
type poolPlan struct {
	Name   string `json:"name"`
	Action action `json:"action"`
	// Changes in words, of a pool that changes or is made.
	Changes []string `json:"changes,omitempty"`
	// Claimed slots of a pool that is deleted, or left alone.
	Claimed int `json:"claimed,omitempty"`

	change pool.Change
}

// action is what is done to a pool.
type action string

const (
	creates action = "create"
	changes action = "change"
	keeps   action = "keep"
	deletes action = "delete"
	ignores action = "ignore" // not in the file, and not to be deleted
)

// planPools compares what is declared with what is. Pools that are not declared
// are deleted with prune, and left alone without. The order is that in which it
// is to be carried out: what deletes comes last.
func planPools(is []pool.Status, want declared, prune bool) []poolPlan {
	now := map[string]pool.Status{}
	for _, p := range is {
		if !p.Deleted {
			now[p.Name] = p
		}
	}
	var plans []poolPlan
	for _, name := range sortedNames(want.pools) {
		d := want.pools[name]
		p, exists := now[name]
		plan := poolPlan{Name: name, Action: keeps, change: d.change()}
		spec := d.spec
		spec.Paused = p.Paused
		if d.paused != nil {
			spec.Paused = *d.paused
		}
		switch {
		case !exists:
			plan.Action, plan.Changes = creates, []string{specText(spec)}
		case spec != p.Spec:
			plan.Action, plan.Changes = changes, specChanges(p.Spec, spec)
		}
		plans = append(plans, plan)
	}
	for _, name := range sortedNames(now) {
		if _, declared := want.pools[name]; declared {
			continue
		}
		plan := poolPlan{Name: name, Action: ignores, Claimed: now[name].Claimed}
		if prune {
			plan.Action = deletes
		}
		plans = append(plans, plan)
	}
	return plans
}

// line writes one line of the difference; empty for what stays.
func (p poolPlan) line() string {
	switch p.Action {
	case creates:
		return "+ " + p.Name + ": " + strings.Join(p.Changes, ", ")
	case changes:
		return "~ " + p.Name + ": " + strings.Join(p.Changes, ", ")
	case deletes:
		if p.Claimed > 0 {
			return "- " + p.Name + " (" + text.Count(p.Claimed, "slot") + " still held)"
		}
		return "- " + p.Name
	}
	return ""
}
