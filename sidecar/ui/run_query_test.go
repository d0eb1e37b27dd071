package ui

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

func parseRunHref(href string) (runQuery, error) {
	id, query, _ := strings.Cut(strings.TrimPrefix(href, "/runs/"), "?")
	v, err := url.ParseQuery(query)
	if err != nil {
		return runQuery{}, err
	}
	return runQueryOf(id, v)
}

func TestAnAddressOfARunIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Just(-1), rapid.IntRange(0, maxAfter))
		q := runQuery{
			run: "r", tab: rapid.SampledFrom(runTabs).Draw(t, "tab"), step: rapid.String().Draw(t, "step"),
			status: rapid.SampledFrom(append([]step.Status{""}, step.Statuses...)).Draw(t, "status"),
			after:  number.Draw(t, "after"), index: number.Draw(t, "index"), from: number.Draw(t, "from"),
		}
		if rapid.Bool().Draw(t, "before") {
			q.before = run.Place{Revision: rapid.Int64Range(1, 1<<60).Draw(t, "revision"), ID: rapid.SampledFrom([]string{"", "01HX"}).Draw(t, "id")}
		}
		got, err := parseRunHref(q.href())
		if err != nil || got != q {
			t.Fatalf("%s: %+v, %v, want %+v", q.href(), got, err, q)
		}
	})
}

func TestAnAddressThatMeansNothingIsRefusedByField(t *testing.T) {
	for field, values := range map[string][]string{
		"tab": {"x", "Steps", "<script>"}, "status": {"x", "RUNNING"}, "before": {"x", "-1", "1-/"},
		"after": {"x", "-1", "1.5", "99999999999999999999", "200001"}, "index": {"x", "-2"}, "from": {"x", " 1"},
	} {
		for _, text := range values {
			_, err := runQueryOf("r", url.Values{field: {text}})
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.Invalid || p.Field != field || p.Message == "" {
				t.Errorf("%s=%s: %v", field, text, err)
			}
		}
	}
}
