package coordinator

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

var planNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var genTags = rapid.Custom(func(t *rapid.T) map[string]string {
	tags := map[string]string{}
	for _, tag := range []struct {
		key    string
		values []string
	}{
		{"env", []string{"", "prod", "dev"}}, {"team", []string{"", "x"}}, {"tenant", []string{"", "a", "b", "c"}},
	} {
		if v := rapid.SampledFrom(tag.values).Draw(t, tag.key); v != "" {
			tags[tag.key] = v
		}
	}
	return tags
})

var genLimits = rapid.Custom(func(t *rapid.T) run.Limits {
	l := run.Limits{MaxConcurrentRuns: rapid.IntRange(-1, 9).Draw(t, "max")}
	for _, tag := range []run.TagLimit{
		{Key: "env"}, {Key: "env", PerUniqueValue: true}, {Key: "env", Value: "dev"}, {Key: "env", Value: "prod"},
		{Key: "other"}, {Key: "team"}, {Key: "tenant", PerUniqueValue: true}, {Key: "tenant", Value: "a"},
	} {
		if tag.Limit = rapid.IntRange(-4, 4).Draw(t, tag.Name()); tag.Limit >= run.Unlimited {
			l.Tags = append(l.Tags, tag)
		}
	}
	return l
})

var genPools = rapid.Custom(func(t *rapid.T) map[string]int {
	return rapid.SampledFrom([]map[string]int{
		nil, nil, nil, {"db": 1}, {"db": 2}, {"gpu": 1}, {"db": 1, "gpu": 1}, {"gone": 1},
	}).Draw(t, "pools")
})

// genSpace draws the pools db and gpu, and one that was deleted; or nil.
var genSpace = rapid.Custom(func(t *rapid.T) *pool.Space {
	if rapid.IntRange(0, 7).Draw(t, "space") == 0 {
		return nil
	}
	status := func(name string) pool.Status {
		p := pool.Status{Name: name, Spec: pool.DefaultSpec(), Claimed: rapid.IntRange(0, 4).Draw(t, "claimed")}
		p.Limit = rapid.IntRange(-1, 5).Draw(t, "limit")
		p.Paused = rapid.IntRange(0, 7).Draw(t, "paused") == 0
		p.ReserveAfter = rapid.SampledFrom([]time.Duration{0, time.Minute, pool.NeverReserve}).Draw(t, "reserve after")
		return p
	}
	gone := status("gone")
	gone.Deleted = true
	return pool.NewSpace(status("db"), status("gpu"), gone)
})

// genSnapshot draws small snapshots in which much is full, overfull, lost, late and
// noted wrongly.
var genSnapshot = rapid.Custom(func(t *rapid.T) *Snapshot {
	s := &Snapshot{
		Now: planNow, Limits: genLimits.Draw(t, "limits"), Queue: NewQueue(), Deferred: NewQueue(), Alive: map[string]bool{},
		Space: genSpace.Draw(t, "pools"), Kept: map[string]bool{},
		StartTimeout: rapid.SampledFrom([]time.Duration{0, 180 * time.Second}).Draw(t, "start timeout"),
		MaxBlocks:    rapid.SampledFrom([]int{0, 1, 3, 100, 100}).Draw(t, "max blocks"),
	}
	draw := func(name string, most int, add func(r *run.Run)) {
		for i := range rapid.IntRange(0, most).Draw(t, name) {
			add(&run.Run{
				ID: fmt.Sprintf("%s%d", name, i), Created: rapid.Int64Range(1, 20).Draw(t, "created"),
				Record: run.Record{Spec: run.Spec{
					Tags: genTags.Draw(t, "tags"), Priority: rapid.IntRange(-1, 1).Draw(t, "priority"),
					Retries: rapid.IntRange(0, 1).Draw(t, "retries"), Pools: genPools.Draw(t, "pools"),
				}},
			})
		}
	}
	s.MaxDue = rapid.SampledFrom([]int{0, 1, 100, 100}).Draw(t, "max due")
	// Some had to wait for a time, which came before theirs or after it.
	waited := func(r *run.Run) {
		r.QueuedAt = planNow.Add(time.Duration(r.Created-20) * time.Second)
		if rapid.IntRange(0, 3).Draw(t, "waited") == 0 {
			r.NotBefore = run.InstantOf(planNow.Add(time.Duration(rapid.IntRange(-20, 0).Draw(t, "joined at")) * time.Second))
			r.Joined = r.Created + rapid.Int64Range(0, 5).Draw(t, "joined")
		}
	}
	draw("d", 5, func(r *run.Run) {
		r.Status = run.Queued
		r.QueuedAt = planNow.Add(time.Duration(r.Created-20) * time.Second)
		r.NotBefore = run.InstantOf(planNow.Add(time.Duration(rapid.IntRange(-20, 3).Draw(t, "not before")) * time.Second))
		s.Deferred.Insert(r)
	})
	draw("p", 8, func(r *run.Run) {
		r.Status = rapid.SampledFrom([]run.Status{run.Running, run.NotStarted}).Draw(t, "status")
		waited(r)
		s.Alive[r.ID] = rapid.SampledFrom([]bool{true, true, true, false}).Draw(t, "alive")
		r.AdmittedAt = planNow.Add(-rapid.SampledFrom([]time.Duration{
			0, 100 * time.Second, 180*time.Second - 1, 180 * time.Second, 1000 * time.Second,
		}).Draw(t, "admitted"))
		s.Kept[r.ID] = rapid.IntRange(0, 2).Draw(t, "kept") > 0
		s.InProgress = append(s.InProgress, r)
	})
	if rapid.Bool().Draw(t, "prepared") {
		s.Queue.Prepare(s.Limits)
	}
	draw("q", 12, func(r *run.Run) {
		r.Status = run.Queued
		waited(r)
		if rapid.Bool().Draw(t, "held") {
			r.HeldSince = planNow.Add(-rapid.SampledFrom([]time.Duration{
				-time.Minute, 0, time.Minute - 1, time.Minute, time.Hour,
			}).Draw(t, "held since"))
		}
		switch rapid.IntRange(0, 2).Draw(t, "noted") {
		case 0:
			r.Block = holdup(s.Limits, s.InProgress, r)
		case 1:
			b := run.TagLimitBlock("env", "prod", 1, 1)
			if len(r.Pools) > 0 {
				b = run.PoolBlock(rapid.SampledFrom([]string{
					"pool 'db' full (1/1 slots)", "pool 'db' has too few free slots (3 slots, 2 wanted)", "others wait for pool 'db' before it",
				}).Draw(t, "pool reason"))
			}
			r.Block = &b
		}
		s.Queue.Insert(r)
	})
	return s
})

func TestEveryPlanKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot.Draw(t, "snapshot")
		if err := broken(s, s.Plan()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWhatIsDoneAsPlannedNeedsNoOtherPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot.Draw(t, "snapshot")
		s.MaxBlocks, s.MaxDue = 100, 100
		for due := s.Plan().Due; len(due) > 0; due = s.Plan().Due { // what joins is another plan's
			carryOut(s, Plan{Due: due})
		}
		first := s.Plan()
		if len(first.Back) > 0 {
			return // the next plan is to let others at the pools
		}
		// A run that has reserved slots may be held up by a tag since, of which others had
		// the last places: the next plan sees that it reserves no more.
		rounds := 1
		if len(s.Limits.Tags) > 0 && reserves(s.Space) {
			rounds = 1 + s.Queue.Len()
		}
		var next Plan
		for plan := first; rounds > 0; rounds, plan = rounds-1, next {
			carryOut(s, plan)
			if next = s.Plan(); next.Empty() {
				return
			}
		}
		t.Fatalf("after %+v: %+v", first, next)
	})
}

// reserves reports whether any run may reserve slots.
func reserves(s *pool.Space) bool {
	return s != nil && s.ReserveAfter(map[string]int{"db": 1, "gpu": 1, "gone": 1}) != pool.NeverReserve
}

// carryOut does what a plan says to the snapshot that it is of.
func carryOut(s *Snapshot, p Plan) {
	progress := append(remaining(s), p.Admit...)
	for _, d := range p.Due {
		s.Deferred.Remove(d.Run)
		d.Run.Joined = d.Behind
		s.Queue.Insert(d.Run)
	}
	for _, r := range p.Admit {
		s.Queue.Remove(r)
		r.Status, r.AdmittedAt = run.NotStarted, planNow
		if len(r.Pools) > 0 {
			s.Space.Take(r.Pools)
			s.Kept[r.ID] = true
		}
	}
	for _, b := range p.Blocks {
		b.Run.Block = &b.Block
		if b.Held {
			b.Run.HeldSince = planNow
		}
		s.Queue.Insert(b.Run)
	}
	s.InProgress = progress
}

func TestAPlanChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot.Draw(t, "snapshot")
		before := written(s)
		s.Plan()
		if after := written(s); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// written is all of a snapshot as text: that of its queue with what it keeps for
// plans.
func written(s *Snapshot) string {
	records := func(runs []*run.Run) string {
		b, err := json.Marshal(runs)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	return fmt.Sprintf("%+v\n%+v\n%s\n%s\n%v\n%+v", *s, s.Space, records(s.InProgress), records(slices.Collect(s.Queue.All())),
		s.Queue.parts, *s.Queue.classes)
}

func TestTheSamePlanIsMadeOfTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot.Draw(t, "snapshot")
		want := s.Plan()
		if got := s.Plan(); !reflect.DeepEqual(got, want) {
			t.Fatalf("again: %+v, want %+v", got, want)
		}
		// The same in other clothes: a queue that has known other runs and limits,
		// and is prepared or not.
		other := *s
		other.InProgress = rapid.Permutation(s.InProgress).Draw(t, "in progress")
		other.Queue = NewQueue()
		other.Deferred = NewQueue()
		for _, r := range rapid.Permutation(slices.Collect(s.Deferred.All())).Draw(t, "deferred") {
			other.Deferred.Insert(r)
		}
		other.Queue.Prepare(rapid.OneOf(rapid.Just(s.Limits), genLimits).Draw(t, "limits before"))
		queue := rapid.Permutation(slices.Collect(s.Queue.All())).Draw(t, "queue")
		for _, r := range queue {
			passing := &run.Run{ID: "passing", Record: run.Record{Spec: run.Spec{Tags: genTags.Draw(t, "tags")}}}
			other.Queue.Insert(passing)
			other.Queue.Insert(r)
			other.Queue.Remove(passing)
		}
		if rapid.Bool().Draw(t, "prepared again") {
			other.Queue.Prepare(s.Limits)
		}
		if got := other.Plan(); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// TestBrokenPlansAreCaught proves that the rules bite: each way to spoil a plan is
// noticed wherever it spoils one.
func TestBrokenPlansAreCaught(t *testing.T) {
	left := func(s *Snapshot, p *Plan) []*run.Run {
		return slices.DeleteFunc(slices.Collect(s.Queue.All()), func(r *run.Run) bool { return slices.Contains(p.Admit, r) })
	}
	for name, spoil := range map[string]func(*Snapshot, *Plan) bool{
		"one more goes": func(s *Snapshot, p *Plan) bool {
			for _, r := range left(s, p) {
				p.Admit = append(p.Admit, r)
				slices.SortFunc(p.Admit, (*run.Run).Compare)
				return true
			}
			return false
		},
		"the first does not go":   func(_ *Snapshot, p *Plan) bool { return drop(&p.Admit, 0) },
		"the last does not go":    func(_ *Snapshot, p *Plan) bool { return drop(&p.Admit, len(p.Admit)-1) },
		"one goes twice":          func(_ *Snapshot, p *Plan) bool { return twice(&p.Admit) },
		"the order is turned":     func(_ *Snapshot, p *Plan) bool { return turn(p.Admit) },
		"one is not lost":         func(_ *Snapshot, p *Plan) bool { return drop(&p.Lost, 0) },
		"one is lost twice":       func(_ *Snapshot, p *Plan) bool { return twice(&p.Lost) },
		"one does not expire":     func(_ *Snapshot, p *Plan) bool { return drop(&p.Expired, 0) },
		"losses are out of order": func(_ *Snapshot, p *Plan) bool { return turn(p.Lost) },
		"one that is lost goes at once": func(_ *Snapshot, p *Plan) bool {
			p.Admit = append(p.Admit, p.Lost...)
			return len(p.Lost) > 0
		},
		"one that lives is lost": func(s *Snapshot, p *Plan) bool {
			at := slices.IndexFunc(s.InProgress, func(r *run.Run) bool { return !slices.Contains(p.Lost, r) })
			if at < 0 {
				return false
			}
			p.Lost = append(p.Lost, s.InProgress[at])
			return true
		},
		"a reason is forgotten":    func(_ *Snapshot, p *Plan) bool { return drop(&p.Blocks, 0) },
		"reasons are out of order": func(_ *Snapshot, p *Plan) bool { return turn(p.Blocks) },
		"a reason comes twice":     func(_ *Snapshot, p *Plan) bool { return twice(&p.Blocks) },
		"a run that ages is not reported": func(_ *Snapshot, p *Plan) bool {
			i := slices.IndexFunc(p.Blocks, func(b Blocked) bool { return b.Held })
			if i >= 0 {
				p.Blocks[i].Held = false
			}
			return i >= 0
		},
		"a reason has another number": func(_ *Snapshot, p *Plan) bool { return len(p.Blocks) > 0 && add(&p.Blocks[0].Block.Text, "0") },
		"a reason is of another kind": func(_ *Snapshot, p *Plan) bool {
			if len(p.Blocks) == 0 {
				return false
			}
			kind := &p.Blocks[0].Block.Kind
			*kind = map[run.BlockKind]run.BlockKind{run.BlockRunLimit: run.BlockTagLimit, run.BlockTagLimit: run.BlockRunLimit, run.BlockPool: run.BlockRunLimit}[*kind]
			return true
		},
		"a reason is noted already": func(s *Snapshot, p *Plan) bool {
			for _, r := range left(s, p) {
				if r.Block != nil && !slices.ContainsFunc(p.Blocks, func(b Blocked) bool { return b.Run == r }) {
					p.Blocks = slices.Insert(p.Blocks, 0, Blocked{Run: r, Block: *r.Block})
					return true
				}
			}
			return false
		},
		"one that goes has a reason": func(_ *Snapshot, p *Plan) bool {
			for _, r := range p.Admit {
				p.Blocks = append(p.Blocks, Blocked{Run: r, Block: run.RunLimitBlock(1, 1)})
				return true
			}
			return false
		},
		"one whose time has come stays away": func(_ *Snapshot, p *Plan) bool { return drop(&p.Due, 0) },
		"one joins twice":                    func(_ *Snapshot, p *Plan) bool { return twice(&p.Due) },
		"one joins too early": func(s *Snapshot, p *Plan) bool {
			for r := range s.Deferred.All() {
				if r.NotBefore.After(s.Now) {
					p.Due = append(p.Due, Joining{r, r.Created})
					return true
				}
			}
			return false
		},
		"one joins before its turn": func(_ *Snapshot, p *Plan) bool {
			if len(p.Due) > 0 {
				p.Due[0].Behind--
			}
			return len(p.Due) > 0
		},
		"one goes whose time has not come": func(s *Snapshot, p *Plan) bool {
			for r := range s.Deferred.All() {
				p.Admit = append(p.Admit, r)
				return true
			}
			return false
		},
		"the deadline is later": func(_ *Snapshot, p *Plan) bool {
			p.NextDeadline = p.NextDeadline.Add(time.Second)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := 0
			for seed := range 300 {
				s := genSnapshot.Example(seed)
				p := s.Plan()
				if !spoil(s, &p) {
					continue
				}
				spoiled++
				if broken(s, p) == nil {
					t.Fatalf("not noticed: %+v in the plan of %s", p, written(s))
				}
			}
			if spoiled == 0 {
				t.Fatal("no plan could be spoiled so")
			}
		})
	}
}

func drop[T any](list *[]T, at int) bool {
	if len(*list) == 0 {
		return false
	}
	*list = slices.Delete(*list, at, at+1)
	return true
}

func twice[T any](list *[]T) bool {
	if len(*list) == 0 {
		return false
	}
	*list = append(*list, (*list)[len(*list)-1])
	return true
}

func turn[T any](list []T) bool {
	slices.Reverse(list)
	return len(list) > 1
}

func add(to *string, text string) bool {
	*to += text
	return true
}
