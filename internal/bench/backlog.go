package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
)

const (
	// crowdProgress is how many runs of a crowd are in progress, and crowdTenants how
	// many tenants have them: each has as many as it may.
	crowdProgress = 1_000
	crowdTenants  = 500
	tenantLimit   = crowdProgress / crowdTenants
	// widely is a limit that is never reached.
	widely = 5_000
)

// crowdLimits are 50, of values, of keys, and of each value. Those of tenants are
// reached by the runs in progress, and so hold all others up.
func crowdLimits() run.Limits {
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

// crowdSpec is the i-th of a crowd in which nearly no two meet the same limits: the
// hardest for plans. Tenants take turns.
func crowdSpec(i int) run.Spec {
	random := rand.New(rand.NewPCG(uint64(i), 3))
	return run.Spec{Name: "nightly import", Tags: map[string]string{
		"job":                                 fmt.Sprint("job-", random.IntN(40)),
		fmt.Sprint("needs-", random.IntN(12)): "yes",
		fmt.Sprint("each-", random.IntN(9)):   fmt.Sprint(random.IntN(1000)),
		"tenant":                              fmt.Sprint("tenant-", i%crowdTenants),
		"team":                                "whatever",
	}}
}

// crowdID names the i-th of those in progress or queued; names sort as numbers do.
func crowdID(status run.Status, i int) string { return fmt.Sprintf("%s-%07d", status, i) }

const (
	// planBlocks is how many reasons a leader changes in a tick.
	planBlocks = 1024
	// planAdmits is for how many more there is room where very many may go.
	planAdmits = 1024
)

// measurePlans has plans made over and over from one snapshot: they change nothing.
func (r *runner) measurePlans(ctx context.Context, row *Row) error {
	s := crowdSnapshot(row.Queued)
	admits := 0
	switch row.Kind {
	case planIdle:
		settle(s)
	case planLast:
		settle(s)
		admits = 1
		s.Queue.Insert(&run.Run{ID: "open", Created: 1 << 40, Record: run.Record{Status: run.Queued}})
	case planMany:
		admits = min(planAdmits, row.Queued)
		s.Limits.MaxConcurrentRuns = crowdProgress + planAdmits
		s.Limits.Tags[len(s.Limits.Tags)-1].Limit = widely
	}
	reasons := 0
	if row.Kind == planMany {
		reasons = min(planBlocks, row.Queued-admits)
	}
	samples, err := labeled(ctx, "case", func(ctx context.Context) ([]time.Duration, error) {
		var samples []time.Duration
		end := time.Now().Add(r.cfg.Duration * time.Duration(r.cfg.Rounds))
		for len(samples) == 0 || time.Now().Before(end) {
			begun := time.Now()
			p := s.Plan()
			samples = append(samples, time.Since(begun))
			if len(p.Admit) != admits || len(p.Blocks) != reasons {
				return nil, fmt.Errorf("a plan admits %d runs and notes %d reasons: it should be %d and %d",
					len(p.Admit), len(p.Blocks), admits, reasons)
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
		return samples, nil
	})
	row.Plan = summarize(samples)
	return err
}

// crowdSnapshot is of a crowd with so many queued, as a leader has it: prepared for
// its limits.
func crowdSnapshot(queued int) *coordinator.Snapshot {
	s := &coordinator.Snapshot{
		Now: time.Now(), Limits: crowdLimits(), Queue: coordinator.NewQueue(), Alive: map[string]bool{},
		StartTimeout: startTimeout, MaxBlocks: planBlocks,
	}
	s.Queue.Prepare(s.Limits)
	for i := range crowdProgress {
		r := &run.Run{ID: crowdID(run.Running, i), Created: int64(i), Record: run.Record{
			Spec: crowdSpec(i), Status: run.Running,
		}}
		s.Alive[r.ID], s.InProgress = true, append(s.InProgress, r)
	}
	for i := range queued {
		s.Queue.Insert(&run.Run{ID: crowdID(run.Queued, i), Created: int64(crowdProgress + i), Record: run.Record{
			Spec: crowdSpec(crowdProgress + i), Status: run.Queued,
		}})
	}
	return s
}

// settle notes with each run why it is queued, as a leader has done after a while.
func settle(s *coordinator.Snapshot) {
	s.MaxBlocks = s.Queue.Len()
	for _, b := range s.Plan().Blocks {
		b.Run.Block = &b.Block
		s.Queue.Insert(b.Run)
	}
	s.MaxBlocks = planBlocks
}
