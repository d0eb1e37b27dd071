package sidecar_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// tooMany checks that an answer refuses a submission because of a setting.
func tooMany(t *testing.T, got answer, setting string) {
	t.Helper()
	p := got.problem(t)
	if got.status != http.StatusTooManyRequests || p.Code != string(problem.TooMany) || !strings.Contains(p.Detail, setting) {
		t.Errorf("%d %s, want %s of %s", got.status, got.body, problem.TooMany, setting)
	}
	if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || seconds < 1 {
		t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
	}
}

// One identity submits as much as it can, and leaves enough of etcd for another.
func TestOneIdentityCannotFillEtcdWithRuns(t *testing.T) {
	t.Parallel()
	d := newDock(t, bearers(map[string]string{"ann": "view submit claim", "bob": "view submit claim"}), func(c *sidecar.Config) {
		c.MaxUnfinishedRuns, c.MaxStoredRunData = 5, 1<<20
	})
	d.readDocument()
	for i := range 5 {
		if got := d.postAs("ann", "/v1/runs", fmt.Sprintf(`{"id":"ann-%d"}`, i)); got.status != http.StatusCreated {
			t.Fatalf("%s", got.body)
		}
	}
	tooMany(t, d.postAs("ann", "/v1/runs", `{"id":"ann-5"}`), "max_unfinished_runs")
	tooMany(t, d.postAs("ann", "/v1/runs", `{"id":"ann-5","steps":[{"name":"a","external":true}]}`), "max_unfinished_runs")
	if got := d.postAs("ann", "/v1/runs", `{"id":"ann-3"}`); got.status != http.StatusOK {
		t.Errorf("the same run again: %s", got.body)
	}
	if got := d.postAs("bob", "/v1/runs", `{"id":"bob-0"}`); got.status != http.StatusCreated {
		t.Errorf("another identity: %s", got.body)
	}
	// What has ended does not count; when it is retried, it does.
	if _, err := d.bearer("ann").CancelRun(t.Context(), "ann-0", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	if got := d.postAs("ann", "/v1/runs", `{"id":"ann-5"}`); got.status != http.StatusCreated {
		t.Errorf("after the end of one: %s", got.body)
	}
	tooMany(t, d.postAs("ann", "/v1/runs/ann-0/retry", `{}`), "max_unfinished_runs")

	// A short request that is rendered to megabytes.
	wide := func(id string) string {
		return `{"id":"` + id + `","steps":[{"name":"a","external":true,"input":"` + strings.Repeat("x", 1000) + `{{ .item }}","items":{"from":1,"to":300}}]}`
	}
	if got := d.postAs("bob", "/v1/runs", wide("bob-wide-0")); got.status != http.StatusCreated {
		t.Fatalf("%s", got.body)
	}
	tooMany(t, d.postAs("bob", "/v1/runs", wide("bob-wide-1")), "max_stored_run_data")
	if got := d.postAs("bob", "/v1/runs", `{"id":"bob-1"}`); got.status != http.StatusCreated {
		t.Errorf("what is small enough: %s", got.body)
	}
	if got := d.postAs("bob", "/v1/runs", wide("bob-wide-0")); got.status != http.StatusOK {
		t.Errorf("the same run again: %s", got.body)
	}
	// A short run that fails often has many events.
	retried := func(id string) string {
		return `{"id":"` + id + `","steps":[{"name":"a","external":true,"retries":40}]}`
	}
	if got := d.postAs("bob", "/v1/runs", retried("bob-retried-0")); got.status != http.StatusCreated {
		t.Fatalf("%s", got.body)
	}
	tooMany(t, d.postAs("bob", "/v1/runs", retried("bob-retried-1")), "max_stored_run_data")
	if d.runs() != 10 {
		t.Errorf("there are %d runs: a refused one is stored", d.runs())
	}

	// Runs that wait for years.
	for _, body := range []string{
		`{"id":"later","not_before":"` + time.Now().AddDate(2, 0, 0).Format(time.RFC3339) + `"}`,
		`{"id":"later","steps":[{"name":"a","external":true,"not_before":"` + time.Now().AddDate(2, 0, 0).Format(time.RFC3339) + `"}]}`,
	} {
		got := d.postAs("bob", "/v1/runs", body)
		tooMany(t, got, "max_not_before")
		if !strings.Contains(string(got.body), "is more than 366 days ahead") {
			t.Errorf("%s", got.body)
		}
	}
	if got := d.postAs("bob", "/v1/runs", `{"id":"next-year","not_before":"`+time.Now().AddDate(1, 0, 0).Format(time.RFC3339)+`"}`); got.status != http.StatusCreated {
		t.Errorf("in a year: %s", got.body)
	}

	counted := map[string]float64{}
	families, err := d.cfg.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "berth_runs_too_many_total" {
			for _, m := range f.GetMetric() {
				counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if counted["max_unfinished_runs"] != 3 || counted["max_stored_run_data"] != 2 || counted["max_not_before"] != 2 {
		t.Errorf("the metric has %v", counted)
	}
}
