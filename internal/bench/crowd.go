package bench

import (
	"fmt"
	"math/rand/v2"

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
