//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/bench"
)

const (
	// inProgress is how many runs of a backlog are in progress, and tenants how many
	// tenants have them: each has as many as it may.
	inProgress  = 1_000
	tenants     = 500
	tenantLimit = inProgress / tenants
	// widely is a limit that is never reached.
	widely = 5_000
)

// backlogLimits are 50, of values, of keys, and of each value. Those of tenants are
// reached by the runs in progress, and so block all others.
func backlogLimits() run.Limits {
	l := run.Limits{MaxConcurrentRuns: run.Unlimited}
	for i := range 30 {
		l.Tags = append(l.Tags, run.TagLimit{Key: "job", Value: fmt.Sprint("job-", i), Limit: widely})
	}
	for i := range 10 {
		l.Tags = append(l.Tags, run.TagLimit{Key: fmt.Sprint("needs-", i), Limit: widely})
	}
	for i := range 9 {
		l.Tags = append(l.Tags, run.TagLimit{Key: fmt.Sprint("each-", i), PerUniqueValue: true, Limit: widely})
	}
	l.Tags = append(l.Tags, run.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: tenantLimit})
	return l
}

// backlogSpec returns the i-th run of a backlog in which nearly no two runs meet the
// same limits, which is the hardest for plans. Tenants take turns.
func backlogSpec(i int) run.Spec {
	random := rand.New(rand.NewPCG(uint64(i), 3))
	return run.Spec{Name: "nightly import", Tags: map[string]string{
		"job":                                 fmt.Sprint("job-", random.IntN(40)),
		fmt.Sprint("needs-", random.IntN(12)): "yes",
		fmt.Sprint("each-", random.IntN(9)):   fmt.Sprint(random.IntN(1000)),
		"tenant":                              fmt.Sprint("tenant-", i%tenants),
		"team":                                "whatever",
	}}
}

// backlogID returns the id of the i-th run in progress or queued; ids sort as numbers do.
func backlogID(status run.Status, i int) string { return fmt.Sprintf("%s-%07d", status, i) }

const (
	// planBlocks is how many reasons a leader changes in a tick.
	planBlocks = 1024
	// planAdmits is how many more runs the limits allow where very many may start.
	planAdmits = 1024
)

// measurePlans makes plans from one snapshot again and again: they do not change it.
func (r *runner) measurePlans(ctx context.Context, row *row) error {
	s := backlogSnapshot(row.Queued)
	admits := 0
	switch row.Kind {
	case planIdle:
		recordAll(s)
	case planLast:
		recordAll(s)
		admits = 1
		s.Queue.Insert(&run.Run{ID: "open", Created: 1 << 40, Record: run.Record{Status: run.Queued}})
	case planMany:
		admits = min(planAdmits, row.Queued)
		s.Limits.MaxConcurrentRuns = inProgress + planAdmits
		s.Limits.Tags[len(s.Limits.Tags)-1].Limit = widely
	}
	reasons := 0
	if row.Kind == planMany {
		reasons = min(planBlocks, row.Queued-admits)
	}
	samples, err := bench.Labeled(ctx, "case", func(ctx context.Context) ([]time.Duration, error) {
		var samples []time.Duration
		end := time.Now().Add(r.Duration * time.Duration(r.Rounds))
		for len(samples) == 0 || time.Now().Before(end) {
			begun := time.Now()
			p := s.Plan()
			samples = append(samples, time.Since(begun))
			if len(p.Admit) != admits || len(p.Blocks) != reasons {
				return nil, fmt.Errorf("a plan admits %d runs and records %d reasons: it should be %d and %d",
					len(p.Admit), len(p.Blocks), admits, reasons)
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
		return samples, nil
	})
	row.Plan = bench.Summarize(samples)
	return err
}

// backlogSnapshot returns a snapshot of a backlog as a leader has it: prepared for its
// limits.
func backlogSnapshot(queued int) *coordinator.Snapshot {
	s := &coordinator.Snapshot{
		Now: time.Now(), Limits: backlogLimits(), Queue: coordinator.NewQueue(), Alive: map[string]bool{},
		StartTimeout: startTimeout, MaxBlocks: planBlocks,
	}
	s.Queue.Prepare(s.Limits)
	for i := range inProgress {
		r := &run.Run{ID: backlogID(run.Running, i), Created: int64(i), Record: run.Record{
			Spec: backlogSpec(i), Status: run.Running,
		}}
		s.Alive[r.ID], s.InProgress = true, append(s.InProgress, r)
	}
	for i := range queued {
		s.Queue.Insert(&run.Run{ID: backlogID(run.Queued, i), Created: int64(inProgress + i), Record: run.Record{
			Spec: backlogSpec(inProgress + i), Status: run.Queued,
		}})
	}
	return s
}

// recordAll records with each run why it is queued, as a leader has done after a while.
func recordAll(s *coordinator.Snapshot) {
	s.MaxBlocks = s.Queue.Len()
	for _, b := range s.Plan().Blocks {
		b.Run.Block = &b.Block
		s.Queue.Insert(b.Run)
	}
	s.MaxBlocks = planBlocks
}
