package run

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestParseTagLimit(t *testing.T) {
	for text, want := range map[string]TagLimit{
		"env=prod=2":   {Key: "env", Value: "prod", Limit: 2},
		"env=3":        {Key: "env", Limit: 3},
		"tenant=*=1":   {Key: "tenant", PerUniqueValue: true, Limit: 1},
		"a=b=c=4":      {Key: "a", Value: "b=c", Limit: 4},
		"env=prod=-1":  {Key: "env", Value: "prod", Limit: Unlimited},
		"größe=xl ü=0": {Key: "größe", Value: "xl ü"},
	} {
		got, err := ParseTagLimit(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	for _, text := range []string{"", "env", "env=", "=1", "env=prod", "env==1", "env=*=x", "env=-2", "env=prod=2000000", "a\x00=1", "env=prod=1.5"} {
		if got, err := ParseTagLimit(text); problem.CodeOf(err) != problem.Invalid {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t)
	l, rev, err := r.Limits(t.Context())
	if err != nil || rev != 0 || l.MaxConcurrentRuns != DefaultMaxRuns {
		t.Errorf("without any: %+v, %d, %v", l, rev, err)
	}
	five := 5
	set := func(ch LimitsChange) Limits {
		t.Helper()
		l, _, err := r.SetLimits(t.Context(), ch)
		if err != nil {
			t.Fatal(err)
		}
		if read, _, err := r.Limits(t.Context()); err != nil || !read.equal(l) {
			t.Errorf("read back: %+v, %v", read, err)
		}
		return l
	}
	set(LimitsChange{Tags: []TagLimit{{Key: "env", Value: "prod", Limit: 2}}})
	l = set(LimitsChange{MaxConcurrentRuns: &five, Tags: []TagLimit{{Key: "a", Limit: 1}, {Key: "env", Value: "prod", Limit: 3}}})
	want := Limits{MaxConcurrentRuns: 5, Tags: []TagLimit{{Key: "a", Limit: 1}, {Key: "env", Value: "prod", Limit: 3}}}
	if d := cmp.Diff(want, l); d != "" {
		t.Error(d)
	}
	_, before, _ := r.Limits(t.Context())
	set(LimitsChange{MaxConcurrentRuns: &five})
	if _, after, _ := r.Limits(t.Context()); after != before {
		t.Error("what changes nothing was written")
	}
	l = set(LimitsChange{Tags: []TagLimit{{Key: "a", Limit: Unlimited}}})
	if len(l.Tags) != 1 {
		t.Errorf("with one removed: %+v", l)
	}
	l = set(LimitsChange{Replace: true, Tags: []TagLimit{{Key: "b", PerUniqueValue: true, Limit: 1}}})
	if len(l.Tags) != 1 || l.Tags[0].Key != "b" || l.MaxConcurrentRuns != 5 {
		t.Errorf("replaced: %+v", l)
	}
	_, read, _ := r.Limits(t.Context())
	outdated, others := problem.New(problem.Precondition, "another revision"), false
	_, _, err = r.SetLimits(t.Context(), LimitsChange{Replace: true, If: func(rev int64) error {
		if rev != read {
			return outdated
		}
		if !others {
			others = true // another operator is faster
			set(LimitsChange{MaxConcurrentRuns: new(6)})
		}
		return nil
	}})
	if l, _, _ := r.Limits(t.Context()); !errors.Is(err, outdated) || l.MaxConcurrentRuns != 6 || len(l.Tags) != 1 {
		t.Errorf("with an outdated revision: %+v, %v", l, err)
	}

	bad := -2
	many := make([]TagLimit, MaxTagLimits+1)
	for field, ch := range map[string]LimitsChange{
		"max_concurrent_runs":      {MaxConcurrentRuns: &bad},
		"tags[0].limit":            {Tags: []TagLimit{{Key: "a", Limit: -2}}},
		"tags[0].per_unique_value": {Tags: []TagLimit{{Key: "a", Value: "b", PerUniqueValue: true}}},
		"tags[1]":                  {Tags: []TagLimit{{Key: "a", Limit: 1}, {Key: "a", Limit: 2}}},
		"tags[0]":                  {Tags: []TagLimit{{Key: "", Limit: 1}}},
		"tags":                     {Tags: many},
	} {
		_, _, err := r.SetLimits(t.Context(), ch)
		var p *problem.Error
		if !errors.As(err, &p) || p.Field != field || p.Code != problem.Invalid {
			t.Errorf("%s: %v", field, err)
		}
	}
	r.put(r.Keys.Limits(), `{"v":1,"max_concurrent_runs":1,"tags":[{"key":"a","limit":-1}]}`)
	_, _, err = r.Limits(t.Context())
	r.wants(problem.CorruptValue, err)
	_, _, err = r.SetLimits(t.Context(), LimitsChange{MaxConcurrentRuns: &five})
	r.wants(problem.CorruptValue, err)
}

func TestSpecsThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	tags := map[string]string{}
	for i := range 10_000 {
		tags[strings.Repeat("k", i%100+1)+string(rune('a'+i/100%26))+string(rune('a'+i/2600))] = "v"
	}
	for field, s := range map[string]Spec{
		"name":     {Name: long},
		"owner":    {Owner: "a\nb"},
		"priority": {Priority: 1001},
		"retries":  {Retries: -1},
		"tags":     {Tags: tags},
		"tags.a=b": {Tags: map[string]string{"a=b": "c"}},
		"tags.a":   {Tags: map[string]string{"a": "*"}},
		"tags.b":   {Tags: map[string]string{"b": ""}},
		"tags.c":   {Tags: map[string]string{"c": "\xff"}},
		"labels":   {Labels: map[string]string{"": "x"}},
		"labels.a": {Labels: map[string]string{"a": strings.Repeat("x", pool.MaxLabel+1)}},
	} {
		var p *problem.Error
		if err := s.Validate(); !errors.As(err, &p) || p.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	ok := Spec{Tags: map[string]string{"größe": "xl/2", "a b": "c=d,e"}}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}
