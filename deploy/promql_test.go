package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// family is a metric of berth.
type family struct {
	kind   string // counter, gauge or histogram
	labels []string
}

// catalog holds the metrics of berth, by name.
type catalog map[string]family

// targetLabels are the labels that Prometheus adds to each series.
var targetLabels = []string{"job", "instance"}

// checkExpr parses an expression, and returns the labels that its series can have. It
// returns an error if the expression uses a metric or a label that does not exist, or a
// metric in a way that its type does not allow.
func checkExpr(text string, metrics catalog) ([]string, error) {
	expr, err := parser.ParseExpr(text)
	if err != nil {
		return nil, err
	}
	if expr.Type() == parser.ValueTypeMatrix {
		return nil, errors.New("a range needs a function")
	}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok && err == nil {
			err = metrics.checkUse(s.Name, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	set, err := metrics.labelsOf(expr)
	return slices.Sorted(maps.Keys(set)), err
}

// functions are the functions that may be given a counter or a range, with the type of
// metric that each is for.
var functions = map[string]string{
	"rate": "counter", "increase": "counter", "changes": "", "absent": "",
	"deriv": "gauge", "min_over_time": "gauge", "max_over_time": "gauge",
}

// checkUse checks how an expression uses series. path holds the nodes above them.
func (c catalog) checkUse(name string, path []parser.Node) error {
	f, err := c.series(name)
	if err != nil {
		return err
	}
	for _, node := range slices.Backward(path) {
		switch n := node.(type) {
		case *parser.Call:
			switch kind, ok := functions[n.Func.Name]; {
			case ok && kind != "" && kind != f.kind:
				return fmt.Errorf("%s of the %s %s", n.Func.Name, f.kind, name)
			case ok:
				return nil
			}
		case *parser.BinaryExpr:
			if n.Op == parser.LUNLESS {
				return nil // that a counter exists and did not before is a fact, whatever its value
			}
		}
	}
	if f.kind == "counter" {
		return fmt.Errorf("the counter %s needs rate or increase", name)
	}
	return nil
}

// labelsOf returns the labels that the series of an expression can have, nil for a number.
func (c catalog) labelsOf(expr parser.Expr) (map[string]bool, error) {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		f, err := c.series(e.Name)
		set := setOf(append(f.labels, targetLabels...))
		for _, m := range e.LabelMatchers {
			if err == nil && m.Name != model.MetricNameLabel && !set[m.Name] {
				err = fmt.Errorf("%s has no label %s", e.Name, m.Name)
			}
		}
		return set, err
	case *parser.MatrixSelector:
		return c.labelsOf(e.VectorSelector)
	case *parser.ParenExpr:
		return c.labelsOf(e.Expr)
	case *parser.UnaryExpr:
		return c.labelsOf(e.Expr)
	case *parser.AggregateExpr:
		set, err := c.labelsOf(e.Expr)
		for _, name := range e.Grouping {
			if err == nil && !set[name] {
				err = fmt.Errorf("by (%s): there is no label %s", strings.Join(e.Grouping, ", "), name)
			}
		}
		if e.Without {
			err = errors.Join(err, errors.New("without is not supported here: use by"))
		}
		return setOf(e.Grouping), err
	case *parser.Call:
		return c.labelsOfCall(e)
	case *parser.BinaryExpr:
		left, errLeft := c.labelsOf(e.LHS)
		right, errRight := c.labelsOf(e.RHS)
		if err := errors.Join(errLeft, errRight); err != nil {
			return nil, err
		}
		return combine(e, left, right)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return nil, nil
	}
	return nil, fmt.Errorf("%s is not supported here", expr)
}

func (c catalog) labelsOfCall(e *parser.Call) (map[string]bool, error) {
	set := map[string]bool{}
	for _, arg := range e.Args {
		of, err := c.labelsOf(arg)
		if err != nil {
			return nil, err
		}
		maps.Copy(set, of)
	}
	switch e.Func.Name {
	case "absent", "vector":
		return map[string]bool{}, nil
	case "histogram_quantile":
		if !set["le"] {
			return nil, errors.New("histogram_quantile needs the label le")
		}
		delete(set, "le")
	}
	return set, nil
}

// combine returns the labels of what an operator makes of two sides.
func combine(e *parser.BinaryExpr, left, right map[string]bool) (map[string]bool, error) {
	m := e.VectorMatching
	switch {
	case left == nil:
		return right, nil
	case right == nil:
		return left, nil
	case e.Op == parser.LOR:
		both := maps.Clone(left)
		maps.Copy(both, right)
		return both, nil
	case m.Card == parser.CardManyToOne || m.Card == parser.CardOneToMany || !m.On && len(m.MatchingLabels) > 0:
		return nil, fmt.Errorf("the matching of %s is not supported here", e)
	case !m.On && !maps.Equal(left, right):
		return nil, fmt.Errorf("%s matches nothing: one side has the labels %v, the other %v",
			e.Op, slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(right)))
	}
	for _, name := range m.MatchingLabels {
		if !left[name] || !right[name] {
			return nil, fmt.Errorf("%s on (%s): one side has no label %s", e.Op, strings.Join(m.MatchingLabels, ", "), name)
		}
	}
	if m.On && !e.Op.IsSetOperator() {
		return setOf(m.MatchingLabels), nil
	}
	return left, nil
}

// series returns the metric that series belong to. Of a histogram they are a part.
func (c catalog) series(name string) (family, error) {
	if f, ok := c[name]; ok {
		if f.kind == "histogram" {
			return family{}, fmt.Errorf("%s is a histogram: it has series %s_bucket, _sum and _count", name, name)
		}
		return family{f.kind, slices.Clone(f.labels)}, nil
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		base, ok := strings.CutSuffix(name, part)
		if f := c[base]; ok && f.kind == "histogram" {
			f = family{"counter", slices.Clone(f.labels)}
			if part == "_bucket" {
				f.labels = append(f.labels, "le")
			}
			return f, nil
		}
	}
	return family{}, fmt.Errorf("there is no metric %s", name)
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}

// some are metrics for the tests of checkExpr.
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
	} {
		got, err := checkExpr(expr, some)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: labels %q, error %v, want %q", expr, got, err, want)
		}
	}
}

func TestWrongExpressionsAreRefused(t *testing.T) {
	for expr, why := range map[string]string{
		``:                     "parse error",
		`nothing > 0`:          "no metric nothing",
		`a{reason="x"}`:        "no label reason",
		`sum by (reason) (a)`:  "no label reason",
		`a and on (job, op) b`: "no label op",
		`a > one`:              "matches nothing",
		`a unless one`:         "matches nothing",
		`c_total > 0`:          "needs rate or increase",
		`sum(c_total)`:         "needs rate or increase",
		`round(c_total)`:       "needs rate or increase",
		`rate(a[5m])`:          "rate of the gauge a",
		`deriv(c_total[5m])`:   "deriv of the counter c_total",
		`a[5m]`:                "needs a function",
		`d_seconds`:            "is a histogram",
		`rate(d_seconds[5m])`:  "is a histogram",
		`histogram_quantile(0.9, sum(rate(d_seconds_bucket[5m])))`: "needs the label le",
		`sum without (pool) (a)`:                                   "without is not supported",
		`a / on (job) group_left () one`:                           "the matching",
		`a / ignoring (pool) one`:                                  "the matching",
		`max_over_time(a[1h:1m])`:                                  "is not supported",
	} {
		if _, err := checkExpr(expr, some); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: error %v, want %q", expr, err, why)
		}
	}
}
