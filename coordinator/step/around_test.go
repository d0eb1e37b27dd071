package step

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// seen is a presence as a test has it.
type seen struct {
	host, name string
	queues     []string
	capacity   int
}

func (s seen) Works() (host, instance string, queues []string, capacity int) {
	return s.host, s.name, s.queues, s.capacity
}

func TestWorkersAreThoseThatRunSteps(t *testing.T) {
	got := WorkersOf(
		[]seen{
			{"a", "sidecar", nil, 0}, {"a", "worker", []string{DefaultQueue, "gpu"}, 4},
			{"b", "worker", nil, 2}, {"b", "other", []string{"gpu"}, 1},
		},
		[]Active{{Host: "a", Instance: "worker", Steps: 3, Runs: 1}, {Host: "a", Instance: "sidecar", Runs: 2}, {Host: "b", Instance: "other", Steps: 1}, {Host: "gone", Instance: "worker", Steps: 9}},
		map[WorkerID]WorkerState{{"b", "worker"}: {Mode: Drained}, {"b", "elsewhere"}: {Mode: Drained}},
	)
	want := []Worker{
		{ID: WorkerID{"a", "worker"}, Queues: []string{DefaultQueue, "gpu"}, Capacity: 4, Active: 3},
		{ID: WorkerID{"b", "worker"}, Capacity: 2, Idle: true},
		{ID: WorkerID{"b", "other"}, Queues: []string{"gpu"}, Capacity: 1, Active: 1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// What nothing waits for is not read, and what can't be read is an error.
func TestOnlyThatIsReadWhichSomethingWaitsFor(t *testing.T) {
	full, workers, no := space(limited("db", 1, 1)), []Worker{{Capacity: 1}}, errors.New("no")
	for name, c := range map[string]struct {
		has        []Status
		candidates int
		fails      string
		reads      []string
		want       Around
	}{
		"nothing":                   {has: []Status{Running, Succeeded}},
		"to be let go":              {has: []Status{Requested, Running}, candidates: 1, reads: []string{"candidates"}},
		"no leader publishes them":  {has: []Status{Requested}, reads: []string{"candidates"}, want: Around{Leaderless: true}},
		"to be taken":               {has: []Status{Scheduled}, reads: []string{"workers", "space"}, want: Around{Space: full, Workers: workers, Blind: true}},
		"both":                      {has: []Status{Requested, Scheduled}, candidates: 2, reads: []string{"candidates", "workers", "space"}, want: Around{Space: full, Workers: workers, Blind: true}},
		"candidates that are hid":   {has: []Status{Requested, Scheduled}, fails: "candidates", reads: []string{"candidates"}},
		"workers that are hid":      {has: []Status{Scheduled}, fails: "workers", reads: []string{"workers"}},
		"pools that can't be seen":  {has: []Status{Scheduled}, fails: "space", reads: []string{"workers", "space"}},
		"what is hid and unwatched": {has: []Status{Running}, fails: "workers"},
	} {
		var reads []string
		read := func(what string) error {
			if reads = append(reads, what); what == c.fails {
				return no
			}
			return nil
		}
		l := &Outlook{
			Candidates: func(context.Context) ([]run.Candidate, error) {
				return make([]run.Candidate, c.candidates), read("candidates")
			},
			Workers: func(context.Context) ([]Worker, bool, error) { return workers, true, read("workers") },
			Space:   func(context.Context) (*pool.Space, error) { return full, read("space") },
		}
		got, err := l.Around(t.Context(), func(s Status) bool { return slices.Contains(c.has, s) })
		failed := len(c.reads) > 0 && c.reads[len(c.reads)-1] == c.fails
		if failed != errors.Is(err, no) {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(c.reads, reads); d != "" {
			t.Errorf("%s: read %s", name, d)
		}
		if got.Now.IsZero() {
			t.Errorf("%s: it does not report when that is", name)
		}
		got.Now = time.Time{}
		same := cmp.Comparer(func(a, b *pool.Space) bool { return a == b })
		if d := cmp.Diff(c.want, got, cmpopts.EquateEmpty(), same); !failed && d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
}
