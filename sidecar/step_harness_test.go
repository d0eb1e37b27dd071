package sidecar_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// steps is the store of steps as a worker has it.
func (d *dock) steps() step.Store {
	return step.Store{Backend: d.store.Backend, Keys: d.store.Keys, Journal: d.store.Journal, Group: &store.Group{}}
}

// published waits until an instance can be taken.
func (d *dock) published(id store.StepID) *step.Published {
	d.t.Helper()
	var found *step.Published
	eventually(d.t, id.String()+" is published", func() bool {
		all, err := store.ReadAll(d.t.Context(), d.store.Backend, d.store.Keys.ReadyAll())
		if err != nil {
			d.t.Fatal(err)
		}
		for _, kv := range all.KVs {
			if p, err := step.DecodeReady(d.store.Keys, kv); err == nil && p.ID() == id {
				found = p
			}
		}
		return found != nil
	})
	return found
}

// takes takes an instance as a worker on host two would.
func (d *dock) takes(id store.StepID) *step.Taken {
	d.t.Helper()
	p := d.published(id)
	lease, _, err := d.store.Backend.Grant(d.t.Context(), time.Hour)
	if err != nil {
		d.t.Fatal(err)
	}
	taken, err := d.steps().Take(d.t.Context(), p, run.Executor{Host: "two", Instance: "worker"}, lease)
	if err != nil {
		d.t.Fatal(err)
	}
	return taken
}

// ends finishes an instance as its worker would.
func (d *dock) ends(t *step.Taken, o step.Outcome) {
	d.t.Helper()
	if _, err := d.steps().Finish(d.t.Context(), t, o, nil); err != nil {
		d.t.Fatal(err)
	}
}

// fan is a step for external executors, with so many items.
func fan(name string, items int64, change ...func(*step.Spec)) step.Spec {
	s := step.Spec{Name: name, External: true, Items: &step.Items{Range: &step.Range{From: 1, To: items, By: 1}}}
	for _, f := range change {
		f(&s)
	}
	return s
}

// counts are those of a step, without what is zero.
func counts(s api.Step) string {
	var all []string
	for _, c := range []struct {
		what string
		n    int
	}{
		{"requested", s.Counts.Requested}, {"scheduled", s.Counts.Scheduled}, {"running", s.Counts.Running},
		{"succeeded", s.Counts.Succeeded}, {"failed", s.Counts.Failed}, {"canceled", s.Counts.Canceled},
	} {
		if c.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(all, ", ")
}
