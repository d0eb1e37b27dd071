package deploy_test

import (
	"slices"
	"strings"
	"testing"
)

// some are metrics for the tests of what judges expressions.
var some = catalog{
	"a":         {kind: "gauge", labels: []string{"pool"}},
	"b":         {kind: "gauge", labels: []string{"pool"}},
	"c_total":   {kind: "counter", labels: []string{"reason"}},
	"d_seconds": {kind: "histogram", labels: []string{"op"}},
	"one":       {kind: "gauge"},
}

func TestExpressionsHaveTheLabelsOfTheirSeries(t *testing.T) {
	for expr, want := range map[string]string{
		`a`:                            "instance job pool",
		`a{pool="x", job=~"y.*",} > 0`: "instance job pool",
		`one == 1`:                     "instance job",
		`max by (job, pool) (a) / max by (job, pool) (b)`:                           "job pool",
		`sum(a) or vector(0)`:                                                       "",
		`sum by (job) (one) == 0 or absent(one)`:                                    "job",
		`60 * sum by (reason) (rate(c_total[5m]))`:                                  "reason",
		`sum by (reason) (c_total unless c_total offset 10m) > 0`:                   "reason",
		`histogram_quantile(0.99, sum by (op, le) (rate(d_seconds_bucket[1h30m])))`: "op",
		`increase(d_seconds_count{op!="x"}[1m]) - -1`:                               "instance job op",
		`(deriv(a[30m]) > 0 and a > 100) and on (job, instance) one == 1`:           "instance job pool",
		`a / on (job, pool) max by (job, pool) (b)`:                                 "job pool",
		`max_over_time(one[1h]) unless one`:                                         "instance job",
		`a and on () sum by () (b)`:                                                 "instance job pool",
		`changes(c_total[1m])`:                                                      "instance job reason",
	} {
		got, err := checkExpr(expr, some)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: labels %q, error %v, want %q", expr, got, err, want)
		}
	}
}

func TestWrongExpressionsAreRefused(t *testing.T) {
	for expr, why := range map[string]string{
		``:                     "where a value belongs",
		`nothing > 0`:          "no metric nothing",
		`a{reason="x"}`:        "no label reason",
		`a{pool}`:              "no matcher",
		`a{pool="x" job="y"}`:  "behind a matcher",
		`sum by (reason) (a)`:  "no label reason",
		`sum by (1) (a)`:       "where a label belongs",
		`a and on (job, op) b`: "no label op",
		`a > one`:              "matches nothing",
		`a unless one`:         "matches nothing",
		`c_total > 0`:          "needs rate or increase",
		`sum(c_total)`:         "needs rate or increase",
		`c_total`:              "needs rate or increase",
		`rate(a[5m])`:          "rate of a gauge",
		`deriv(c_total[5m])`:   "deriv of a counter",
		`rate(c_total)`:        "takes one range",
		`a[5m]`:                "nothing is made of it",
		`a[5x]`:                "no duration",
		`a[x]`:                 "no duration",
		`sum(a[5m])`:           "takes one vector",
		`d_seconds`:            "is a histogram",
		`histogram_quantile(0.9, sum(rate(d_seconds_bucket[5m])))`: "no label le",
		`a or 1`:              "takes no numbers",
		`a b`:                 "left over",
		`(a`:                  `where ")" belongs`,
		`round(a)`:            "no function",
		`a > 'x'`:             "can't read on",
		`a @ 5`:               "can't read on",
		`rate(d_seconds[5m])`: "is a histogram",
	} {
		if _, err := checkExpr(expr, some); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: error %v, want %q", expr, err, why)
		}
	}
}

func TestOperatorsBindAsInPrometheus(t *testing.T) {
	// Were "or" to bind before ">", the sides of "and" would not have the same labels.
	got, err := checkExpr(`max by (job) (a) > 0 and max by (job) (b) > 0 or one`, some)
	if err != nil || !slices.Equal(got, []string{"instance", "job"}) {
		t.Errorf("labels %q, error %v", got, err)
	}
}
