package ui

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

var atQueue = listAddress{"/queue", url.Values{}}

// inUse is a use by runs in progress with these values of the tag env each.
func inUse(values ...string) tagUse {
	shore := newShore()
	for i, v := range values {
		shore.put(fmt.Sprintf("r%d", i), record(run.Running, func(r *run.Record) {
			if v != "" {
				r.Tags = map[string]string{"env": v}
			}
		}), false)
	}
	shore.put("queued", record(run.Queued, func(r *run.Record) { r.Tags = map[string]string{"env": "prod"} }), false)
	return tagUseOf(shore.set())
}

func TestLimitsShowHowFullTheyAre(t *testing.T) {
	use := inUse("prod", "prod", "dev", "")
	for _, c := range []struct {
		name  string
		limit run.TagLimit
		want  []limitRow
	}{
		{"of a value", run.TagLimit{Key: "env", Value: "prod", Limit: 2}, []limitRow{{Name: "env=prod", Used: 2, Limit: 2}}},
		{"of a value that none has", run.TagLimit{Key: "env", Value: "x", Limit: 2}, []limitRow{{Name: "env=x", Limit: 2}}},
		{"of all values together", run.TagLimit{Key: "env", Limit: 5}, []limitRow{{Name: "env", Used: 3, Limit: 5}}},
		{"of each value", run.TagLimit{Key: "env", PerUniqueValue: true, Limit: 3}, []limitRow{
			{Name: "env=prod", Each: "env=*", Used: 2, Limit: 3}, {Name: "env=dev", Each: "env=*", Used: 1, Limit: 3},
		}},
		{"of each value of a tag that none has", run.TagLimit{Key: "t", PerUniqueValue: true, Limit: 3}, []limitRow{{Name: "t=*", Each: "t=*", Limit: 3}}},
		{"that admits nothing", run.TagLimit{Key: "env", Value: "dev", Limit: 0}, []limitRow{{Name: "env=dev", Used: 1}}},
	} {
		v := limitsOf(environment{limits: run.Limits{MaxConcurrentRuns: 10, Tags: []run.TagLimit{c.limit}}}, use, atQueue)
		want := append([]limitRow{{Used: 4, Limit: 10}}, c.want...)
		if d := cmp.Diff(limitsView{Rows: want}, v); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	if !(limitRow{Used: 1}).Closed() || (limitRow{Limit: run.Unlimited}).Closed() {
		t.Error("a limit of 0 is closed, and no other")
	}
}

func TestTheFullestLimitsComeFirst(t *testing.T) {
	limits := run.Limits{MaxConcurrentRuns: run.Unlimited, Tags: []run.TagLimit{
		{Key: "env", Value: "dev", Limit: 4}, {Key: "a", Limit: 9}, {Key: "env", Value: "prod", Limit: 2}, {Key: "closed", Limit: 0},
	}}
	v := limitsOf(environment{limits: limits}, inUse("prod", "prod", "prod", "dev"), atQueue)
	var names []string
	for _, row := range v.Rows {
		names = append(names, row.Name)
	}
	if want := []string{"", "env=prod", "closed", "env=dev", "a"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestManyLimitsAreBounded(t *testing.T) {
	var limits run.Limits
	for i := range limitsShown + 3 {
		limits.Tags = append(limits.Tags, run.TagLimit{Key: fmt.Sprintf("k%02d", i), Limit: 1})
	}
	v := limitsOf(environment{limits: limits}, inUse(), listAddress{"/queue", url.Values{"q": {"x"}}})
	if len(v.Rows) != limitsShown+1 || v.More != 3 || v.All != "/queue?limits=all&q=x" {
		t.Errorf("%d rows, %+v", len(v.Rows), v)
	}
	v = limitsOf(environment{limits: limits}, inUse(), listAddress{"/queue", url.Values{"limits": {"all"}}})
	if len(v.Rows) != limitsShown+4 || v.More != 0 {
		t.Errorf("%d rows, %+v", len(v.Rows), v)
	}

	var values []string
	for i := range valuesShown + 4 {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	v = limitsOf(environment{limits: run.Limits{Tags: []run.TagLimit{{Key: "env", PerUniqueValue: true, Limit: 2}}}}, inUse(values...), atQueue)
	if last := v.Rows[len(v.Rows)-1]; len(v.Rows) != valuesShown+1 || last.Hidden != 4 {
		t.Errorf("%+v", v.Rows)
	}
}

func TestLimitsThatCantBeReadAreNotGuessed(t *testing.T) {
	v := limitsOf(environment{limits: run.DefaultLimits(), limitsWrong: errors.New("no \x00 limits")}, inUse("prod"), atQueue)
	if d := cmp.Diff(limitsView{Wrong: text.Visible("no \x00 limits")}, v); d != "" {
		t.Error(d)
	}
}

// What the bars say is what the coordinator counts: each run in progress against each
// limit that is about it.
func TestBarsCountWhatLimitsCount(t *testing.T) {
	values := []string{"", "prod", "dev", "test"}
	rapid.Check(t, func(t *rapid.T) {
		drawn := rapid.SliceOf(rapid.SampledFrom(values)).Draw(t, "in progress")
		use := inUse(drawn...)
		for _, value := range values[1:] {
			want := 0
			for _, v := range drawn {
				if v == value {
					want++
				}
			}
			if got := limitRows(run.TagLimit{Key: "env", Value: value, Limit: 1}, use.tags["env"])[0].Used; got != want {
				t.Fatalf("%d of %s, want %d", got, value, want)
			}
		}
		if use.runs != len(drawn) {
			t.Fatalf("%d runs, want %d", use.runs, len(drawn))
		}
	})
}
