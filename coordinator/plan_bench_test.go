package coordinator

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

const (
	benchQueued   = 100_000
	benchProgress = 1_000
)

// benchLimits are 50: of values, of keys, and of each value. Those of tenants are
// reached where each of 500 has two runs in progress.
func benchLimits() run.Limits {
	l := run.Limits{MaxConcurrentRuns: run.Unlimited}
	for i := range 30 {
		l.Tags = append(l.Tags, run.TagLimit{Key: "job", Value: fmt.Sprint("job-", i), Limit: 5000})
	}
	for i := range 10 {
		l.Tags = append(l.Tags, run.TagLimit{Key: fmt.Sprint("needs-", i), Limit: 5000})
	}
	for i := range 9 {
		l.Tags = append(l.Tags, run.TagLimit{Key: fmt.Sprint("each-", i), PerUniqueValue: true, Limit: 5000})
	}
	l.Tags = append(l.Tags, run.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: 2})
	return l
}

// benchSnapshot has runs that carry five tags each. With kinds, there are so many
// sorts of queued runs; else nearly every one is of its own.
func benchSnapshot(kinds int) *Snapshot {
	random := rand.New(rand.NewPCG(1, 2))
	tags := func(i int) map[string]string {
		if kinds > 0 {
			i %= kinds
		}
		of := rand.New(rand.NewPCG(uint64(i), 3))
		return map[string]string{
			"job": fmt.Sprint("job-", of.IntN(40)), fmt.Sprint("needs-", of.IntN(12)): "yes",
			fmt.Sprint("each-", of.IntN(9)): fmt.Sprint(of.IntN(1000)),
			"tenant":                        fmt.Sprint("tenant-", of.IntN(500)), "team": "whatever",
		}
	}
	s := &Snapshot{
		Now: planNow, Limits: benchLimits(), Queue: NewQueue(), Alive: map[string]bool{},
		StartTimeout: 3 * time.Minute, MaxBlocks: 1024,
	}
	for i := range benchProgress {
		r := &run.Run{ID: fmt.Sprint("progress-", i), Created: int64(i), Record: run.Record{
			Spec: run.Spec{Tags: tags(i)}, Status: run.Running,
		}}
		r.Tags["tenant"] = fmt.Sprint("tenant-", i%500)
		s.Alive[r.ID], s.InProgress = true, append(s.InProgress, r)
	}
	s.Queue.Prepare(s.Limits)
	for _, i := range random.Perm(benchQueued) {
		s.Queue.Insert(&run.Run{ID: fmt.Sprint("queued-", i), Created: int64(benchProgress + i), Record: run.Record{
			Spec: run.Spec{Tags: tags(random.IntN(1 << 30)), Priority: i % 3}, Status: run.Queued,
		}})
	}
	return s
}

// noteReasons notes the reasons of all that stay.
func (s *Snapshot) noteReasons() {
	few := s.MaxBlocks
	s.MaxBlocks = 2 * benchQueued
	for _, b := range s.Plan().Blocks {
		b.Run.Block = &b.Block
		s.Queue.Insert(b.Run)
	}
	s.MaxBlocks = few
}

// open puts a run at the end of the queue that meets no limit.
func (s *Snapshot) open() {
	s.Queue.Insert(&run.Run{ID: "open", Created: 1 << 40, Record: run.Record{
		Spec: run.Spec{Priority: -1000}, Status: run.Queued,
	}})
}

func BenchmarkPlan(b *testing.B) {
	for name, tc := range map[string]struct {
		kinds             int
		with              func(*Snapshot)
		admitted, blocked int
	}{
		"all blocked by the global limit":  {0, func(s *Snapshot) { s.Limits.MaxConcurrentRuns = benchProgress }, 0, 1024},
		"the same with reasons noted":      {0, func(s *Snapshot) { s.Limits.MaxConcurrentRuns = benchProgress; s.noteReasons() }, 0, 0},
		"all blocked by limits of tags":    {0, func(*Snapshot) {}, 0, 1024},
		"nothing changed":                  {0, (*Snapshot).noteReasons, 0, 0},
		"nothing changed, 2000 kinds":      {2000, (*Snapshot).noteReasons, 0, 0},
		"one may go, the last":             {0, func(s *Snapshot) { s.noteReasons(); s.open() }, 1, 0},
		"one may go, the last, 2000 kinds": {2000, func(s *Snapshot) { s.noteReasons(); s.open() }, 1, 0},
		"1024 may go": {0, func(s *Snapshot) {
			s.Limits.MaxConcurrentRuns, s.Limits.Tags[len(s.Limits.Tags)-1].Limit = benchProgress+1024, 100
		}, 1024, 1024},
		"all may go": {0, func(s *Snapshot) {
			for i := range s.Limits.Tags {
				s.Limits.Tags[i].Limit = benchQueued * 2
			}
		}, benchQueued, 0},
		"each value closed": {0, func(s *Snapshot) {
			s.Limits.Tags = []run.TagLimit{{Key: "id", PerUniqueValue: true}}
			for r := range s.Queue.All() {
				r.Tags["id"] = r.ID
			}
			s.Queue.Prepare(s.Limits)
			s.noteReasons()
		}, 0, 0},
		"not prepared": {0, func(s *Snapshot) { s.noteReasons(); s.Queue.Prepare(run.Limits{}) }, 0, 0},
	} {
		b.Run(name, func(b *testing.B) {
			s := benchSnapshot(tc.kinds)
			tc.with(s)
			b.ReportAllocs()
			for b.Loop() {
				if p := s.Plan(); len(p.Admit) != tc.admitted || len(p.Blocks) != tc.blocked {
					b.Fatalf("%d admitted, %d blocked", len(p.Admit), len(p.Blocks))
				}
			}
			b.ReportMetric(float64(s.Queue.classes.size()), "classes")
		})
	}
}

func BenchmarkQueue(b *testing.B) {
	s := benchSnapshot(0)
	var runs []*run.Run
	for r := range s.Queue.All() {
		runs = append(runs, r)
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	i := 0
	next := func() *run.Run {
		i++
		return runs[i%len(runs)]
	}
	b.Run("remove and insert", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r := next()
			s.Queue.Remove(r)
			s.Queue.Insert(r)
		}
	})
	b.Run("newer record", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Queue.Insert(next())
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range s.Queue.All() {
				n++
			}
		}
	})
	b.Run("prepare", func(b *testing.B) {
		for b.Loop() {
			s.Queue.Prepare(run.Limits{})
			s.Queue.Prepare(s.Limits)
		}
	})
}
