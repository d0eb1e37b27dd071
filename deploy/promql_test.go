package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This is as much of PromQL as the alerts and the dashboard need, and no more: an
// expression is read and judged at once, by what its series can be. What it does not
// know it refuses, so that nothing passes unread.

// family is a metric that berth has.
type family struct {
	kind   string // counter, gauge or histogram
	labels []string
}

// catalog are the metrics that there are, by name.
type catalog map[string]family

// target are the labels that Prometheus gives each series.
var target = []string{"job", "instance"}

// result is what an expression comes to.
type result struct {
	scalar bool
	ranged bool            // samples of a time: what functions take
	labels map[string]bool // that its series can have
	// counts tells that it is a counter as it is, which says nothing by itself.
	counts bool
	kind   string // of the metric, where it is ranged
}

// checkExpr reads an expression, and returns the labels that its series have. An error
// says what is wrong: it can't be read, or it names a metric or a label that is none.
func checkExpr(text string, metrics catalog) (labels []string, err error) {
	tokens, err := tokenize(text)
	if err != nil {
		return nil, err
	}
	e := &expression{tokens: tokens, metrics: metrics}
	r, err := e.binary(0)
	switch {
	case err != nil:
		return nil, err
	case e.peek() != "":
		return nil, fmt.Errorf("%q is left over", e.peek())
	case r.ranged:
		return nil, errors.New("it is a range, and nothing is made of it")
	}
	if err := r.plain(); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(r.labels)), nil
}

var token = regexp.MustCompile(`^(?:[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdwy]))*|[0-9]*\.?[0-9]+|"(?:[^"\\]|\\.)*"|=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>])`)

func tokenize(text string) ([]string, error) {
	var all []string
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		t := token.FindString(rest)
		if t == "" {
			return nil, fmt.Errorf("can't read on at %.20q", rest)
		}
		all, rest = append(all, t), rest[len(t):]
	}
	return all, nil
}

type expression struct {
	tokens  []string
	metrics catalog
}

// peek is the next token, empty at the end.
func (e *expression) peek() string {
	if len(e.tokens) == 0 {
		return ""
	}
	return e.tokens[0]
}

func (e *expression) next() string {
	t := e.peek()
	if t != "" {
		e.tokens = e.tokens[1:]
	}
	return t
}

func (e *expression) accept(t string) bool {
	if e.peek() != t {
		return false
	}
	e.next()
	return true
}

func (e *expression) want(t string) error {
	if got := e.next(); got != t {
		return fmt.Errorf("%q where %q belongs", got, t)
	}
	return nil
}

// operators, those that bind least first.
var operators = [][]string{{"or"}, {"and", "unless"}, {"==", "!=", ">", "<", ">=", "<="}, {"+", "-"}, {"*", "/", "%"}}

func (e *expression) binary(level int) (result, error) {
	if level == len(operators) {
		return e.operand()
	}
	left, err := e.binary(level + 1)
	for err == nil && slices.Contains(operators[level], e.peek()) {
		op, on := e.next(), []string(nil)
		if e.accept("on") {
			if on, err = e.names(); err != nil {
				break
			}
		}
		var right result
		if right, err = e.binary(level + 1); err == nil {
			left, err = combine(op, on, left, right)
		}
	}
	return left, err
}

// combine is what an operator makes of two sides.
func combine(op string, on []string, a, b result) (result, error) {
	if a.ranged || b.ranged {
		return result{}, fmt.Errorf("%s takes no ranges", op)
	}
	set := slices.Contains(operators[0], op) || slices.Contains(operators[1], op)
	if !set {
		if err := errors.Join(a.plain(), b.plain()); err != nil {
			return result{}, err
		}
	}
	switch {
	case set && (a.scalar || b.scalar):
		return result{}, fmt.Errorf("%s takes no numbers", op)
	case a.scalar:
		return b, nil
	case b.scalar:
		return a, nil
	case op == "or":
		both := maps.Clone(a.labels)
		maps.Copy(both, b.labels)
		return result{labels: both, counts: a.counts || b.counts}, nil
	}
	for _, name := range on {
		if !a.labels[name] || !b.labels[name] {
			return result{}, fmt.Errorf("%s on (%s): one side has no label %s", op, strings.Join(on, ", "), name)
		}
	}
	if on == nil && !maps.Equal(a.labels, b.labels) {
		return result{}, fmt.Errorf("%s matches nothing: one side has the labels %v, the other %v",
			op, slices.Sorted(maps.Keys(a.labels)), slices.Sorted(maps.Keys(b.labels)))
	}
	if on != nil && !set {
		a.labels = setOf(on)
	}
	// That a counter is there now and was not before says something.
	a.counts = a.counts && op != "unless"
	return a, nil
}

// plain refuses what says nothing by itself.
func (r result) plain() error {
	if r.counts {
		return errors.New("a counter is used as it is: it needs rate or increase")
	}
	return nil
}

// aggregations take by.
var aggregations = []string{"sum", "max", "min", "avg", "count"}

// functions of a range, with the kind of metric that each is for.
var functions = map[string]string{
	"rate": "counter", "increase": "counter", "changes": "",
	"deriv": "gauge", "min_over_time": "gauge", "max_over_time": "gauge",
}

func (e *expression) operand() (result, error) {
	t := e.next()
	switch {
	case t == "(":
		r, err := e.binary(0)
		if err == nil {
			err = e.want(")")
		}
		return r, err
	case t == "-":
		return e.operand()
	case t != "" && (t[0] >= '0' && t[0] <= '9' || t[0] == '.'):
		_, err := strconv.ParseFloat(t, 64)
		return result{scalar: true}, err
	case slices.Contains(aggregations, t):
		return e.aggregation()
	case e.peek() == "(":
		return e.call(t)
	case t == "" || !isName(t):
		return result{}, fmt.Errorf("%q where a value belongs", t)
	}
	return e.selector(t)
}

func isName(t string) bool {
	return t[0] == '_' || t[0] == ':' || t[0] >= 'a' && t[0] <= 'z' || t[0] >= 'A' && t[0] <= 'Z'
}

func (e *expression) aggregation() (result, error) {
	var by []string
	if e.accept("by") {
		var err error
		if by, err = e.names(); err != nil {
			return result{}, err
		}
	}
	args, err := e.arguments()
	switch {
	case err != nil:
		return result{}, err
	case len(args) != 1 || args[0].scalar || args[0].ranged:
		return result{}, errors.New("an aggregation takes one vector")
	}
	if err := args[0].plain(); err != nil {
		return result{}, err
	}
	for _, name := range by {
		if !args[0].labels[name] {
			return result{}, fmt.Errorf("by (%s): there is no label %s", strings.Join(by, ", "), name)
		}
	}
	return result{labels: setOf(by)}, nil
}

func (e *expression) call(name string) (result, error) {
	args, err := e.arguments()
	if err != nil {
		return result{}, err
	}
	kind, ranged := functions[name]
	switch {
	case ranged:
		if len(args) != 1 || !args[0].ranged {
			return result{}, fmt.Errorf("%s takes one range", name)
		}
		if kind != "" && args[0].kind != kind {
			return result{}, fmt.Errorf("%s of a %s", name, args[0].kind)
		}
		return result{labels: args[0].labels}, nil
	case name == "absent" && len(args) == 1 && !args[0].scalar && !args[0].ranged,
		name == "vector" && len(args) == 1 && args[0].scalar:
		return result{labels: map[string]bool{}}, nil
	case name == "histogram_quantile" && len(args) == 2 && args[0].scalar && !args[1].ranged:
		if !args[1].labels["le"] {
			return result{}, errors.New("histogram_quantile of what has no label le")
		}
		labels := maps.Clone(args[1].labels)
		delete(labels, "le")
		return result{labels: labels}, nil
	}
	return result{}, fmt.Errorf("%s is no function that is known here, or not of these arguments", name)
}

func (e *expression) arguments() ([]result, error) {
	if err := e.want("("); err != nil {
		return nil, err
	}
	var all []result
	for {
		r, err := e.binary(0)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		if !e.accept(",") {
			return all, e.want(")")
		}
	}
}

// names are those of labels in parentheses.
func (e *expression) names() ([]string, error) {
	if err := e.want("("); err != nil {
		return nil, err
	}
	all := []string{}
	if e.accept(")") {
		return all, nil
	}
	for {
		t := e.next()
		if t == "" || !isName(t) {
			return nil, fmt.Errorf("%q where a label belongs", t)
		}
		all = append(all, t)
		if !e.accept(",") {
			return all, e.want(")")
		}
	}
}

// selector is a metric, with what its labels must be.
func (e *expression) selector(name string) (result, error) {
	f, err := e.metrics.series(name)
	if err != nil {
		return result{}, err
	}
	r := result{labels: setOf(append(slices.Clone(f.labels), target...)), counts: f.kind == "counter", kind: f.kind}
	if e.accept("{") {
		for !e.accept("}") {
			label, op, value := e.next(), e.next(), e.next()
			switch {
			case !r.labels[label]:
				return result{}, fmt.Errorf("%s has no label %s", name, label)
			case !slices.Contains([]string{"=", "!=", "=~", "!~"}, op) || !strings.HasPrefix(value, `"`):
				return result{}, fmt.Errorf("%s{%s%s%s}: it is no matcher", name, label, op, value)
			}
			if !e.accept(",") && e.peek() != "}" {
				return result{}, fmt.Errorf("%q behind a matcher of %s", e.peek(), name)
			}
		}
	}
	if e.accept("[") {
		if err := e.duration(); err != nil {
			return result{}, err
		}
		r.ranged, r.counts = true, false
		if err := e.want("]"); err != nil {
			return result{}, err
		}
	}
	if e.accept("offset") {
		return r, e.duration()
	}
	return r, nil
}

var span = regexp.MustCompile(`^([0-9]+(ms|[smhdwy]))+$`)

func (e *expression) duration() error {
	if t := e.next(); !span.MatchString(t) {
		return fmt.Errorf("%q is no duration", t)
	}
	return nil
}

// series is what a name of series stands for: a metric, or a part of a histogram.
func (c catalog) series(name string) (family, error) {
	if f, ok := c[name]; ok {
		if f.kind == "histogram" {
			return family{}, fmt.Errorf("%s is a histogram: it has series %s_bucket, _sum and _count", name, name)
		}
		return f, nil
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		base, ok := strings.CutSuffix(name, part)
		if f := c[base]; ok && f.kind == "histogram" {
			f.kind = "counter"
			if part == "_bucket" {
				f.labels = append(slices.Clone(f.labels), "le")
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
