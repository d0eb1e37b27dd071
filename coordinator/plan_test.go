package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
)

// tagged is a queued run, named and tagged as in "a env=prod tenant=x".
func tagged(text string) *run.Run {
	words := strings.Fields(text)
	r := &run.Run{ID: words[0], Record: run.Record{Status: run.Queued, Spec: run.Spec{Tags: map[string]string{}}}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		r.Tags[key] = value
	}
	return r
}

func running(text string) *run.Run {
	r := tagged(text)
	r.Status = run.Running
	return r
}

func limited(t *testing.T, most int, tags ...string) run.Limits {
	t.Helper()
	l := run.Limits{MaxConcurrentRuns: most}
	for _, text := range tags {
		tag, err := run.ParseTagLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		l.Tags = append(l.Tags, tag)
	}
	return l
}

// snapshotOf has the runs in the order in which they were submitted, and all
// executors alive.
func snapshotOf(l run.Limits, progress []*run.Run, queued ...*run.Run) *Snapshot {
	s := &Snapshot{
		Now: planNow, Limits: l, Queue: NewQueue(), InProgress: progress, Alive: map[string]bool{},
		StartTimeout: 3 * time.Minute, MaxBlocks: 100,
	}
	s.Queue.Prepare(l)
	for _, r := range progress {
		s.Alive[r.ID] = true
	}
	for i, r := range queued {
		r.Created = int64(i + 1)
		s.Queue.Insert(r)
	}
	return s
}

// planText is a plan as text: which runs are lost (-), expired (~), admitted (+), and why
// others are not.
func planText(p Plan) []string {
	var lines []string
	for _, r := range p.Lost {
		lines = append(lines, "-"+r.ID)
	}
	for _, r := range p.Expired {
		lines = append(lines, "~"+r.ID)
	}
	for _, r := range p.Admit {
		lines = append(lines, "+"+r.ID)
	}
	for _, b := range p.Blocks {
		lines = append(lines, fmt.Sprintf("%s: %s", b.Run.ID, b.Block.Text))
	}
	return lines
}

func checkPlan(t *testing.T, s *Snapshot, want ...string) Plan {
	t.Helper()
	p := s.Plan()
	if diff := cmp.Diff(want, planText(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := broken(s, p); err != nil {
		t.Error(err)
	}
	return p
}

func TestAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		limits   run.Limits
		progress []string
		queued   []string
		want     []string
	}{
		"no queue": {limits: limited(t, 10)},
		"up to max_concurrent_runs": {
			limits: limited(t, 3), progress: []string{"p"}, queued: []string{"a", "b", "c", "d"},
			want: []string{"+a", "+b", "c: global run limit (3/3)", "d: global run limit (3/3)"},
		},
		"no bound": {
			limits: limited(t, run.Unlimited), progress: []string{"p", "o"}, queued: []string{"a", "b"},
			want: []string{"+a", "+b"},
		},
		"closed": {
			limits: limited(t, 0), queued: []string{"a"},
			want: []string{"a: global run limit (0/0)"},
		},
		"a lowered limit stops no run and admits none": {
			limits: limited(t, 1), progress: []string{"p", "o", "n"}, queued: []string{"a"},
			want: []string{"a: global run limit (3/1)"},
		},
		"a value of a tag": {
			limits: limited(t, 10, "env=prod=2"), progress: []string{"p env=prod"},
			queued: []string{"a env=prod", "b env=prod", "c env=dev", "d", "e env=prod"},
			want:   []string{"+a", "+c", "+d", "b: tag limit: env=prod (2/2)", "e: tag limit: env=prod (2/2)"},
		},
		"all values of a tag together": {
			limits: limited(t, 10, "env=2"), progress: []string{"p env=prod"},
			queued: []string{"a env=dev", "b env=test", "c"},
			want:   []string{"+a", "+c", "b: tag limit: env (2/2)"},
		},
		"each value of a tag": {
			limits: limited(t, 10, "tenant=*=1"), progress: []string{"p tenant=a"},
			queued: []string{"a tenant=a", "b tenant=b", "c tenant=b", "d tenant=c"},
			want:   []string{"+b", "+d", "a: tag limit: tenant=a (1/1)", "c: tag limit: tenant=b (1/1)"},
		},
		"a closed tag": {
			limits: limited(t, 10, "env=prod=0"), queued: []string{"a env=prod", "b env=dev"},
			want: []string{"+b", "a: tag limit: env=prod (0/0)"},
		},
		"a lowered limit of a tag": {
			limits: limited(t, 10, "env=prod=1"), progress: []string{"p env=prod", "o env=prod"},
			queued: []string{"a env=prod", "b"},
			want:   []string{"+b", "a: tag limit: env=prod (2/1)"},
		},
		"all of several limits": {
			limits: limited(t, 10, "env=3", "env=prod=1", "tenant=*=1"), progress: []string{"p env=prod tenant=x"},
			queued: []string{"a env=dev tenant=x", "b env=prod tenant=y", "c env=dev tenant=y", "d env=dev tenant=y", "e env=dev"},
			want: []string{
				"+c", "+e", // and so env is full
				"a: tag limit: env (3/3)", "b: tag limit: env (3/3)", "d: tag limit: env (3/3)",
			},
		},
		"the first limit that blocks a run is reported": {
			limits: limited(t, 10, "env=9", "env=prod=0", "tenant=*=0"),
			queued: []string{"a env=prod tenant=x", "b env=dev tenant=x"},
			want:   []string{"a: tag limit: env=prod (0/0)", "b: tag limit: tenant=x (0/0)"},
		},
		"max_concurrent_runs is reported before a tag": {
			limits: limited(t, 1, "env=prod=0"), queued: []string{"a env=prod", "b", "c"},
			want: []string{"+b", "a: global run limit (1/1)", "c: global run limit (1/1)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var progress, queued []*run.Run
			for _, text := range tc.progress {
				progress = append(progress, running(text))
			}
			for _, text := range tc.queued {
				queued = append(queued, tagged(text))
			}
			checkPlan(t, snapshotOf(tc.limits, progress, queued...), tc.want...)
		})
	}
}

func TestHigherPriorityGoesFirstAndThenWhoCameFirst(t *testing.T) {
	a, b, c, d := tagged("a"), tagged("b"), tagged("c"), tagged("d")
	b.Priority, d.Priority, a.Priority = 5, 5, -1
	checkPlan(t, snapshotOf(limited(t, 3), nil, a, b, c, d), "+b", "+d", "+c", "a: global run limit (3/3)")
}

func TestRunsThatHaveEndedFreeCapacityAtOnce(t *testing.T) {
	gone, late, early := running("gone env=prod"), running("late env=prod"), running("early")
	gone.Retries = 1
	late.Status, late.AdmittedAt = run.NotStarted, planNow.Add(-3*time.Minute)
	early.Status, early.AdmittedAt = run.NotStarted, planNow.Add(-3*time.Minute+time.Millisecond)
	s := snapshotOf(limited(t, 3, "env=prod=2"), []*run.Run{gone, late, early},
		tagged("a env=prod"), tagged("b env=prod"), tagged("c env=prod"))
	delete(s.Alive, "gone")
	delete(s.Alive, "late") // it has no executor to be seen
	delete(s.Alive, "early")
	p := checkPlan(t, s, "-gone", "~late", "+a", "+b", "c: global run limit (3/3)")
	if want := planNow.Add(time.Millisecond); !p.NextDeadline.Equal(want) {
		t.Errorf("the next deadline is %v, want %v", p.NextDeadline, want)
	}

	s.Now = p.NextDeadline
	if p = checkPlan(t, s, "-gone", "~early", "~late", "+a", "+b", "c: tag limit: env=prod (2/2)"); !p.NextDeadline.IsZero() {
		t.Errorf("the next deadline is %v, and no run waits", p.NextDeadline)
	}
	s.StartTimeout = 0
	checkPlan(t, s, "-gone", "+a", "b: global run limit (3/3)", "c: global run limit (3/3)")
}

func TestARunThatHasEndedCountsAgainstNothing(t *testing.T) {
	ended := running("p")
	ended.Status = run.Succeeded
	s := snapshotOf(limited(t, 1), []*run.Run{ended}, tagged("a"))
	if diff := cmp.Diff([]string{"+a"}, planText(s.Plan())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReasonsAreReportedOnceAndAFewAtATime(t *testing.T) {
	queued := []*run.Run{tagged("a"), tagged("b"), tagged("c"), tagged("d")}
	right, wrong := run.RunLimitBlock(0, 0), run.RunLimitBlock(1, 1)
	queued[0].Block, queued[1].Block = &right, &wrong
	s := snapshotOf(limited(t, 0), nil, queued...)
	s.MaxBlocks = 2
	p := checkPlan(t, s, "b: global run limit (0/0)", "c: global run limit (0/0)")
	for _, b := range p.Blocks {
		b.Run.Block = &b.Block
		s.Queue.Insert(b.Run)
	}
	p = checkPlan(t, s, "d: global run limit (0/0)")
	if p.Empty() {
		t.Error("it is empty, and has a reason to write")
	}
	queued[3].Block = &p.Blocks[0].Block
	s.Queue.Insert(queued[3])
	if p = checkPlan(t, s); !p.Empty() {
		t.Error("it is not empty")
	}
}
