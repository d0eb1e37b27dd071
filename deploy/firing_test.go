package deploy_test

import (
	"context"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
)

// healthy are the series of a fleet of which no alert is to fire: each line is the name
// and the labels of one, and its values, one for each minute, in the notation of
// promtool's tests of rules. db1 leads, db2 is a candidate, w1 is a worker.
const healthy = `
berth_coordinator_leading{job="berth", instance="db1"} 1x180
berth_coordinator_leading{job="berth", instance="db2"} 0x180
berth_coordinator_ticks_total{job="berth", instance="db1"} 0+6x180
berth_coordinator_ticks_total{job="berth", instance="db2"} 7x180
berth_coordinator_tick_seconds_bucket{job="berth", instance="db1", phase="plan", le="1"} 0+6x180
berth_coordinator_tick_seconds_bucket{job="berth", instance="db1", phase="plan", le="+Inf"} 0+6x180
berth_coordinator_resyncs_total{job="berth", instance="db1"} 0x60 2x120
berth_runs{job="berth", instance="db1", status="queued"} 10+1x80 90-1x80 0x20
berth_runs{job="berth", instance="db2", status="queued"} 0x180
berth_runs_admitted_total{job="berth", instance="db1"} 0+2x180
berth_runs_lost_total{job="berth", instance="db1", reason="gone"} 0x180
berth_runs_corrupt{job="berth", instance="db1"} 0x180
berth_steps{job="berth", instance="db1", status="running"} 2x180
berth_steps_ready{job="berth", instance="db1", queue="default"} 5x180
berth_pool_limit{job="berth", instance="db1", pool="db"} 4x180
berth_pool_claimed{job="berth", instance="db1", pool="db"} 4x180
berth_pool_waiting{job="berth", instance="db1", pool="db"} 0x20 3x20 0x140
berth_pool_paused{job="berth", instance="db1", pool="db"} 0x180
berth_pool_limit{job="berth", instance="db1", pool="unlimited"} -1x180
berth_pool_claimed{job="berth", instance="db1", pool="unlimited"} 9x180
berth_pool_waiting{job="berth", instance="db1", pool="unlimited"} 0x180
berth_pool_paused{job="berth", instance="db1", pool="unlimited"} 0x180
berth_claims_granted_total{job="berth", instance="db1", how="direct"} 0+3x180
berth_dispatcher_active{job="berth", instance="db1", kind="coordinator"} 1x180
berth_dispatcher_active{job="berth", instance="db2", kind="coordinator"} 0x180
berth_dispatcher_takeovers_total{job="berth", instance="db1", kind="coordinator", why="silent"} 0x60 1x120
berth_claims_lost_total{job="berth", instance="db1", reason="claim_lost"} 0x180
berth_lease_margin_seconds{job="berth", instance="db1"} 200x180
berth_etcd_request_duration_seconds_bucket{job="berth", instance="db1", op="txn", outcome="ok", le="0.1"} 0+90x180
berth_etcd_request_duration_seconds_bucket{job="berth", instance="db1", op="txn", outcome="ok", le="1"} 0+90x180
berth_etcd_request_duration_seconds_bucket{job="berth", instance="db1", op="txn", outcome="ok", le="+Inf"} 0+90x180
berth_etcd_request_duration_seconds_count{job="berth", instance="db1", op="txn", outcome="ok"} 0+90x180
berth_etcd_request_duration_seconds_count{job="berth", instance="db1", op="txn", outcome="error"} 0+1x180
berth_watch_resyncs_total{job="berth", instance="db1", kind="coordinator"} 0x60 1x120
berth_etcd_cluster_changed_total{job="berth", instance="db1"} 0x180
berth_http_panics_total{job="berth", instance="db1"} 0x180
berth_runs_too_many_total{job="berth", instance="db1", setting="max_not_before"} 0x180
berth_worker_concurrency{job="berth", instance="w1"} 4x180
berth_worker_active{job="berth", instance="w1"} 4x50 3x130
berth_worker_resyncs_total{job="berth", instance="w1"} 0x180
berth_state_writable{job="berth", instance="db1"} 1x180
berth_tls_certificate_expiry_seconds{job="berth", instance="db1"} 700000-60x90 7776000-60x90
`

// faults are what makes alerts fire.
var faults = []struct {
	what   string
	series string // in place of the healthy ones of the same names and labels
	gone   string // the name of a metric of which there are no other series
	fires  string // the alert, and its labels
	at     int    // the minute in which it fires first
	says   string // a part of the description
}{
	{
		what: "etcd is restored under a new cluster id", fires: `BerthEtcdReplaced{instance="db1", job="berth"}`, at: 10, says: "ended all its claims",
		series: `berth_etcd_cluster_changed_total{job="berth", instance="db1"} 0x9 1x170`,
	},
	{
		what: "a handler panics", fires: `BerthPanics{instance="db1", job="berth"}`, at: 10, says: "the process goes on",
		series: `berth_http_panics_total{job="berth", instance="db1"} 0x9 1x170`,
	},
	{
		what: "an identity submits too much", fires: `BerthTooMany{job="berth", setting="max_not_before"}`, at: 10, says: "the bound max_not_before",
		series: `berth_runs_too_many_total{job="berth", instance="db1", setting="max_not_before"} 0x9 1x170`,
	},
	{
		what: "no candidate leads", fires: `BerthNoLeader{job="berth"}`, at: 11, says: "No candidate of berth has led",
		series: `berth_coordinator_leading{job="berth", instance="db1"} 1x9 0x170`,
	},
	{
		what: "no candidate is scraped", fires: `BerthNoLeader{}`, at: 1, says: "No candidate has led",
		gone: "berth_coordinator_leading",
	},
	{
		what: "the leader makes no plans", fires: `BerthLeaderStalled{instance="db1", job="berth"}`, at: 22, says: "db1 leads",
		series: `berth_coordinator_ticks_total{job="berth", instance="db1"} 0+6x19 120x160`,
	},
	{
		what: "applying takes seconds", fires: `BerthTickSlow{job="berth", phase="apply"}`, at: 11, says: "spends 1.99s in its phase apply",
		series: `berth_coordinator_tick_seconds_bucket{job="berth", instance="db1", phase="apply", le="1"} 0x180
berth_coordinator_tick_seconds_bucket{job="berth", instance="db1", phase="apply", le="2"} 0+6x180
berth_coordinator_tick_seconds_bucket{job="berth", instance="db1", phase="apply", le="+Inf"} 0+6x180`,
	},
	{
		what: "more runs are submitted than admitted", fires: `BerthQueueGrowing{instance="db1", job="berth", status="queued"}`, at: 31, says: "100m more runs a second",
		series: `berth_runs{job="berth", instance="db1", status="queued"} 100+6x180`,
	},
	{
		what: "no run is admitted", fires: `BerthQueueStalled{instance="db1", job="berth", status="queued"}`, at: 119, says: "40 runs wait",
		series: `berth_runs_admitted_total{job="berth", instance="db1"} 0+2x60 120x120
berth_runs{job="berth", instance="db1", status="queued"} 40x180`,
	},
	{
		what: "no step runs", fires: `BerthStepsStalled{job="berth", queue="default"}`, at: 89, says: "5 step instances can be taken of queue default",
		series: `berth_steps{job="berth", instance="db1", status="running"} 2x59 0x120`,
	},
	{
		what: "executors are lost", fires: `BerthRunsLost{job="berth", reason="launch"}`, at: 59, says: "1 executors were lost in 15 minutes, because: launch",
		series: `berth_runs_lost_total{job="berth", instance="db1", reason="launch"} _x59 1+1x120`,
	},
	{
		what: "a record is corrupt", fires: `BerthRecordsCorrupt{instance="db1", job="berth"}`, at: 65, says: "2 keys of runs or limits can't be read by db1",
		series: `berth_runs_corrupt{job="berth", instance="db1"} 0x59 2x120`,
	},
	{
		what: "a pool stays full", fires: `BerthPoolFull{job="berth", pool="db"}`, at: 90, says: "3 claims wait for slots of pool db",
		series: `berth_pool_waiting{job="berth", instance="db1", pool="db"} 0x59 3x120`,
	},
	{
		what: "no claim is granted", fires: `BerthPoolStalled{job="berth", pool="db"}`, at: 89, says: "3 claims wait for pool db",
		series: `berth_pool_waiting{job="berth", instance="db1", pool="db"} 0x29 3x150
berth_pool_claimed{job="berth", instance="db1", pool="db"} 2x180
berth_claims_granted_total{job="berth", instance="db1", how="direct"} 0+3x60 180x120`,
	},
	{
		what: "a pool stays paused", fires: `BerthPoolForgotten{job="berth", pool="db"}`, at: 124, says: "Pool db has been paused for an hour",
		series: `berth_pool_waiting{job="berth", instance="db1", pool="db"} 0x29 3x150
berth_pool_claimed{job="berth", instance="db1", pool="db"} 2x180
berth_pool_paused{job="berth", instance="db1", pool="db"} 0x59 1x120`,
	},
	{
		what: "a limit was lowered", fires: `BerthPoolOverLimit{job="berth", pool="db"}`, at: 120, says: "4 slots of pool db are held",
		series: `berth_pool_limit{job="berth", instance="db1", pool="db"} 4x59 2x120`,
	},
	{
		what: "claims are lost", fires: `BerthClaimsLost{instance="db1", job="berth", reason="claim_lost"}`, at: 60, says: "claims ended before their release",
		series: `berth_claims_lost_total{job="berth", instance="db1", reason="claim_lost"} 0x59 1+1x120`,
	},
	{
		what: "a host loses its first claim", fires: `BerthClaimsLost{instance="db2", job="berth", reason="claim_lost"}`, at: 174, says: "1 claims ended before their release",
		series: `berth_claims_lost_total{job="berth", instance="db2", reason="claim_lost"} _x174 1x5`,
	},
	{
		what: "a lease is not renewed", fires: `BerthLeaseMarginLow{instance="db1", job="berth"}`, at: 61, says: "ends in 20s",
		series: `berth_lease_margin_seconds{job="berth", instance="db1"} 200x59 20x120`,
	},
	{
		what: "nobody dispatches", fires: `BerthNoDispatcher{job="berth"}`, at: 61, says: "Each instance serves its own",
		series: `berth_dispatcher_active{job="berth", instance="db1", kind="coordinator"} 1x59 0x120
berth_pool_waiting{job="berth", instance="db1", pool="unlimited"} 0x59 1x10 0x110`,
	},
	{
		what: "dispatchers are replaced", fires: `BerthDispatcherSilent{job="berth"}`, at: 63, says: "dispatchers of berth were replaced",
		series: `berth_dispatcher_takeovers_total{job="berth", instance="db1", kind="coordinator", why="silent"} 0x59 0+1x5 5x114`,
	},
	{
		what: "requests to etcd fail", fires: `BerthEtcdUnreachable{instance="db1", job="berth"}`, at: 61, says: "100% of its requests to etcd fail",
		series: `berth_etcd_request_duration_seconds_count{job="berth", instance="db1", op="txn", outcome="ok"} 0+90x58 5220x120
berth_etcd_request_duration_seconds_count{job="berth", instance="db1", op="txn", outcome="error"} 0x59 10+10x120`,
	},
	{
		what: "requests to etcd take long", fires: `BerthEtcdSlow{instance="db1", job="berth"}`, at: 11, says: "takes 991ms",
		series: `berth_etcd_request_duration_seconds_bucket{job="berth", instance="db1", op="txn", outcome="ok", le="0.1"} 0x180`,
	},
	{
		what: "a process reads everything again and again", fires: `BerthWatchResyncs{instance="w1", job="berth"}`, at: 9, says: "9 times in 15 minutes",
		series: `berth_worker_resyncs_total{job="berth", instance="w1"} 0+1x180`,
	},
	{
		what: "a worker is gone", fires: `BerthWorkerGone{instance="w2", job="berth"}`, at: 139, says: "up to 8 step instances",
		series: `berth_worker_concurrency{job="berth", instance="w2"} 8x129`,
	},
	{
		what: "all workers are full", fires: `BerthWorkersFull{job="berth"}`, at: 60, says: "They have 4 step instances",
		series: `berth_worker_active{job="berth", instance="w1"} 4x180`,
	},
	{
		what: "the state directory is full", fires: `BerthStateUnwritable{instance="db1", job="berth"}`, at: 65, says: "can't be changed",
		series: `berth_state_writable{job="berth", instance="db1"} 1x59 0x120`,
	},
	{
		what: "the certificate is not replaced", fires: `BerthCertificateExpires{instance="db1", job="berth"}`, at: 36, says: "valid for 6d 23h",
		series: `berth_tls_certificate_expiry_seconds{job="berth", instance="db1"} 606000-60x180`,
	},
}

// minutes is how long the series are.
const minutes = 180

// fleet is a storage of series.
type fleet []promql.Series

// parseFleet reads series in the notation of healthy.
func parseFleet(t *testing.T, text string) fleet {
	t.Helper()
	var all fleet
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		metric, values, err := parser.ParseSeriesDesc(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		s := promql.Series{Metric: metric}
		for i, v := range values {
			if !v.Omitted {
				s.Floats = append(s.Floats, promql.FPoint{T: int64(i) * time.Minute.Milliseconds(), F: v.Value})
			}
		}
		all = append(all, s)
	}
	return all
}

// with returns the fleet with other series in place of those of the same names and
// labels, and without those of a name.
func (f fleet) with(others fleet, gone string) fleet {
	return append(slices.DeleteFunc(slices.Clone(f), func(s promql.Series) bool {
		return s.Metric.Get(model.MetricNameLabel) == gone ||
			slices.ContainsFunc(others, func(o promql.Series) bool { return labels.Equal(o.Metric, s.Metric) })
	}), others...)
}

// Select returns the series that match.
func (f fleet) Select(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &seriesSet{}
	for _, s := range f {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
			found.rest = append(found.rest, s)
		}
	}
	return found
}

// seriesSet iterates over series.
type seriesSet struct {
	at   promql.Series
	rest []promql.Series
}

func (s *seriesSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}
func (s *seriesSet) At() storage.Series              { return promql.NewStorageSeries(s.at) }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// firing is an alert that fires.
type firing struct {
	name        string // of the alert, and its labels
	at          int    // the first minute
	description string // as it is then
}

// evaluate evaluates a rule each minute, and returns the alerts that fire.
func (f fleet) evaluate(t *testing.T, engine *promql.Engine, rule rulefmt.Rule) []firing {
	t.Helper()
	storage := &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: f.Select}}
	minute := func(i int) time.Time { return time.UnixMilli(0).Add(time.Duration(i) * time.Minute) }
	query, err := engine.NewRangeQuery(t.Context(), storage, nil, rule.Expr, minute(0), minute(minutes), time.Minute)
	if err != nil {
		t.Fatalf("%s: %v", rule.Alert, err)
	}
	defer query.Close()
	result := query.Exec(t.Context())
	matrix, err := result.Matrix()
	if err != nil || len(result.Warnings) > 0 {
		t.Fatalf("%s: %v, %v", rule.Alert, err, result.Warnings)
	}
	var all []firing
	for _, s := range matrix {
		since := int64(math.MinInt64)
		for i, p := range s.Floats {
			if i == 0 || p.T-s.Floats[i-1].T > time.Minute.Milliseconds() {
				since = p.T // pending from here on
			}
			if p.T-since < time.Duration(rule.For).Milliseconds() {
				continue
			}
			set := labels.NewBuilder(s.Metric).Del(model.MetricNameLabel).Labels()
			all = append(all, firing{rule.Alert + set.String(), int(p.T / time.Minute.Milliseconds()), describe(t, rule, set, p)})
			break
		}
	}
	return all
}

// describe returns the description of an alert.
func describe(t *testing.T, rule rulefmt.Rule, set labels.Labels, p promql.FPoint) string {
	t.Helper()
	noQueries := func(context.Context, string, time.Time) (promql.Vector, error) { return nil, nil }
	text, err := template.NewTemplateExpander(t.Context(), "{{$labels := .Labels}}{{$value := .Value}}"+rule.Annotations["description"], rule.Alert,
		template.AlertTemplateData(set.Map(), nil, "", promql.Sample{F: p.F}), model.Time(p.T), noQueries, &url.URL{}, nil).Expand()
	if err != nil {
		t.Errorf("%s: %v", rule.Alert, err)
	}
	return text
}

// A healthy fleet makes no alert fire. Each fault makes its alert fire, in the minute
// that is expected, and no other alert.
func TestEachAlertFiresForItsFaultAlone(t *testing.T) {
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 1e6, Timeout: patience})
	rules, fired := alerts(t), map[string]bool{}
	// A second fleet, whose processes have the same names, has no part in it.
	fine := parseFleet(t, healthy+strings.ReplaceAll(healthy, `job="berth"`, `job="other"`))
	for _, r := range rules {
		for _, a := range fine.evaluate(t, engine, r) {
			t.Errorf("in a healthy fleet, %s fires in minute %d: %s", a.name, a.at, a.description)
		}
	}
	for _, f := range faults {
		faulty, found := fine.with(parseFleet(t, f.series), f.gone), false
		for _, r := range rules {
			for _, a := range faulty.evaluate(t, engine, r) {
				fired[r.Alert] = true
				if found = found || a.name == f.fires; a.name != f.fires || a.at != f.at || !strings.Contains(a.description, f.says) {
					t.Errorf("%s: %s fires in minute %d: %s\nwant %s in minute %d: %s", f.what, a.name, a.at, a.description, f.fires, f.at, f.says)
				}
			}
		}
		if !found {
			t.Errorf("%s: %s does not fire", f.what, f.fires)
		}
	}
	for _, r := range rules {
		if !fired[r.Alert] {
			t.Errorf("no fault makes %s fire", r.Alert)
		}
	}
}
