package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func TestTheQueueShowsWhoWaitsAndWhy(t *testing.T) {
	since := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	shore := newShore()
	put := func(id string, change func(*run.Record)) {
		shore.put(id, record(run.Queued, func(r *run.Record) {
			r.QueuedAt = since
			change(r)
		}), false)
	}
	put("first", func(r *run.Record) {
		r.Name, r.Steps, r.Tags = "Load", 21, map[string]string{"env": "prod"}
		block := run.RunLimitBlock(10, 10)
		r.Block = &block
	})
	put("urgent", func(r *run.Record) {
		r.Priority, r.Pools, r.Attempt = 9, map[string]int{"gpu": 1, "db": 2}, 1
		block := run.PoolBlock("noted")
		r.Block = &block
	})
	shore.put("later", record(run.Queued, func(r *run.Record) {
		r.QueuedAt, r.Priority, r.NotBefore = since, 99, run.InstantOf(time.Now().Add(time.Hour+time.Minute/2))
	}), false)
	put("new", func(r *run.Record) { r.Priority = -3 })
	shore.put("running", record(run.Running), false)
	set := shore.set()

	steps := map[submitted]stepChips{submittedOf(set.byID["first"].Run): {Steps: []stepChip{{"extract", 20}, {"load", 1}}}}
	around := environment{
		limits: run.DefaultLimits(),
		candidates: []run.Candidate{
			{Candidate: election.Candidate{Host: "one", Instance: "coordinator"}},
			{Candidate: election.Candidate{Host: "two", Instance: "coordinator"}},
		},
		pools: []pool.Status{{Name: "db", Spec: pool.Spec{Limit: 3}, Claimed: 2}, {Name: "gpu", Spec: pool.Spec{Limit: 4}}},
	}
	got := queueOf(queueStateOf(set, &runFilter{}, listPlace{}), around, steps, runFilter{}, atQueue)
	// One whose time has not come is the last, and in no place.
	if n := len(got.Rows) - 1; n < 0 || got.Rows[n].ID != "later" || got.Rows[n].Position != 0 ||
		got.Rows[n].Kind != run.BlockNotBefore || !strings.Contains(got.Rows[n].Reason, "Z (in 1h0m") {
		t.Errorf("the last is %+v", got.Rows[n])
	} else {
		got.Rows = got.Rows[:n]
	}
	want := queuePage{
		Waiting: 4, InProgress: 1, Leader: "one/coordinator",
		Limits: limitsView{Rows: []limitRow{{Used: 1, Limit: 10}}},
		Filter: filterForm{Action: "/queue"},
		Pager:  listPager{First: 1, Last: 4, Of: 4},
		Rows: []queueRow{
			{
				Position: 1, ID: "urgent", Priority: 9, Since: since, Attempt: 1,
				Reason: "pool 'db' has too few free slots (2/3 slots, 2 wanted)", Kind: run.BlockPool, Pools: []poolSlots{{"db", 2}, {"gpu", 1}},
			},
			{
				Position: 2, ID: "first", Name: "Load", Since: since, Reason: "global run limit (10/10)", Kind: run.BlockRunLimit,
				Steps: stepChips{Steps: []stepChip{{"extract", 20}, {"load", 1}}}, Tags: tagList{Links: []listLink{{"env=prod", "/queue?tag=env%3Dprod"}}},
			},
			{Position: 3, ID: "new", Priority: -3, Since: since, Reason: run.NotChecked},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Positions are those in the whole queue, whatever is filtered by.
func TestAFilteredQueueKeepsItsPositions(t *testing.T) {
	shore := newShore()
	for i := range 200 {
		shore.put(fmt.Sprintf("r%03d", i), record(run.Queued, func(r *run.Record) {
			if i%10 == 0 {
				r.Tags = map[string]string{"ten": "yes"}
			}
		}), false)
	}
	f := parseRunFilter(url.Values{"tag": {"ten=yes"}})
	l := queueStateOf(shore.set(), &f, listPlace{})
	page := queueOf(l, environment{}, nil, f, listAddress{"/queue", url.Values{"tag": {"ten=yes"}}})
	if len(page.Rows) != 20 || page.Waiting != 200 || page.Pager.Of != 20 || page.Filter.Clear != "/queue" || page.Leader != "" {
		t.Fatalf("%+v", page)
	}
	for i, row := range page.Rows {
		if row.Position != i*10+1 {
			t.Errorf("%s is at %d", row.ID, row.Position)
		}
	}
}

func TestAReasonOfPoolsHasTheNumbersOfNow(t *testing.T) {
	noted := run.PoolBlock("pool 'db' full (3/3 slots)")
	r := &run.Run{ID: "a"}
	r.Block, r.Pools = &noted, map[string]int{"db": 1}
	for _, c := range []struct {
		name string
		pool pool.Status
		want string
	}{
		{"full", pool.Status{Name: "db", Spec: pool.Spec{Limit: 2}, Claimed: 2}, "pool 'db' full (2/2 slots)"},
		{"paused", pool.Status{Name: "db", Spec: pool.Spec{Limit: 2, Paused: true}}, "pool 'db' is paused"},
		{"free slots, not checked yet", pool.Status{Name: "db", Spec: pool.Spec{Limit: 2}}, "pool 'db' full (3/3 slots)"},
	} {
		if got, _ := reasonOf(r, pool.NewSpace(c.pool)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhoLeadsIsNamed(t *testing.T) {
	for want, all := range map[string][]run.Candidate{
		"":                                    nil,
		"a coordinator of another version":    {{Candidate: election.Candidate{Term: 7}}},
		text.Visible("o\u202ene/coordinator"): {{Candidate: election.Candidate{Host: "o\u202ene", Instance: "coordinator"}}},
	} {
		if got := leaderOf(all); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestStepsAreNamedUpToABound(t *testing.T) {
	var specs []step.Spec
	for i := range chipsShown + 4 {
		specs = append(specs, step.Spec{Name: fmt.Sprintf("s%d", i), External: true})
	}
	specs[0].Items = &step.Items{Range: &step.Range{From: 1, To: 30, By: 1}}
	g, err := step.NewGraph(specs)
	if err != nil {
		t.Fatal(err)
	}
	list := stepChipsOf("k", g.Encode())
	if len(list.Steps) != chipsShown || list.More != 4 || list.Steps[0] != (stepChip{"s0", 30}) || list.Wrong != "" {
		t.Errorf("%+v", list)
	}
	if list := stepChipsOf("/b/steps/a", []byte("?")); !strings.Contains(list.Wrong, "/b/steps/a") || list.Steps != nil {
		t.Errorf("%+v", list)
	}
}
